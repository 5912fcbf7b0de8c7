//! Which keys this process wants to hear of, and which of them the subscription has yet to look at.
//!
//! Invariant: a listener is told that its subscription stands once, after the server confirmed it on
//! the connection of now. Bounded by the callers: one entry for each key somebody waits for.
//!
//! Deliberately absent: the connection (`subscription.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::idempotency::RecordKey;

/// Keys looked at in one go: channels in one SUBSCRIBE.
const BATCH: usize = 256;

/// The listeners of one process, by key.
#[derive(Default)]
pub(super) struct Wanted {
    set: Mutex<Set>,
    changed: Notify,
}

#[derive(Default)]
struct Set {
    keys: HashMap<RecordKey, Listeners>,
    changed: HashSet<RecordKey>,
}

#[derive(Default)]
struct Listeners {
    count: usize,
    confirmed: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Wanted {
    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, key: RecordKey, confirm: oneshot::Sender<()>) {
        let mut set = self.set();
        let listeners = set.keys.entry(key).or_default();
        listeners.count += 1;
        if listeners.confirmed {
            // Its receiver may be gone; then nobody needs to know.
            let _ = confirm.send(());
            return;
        }
        listeners.waiting.retain(|waiting| !waiting.is_closed());
        listeners.waiting.push(confirm);
        set.changed.insert(key);
        drop(set);
        self.changed.notify_one();
    }

    pub(super) fn remove(&self, key: RecordKey) {
        let mut set = self.set();
        let Some(listeners) = set.keys.get_mut(&key) else {
            return;
        };
        listeners.count = listeners.count.saturating_sub(1);
        if listeners.count > 0 {
            return;
        }
        set.keys.remove(&key);
        set.changed.insert(key);
        drop(set);
        self.changed.notify_one();
    }

    /// How many keys are listened to.
    pub(super) fn len(&self) -> usize {
        self.set().keys.len()
    }

    /// Returns once something may have changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// At most a batch of changed keys, and whether each is wanted.
    pub(super) fn take_changed(&self) -> Vec<(RecordKey, bool)> {
        let mut set = self.set();
        let keys: Vec<_> = set.changed.iter().copied().take(BATCH).collect();
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            set.changed.remove(&key);
            taken.push((key, set.keys.contains_key(&key)));
        }
        taken
    }

    pub(super) fn confirm(&self, keys: &[RecordKey]) {
        let mut set = self.set();
        for key in keys {
            if let Some(listeners) = set.keys.get_mut(key) {
                listeners.confirmed = true;
                for waiting in listeners.waiting.drain(..) {
                    let _ = waiting.send(());
                }
            }
        }
    }

    /// A new connection knows nothing: look at every key again.
    pub(super) fn start_over(&self) {
        let mut set = self.set();
        let Set { keys, changed } = &mut *set;
        changed.clear();
        for (key, listeners) in keys {
            listeners.confirmed = false;
            changed.insert(*key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_counted() {
        let wanted = Wanted::default();
        let key = RecordKey([1; 32]);
        let (first, mut confirmed) = oneshot::channel();
        wanted.add(key, first);
        assert_eq!(wanted.take_changed(), vec![(key, true)]);
        wanted.confirm(&[key]);
        assert_eq!(confirmed.try_recv(), Ok(()));
        let (second, mut confirmed) = oneshot::channel();
        wanted.add(key, second);
        assert_eq!(confirmed.try_recv(), Ok(()), "it stands already");
        assert!(wanted.take_changed().is_empty());
        wanted.remove(key);
        assert!(wanted.take_changed().is_empty(), "one is left");
        wanted.start_over();
        assert_eq!(wanted.take_changed(), vec![(key, true)]);
        wanted.remove(key);
        assert_eq!(wanted.take_changed(), vec![(key, false)]);
        wanted.remove(key);
        assert!(
            wanted.take_changed().is_empty(),
            "once too often is harmless"
        );
    }
}
