//! R13: duplicates that wait for a first answer.
//!
//! One slot per key and process. A waiter subscribes, *then* reads again, *then* waits; one task
//! ([`WaitingRoom::look`]) re-reads every waited key each second and whenever the store says so.
//! Waiters hold no store connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::idempotency::transition::Held;
use crate::idempotency::{Operation, Outcome, Policy, RecordKey};
use crate::store::{Store, Wake, WakeFn};
use crate::telemetry::Metrics;

/// How often every waited key is read again.
const SWEEP: Duration = Duration::from_secs(1);
/// Reads of one sweep at once.
const READS_AT_ONCE: usize = 32;
/// Wake-ups not yet looked at; beyond it everything is looked at.
const WAKE_QUEUE: usize = 1024;

/// What a waiter is told: what the store holds now.
#[derive(Debug, Clone)]
pub enum View {
    /// A record.
    Held(Arc<Held>),
    /// None.
    Absent,
}

/// All waiters of this process.
#[derive(Debug)]
pub struct WaitingRoom {
    slots: Mutex<Slots>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Slots {
    keys: HashMap<RecordKey, Slot>,
    total: usize,
}

#[derive(Debug)]
struct Slot {
    signal: watch::Sender<Option<View>>,
    waiters: usize,
}

/// One waiting request.
#[derive(Debug)]
pub struct Waiter {
    room: Arc<WaitingRoom>,
    store: Arc<dyn Store>,
    key: RecordKey,
    signal: watch::Receiver<Option<View>>,
    listening: bool,
}

impl WaitingRoom {
    /// Nobody waits yet.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::new(Slots::default()),
            metrics,
        })
    }

    /// A place in the room, unless it is full.
    pub fn enter(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        key: RecordKey,
        policy: &Policy,
    ) -> Option<Waiter> {
        let mut slots = self.lock();
        let here = slots.keys.get(&key).map_or(0, |slot| slot.waiters);
        if slots.total >= policy.max_waiters || here >= policy.max_waiters_per_key {
            return None;
        }
        // A slot is only made for somebody: the last one to leave takes it away.
        let slot = slots.keys.entry(key).or_insert_with(|| Slot {
            signal: watch::Sender::new(None),
            waiters: 0,
        });
        slot.waiters += 1;
        let signal = slot.signal.subscribe();
        slots.total += 1;
        self.metrics.waiting.inc();
        Some(Waiter {
            room: self.clone(),
            store: store.clone(),
            key,
            signal,
            listening: false,
        })
    }

    /// Tells the waiters of `key` what the store confirmed.
    pub fn tell(&self, key: &RecordKey, view: View) {
        if let Some(slot) = self.lock().keys.get(key) {
            slot.signal.send_replace(Some(view));
        }
    }

    /// The wake-ups a store delivers, and the end that [`WaitingRoom::look`] reads.
    pub fn wakes() -> (WakeFn, mpsc::Receiver<Wake>) {
        let (sender, receiver) = mpsc::channel(WAKE_QUEUE);
        let wake: WakeFn = Arc::new(move |wake| {
            // A full queue loses nothing: the sweep looks at every key.
            let _full = sender.try_send(wake).is_err();
        });
        (wake, receiver)
    }

    /// Reads waited keys: those named at once, all of them each second.
    pub async fn look(self: Arc<Self>, store: Arc<dyn Store>, mut wakes: mpsc::Receiver<Wake>) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let keys = tokio::select! {
                wake = wakes.recv() => match wake {
                    Some(Wake::Key(key)) => self.waited(Some(key)),
                    Some(Wake::All) => self.waited(None),
                    None => return,
                },
                _ = sweep.tick() => self.waited(None),
            };
            let mut reads = JoinSet::new();
            for key in keys {
                if reads.len() >= READS_AT_ONCE {
                    reads.join_next().await;
                }
                reads.spawn(self.clone().read(store.clone(), key));
            }
            while reads.join_next().await.is_some() {}
        }
    }

    fn waited(&self, only: Option<RecordKey>) -> Vec<RecordKey> {
        let slots = self.lock();
        match only {
            Some(key) => slots
                .keys
                .contains_key(&key)
                .then_some(key)
                .into_iter()
                .collect(),
            None => slots.keys.keys().copied().collect(),
        }
    }

    async fn read(self: Arc<Self>, store: Arc<dyn Store>, key: RecordKey) {
        match store.apply(key, Operation::Read).await {
            Ok(Outcome::Held(held)) => self.tell(&key, View::Held(Arc::new(held))),
            Ok(Outcome::Absent) => self.tell(&key, View::Absent),
            // The next sweep asks again.
            Ok(_) | Err(_) => {}
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Subscribes to other processes. Without it the sweep is the safety net.
    pub(super) async fn listen(&mut self) {
        match self.store.listen(self.key).await {
            // A store takes back what failed or was given up.
            Ok(()) => self.listening = true,
            Err(error) => tracing::debug!(event = "listen_failed", error = %error),
        }
    }

    /// Waits until there is something to judge.
    pub async fn told(&mut self) -> View {
        loop {
            // The sender lives as long as a waiter is in the slot.
            if self.signal.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Some(view) = self.signal.borrow_and_update().clone() {
                return view;
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.listening {
            self.store.unlisten(self.key);
        }
        let mut slots = self.room.lock();
        slots.total = slots.total.saturating_sub(1);
        if let Some(slot) = slots.keys.get_mut(&self.key) {
            slot.waiters = slot.waiters.saturating_sub(1);
            if slot.waiters == 0 {
                slots.keys.remove(&self.key);
            }
        }
        self.room.metrics.waiting.dec();
    }
}

/// RFC 7240 `Prefer: wait=n`, in seconds.
pub(super) fn preferred_wait(headers: &http::HeaderMap) -> Option<Duration> {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split([',', ';']))
        .filter_map(|preference| preference.trim().split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))
        .and_then(|(_, value)| value.trim().trim_matches('"').parse().ok())
        .map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn a_room_is_left_as_it_was_found() {
        let room = WaitingRoom::new(Arc::new(Metrics::new()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1));
        let key = RecordKey([1; 32]);
        for (most, fits) in [(0, 0), (1, 1), (2, 2)] {
            let policy = Policy {
                max_waiters_per_key: most,
                ..Policy::default()
            };
            let inside: Vec<_> = (0..3)
                .filter_map(|_| room.enter(&store, key, &policy))
                .collect();
            assert_eq!((inside.len(), room.lock().total), (fits, fits));
            drop(inside);
            assert!(
                room.lock().total == 0 && room.lock().keys.is_empty(),
                "{most}"
            );
        }
    }

    #[test]
    fn prefer_wait_is_read_among_others() {
        let wait = |value: &str| {
            let mut headers = http::HeaderMap::new();
            headers.insert("prefer", value.parse().unwrap());
            preferred_wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("wait=3"), Some(3));
        assert_eq!(wait("respond-async, Wait=\"10\""), Some(10));
        assert_eq!(wait("return=minimal"), None);
        assert_eq!(wait("wait=soon"), None);
    }
}
