//! Wake-ups from other processes: one subscribed connection for the whole process.
//!
//! Owns the set of keys somebody here waits for, counted, and a task that makes the server's
//! subscriptions the same. Invariant: `listen` answers only once the server has confirmed, and what
//! was missed while there was no connection is made good by [`Wake::All`] after every new one.
//! Nothing queues: the set is the truth, changes are notes to look again.
//!
//! Deliberately absent: waiting for a record, and the slow poll that makes a lost wake-up harmless.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::link::{Driver, End, Target};
use super::wanted::Wanted;
use crate::idempotency::RecordKey;
use crate::store::background::{Task, Undo};
use crate::store::{StoreError, StoreErrorKind, Wake, WakeFn};

/// A connection that carries nothing is asked for a sign of life this often.
const PING: Duration = Duration::from_secs(5);
const BACK_OFF_FIRST: Duration = Duration::from_millis(50);
const BACK_OFF_LAST: Duration = Duration::from_secs(2);

/// The listeners of one process.
pub(super) struct Subscription {
    wanted: Arc<Wanted>,
    wake: WakeFn,
    target: Arc<Target>,
    prefix: Arc<str>,
    task: Task,
}

impl Subscription {
    /// `prefix` and the key's hexadecimal form make a channel.
    pub(super) fn new(target: Arc<Target>, prefix: Arc<str>, wake: WakeFn) -> Self {
        Self {
            wanted: Arc::default(),
            wake,
            target,
            prefix,
            task: Task::default(),
        }
    }

    pub(super) async fn listen(&self, key: RecordKey) -> Result<(), StoreError> {
        self.start();
        let (confirm, confirmed) = oneshot::channel();
        self.wanted.add(key, confirm);
        let undo = Undo::new(|| self.wanted.remove(key));
        // The sender only goes away with the process.
        match timeout(self.target.access.timeout, confirmed).await {
            Ok(Ok(())) => {
                undo.keep();
                Ok(())
            }
            _ => Err(StoreError::not_sent(
                StoreErrorKind::Timeout,
                "Redis did not confirm the subscription in time",
            )),
        }
    }

    pub(super) fn unlisten(&self, key: RecordKey) {
        self.wanted.remove(key);
    }

    fn start(&self) {
        self.task.ensure(|| {
            let keeper = Keeper {
                wanted: Arc::clone(&self.wanted),
                wake: Arc::clone(&self.wake),
                target: Arc::clone(&self.target),
                prefix: Arc::clone(&self.prefix),
                subscribed: HashSet::new(),
            };
            keeper.run()
        });
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("keys", &self.wanted.len())
            .finish_non_exhaustive()
    }
}

/// The task's own state.
struct Keeper {
    wanted: Arc<Wanted>,
    wake: WakeFn,
    target: Arc<Target>,
    prefix: Arc<str>,
    /// What the server has confirmed on this connection.
    subscribed: HashSet<RecordKey>,
}

impl Keeper {
    async fn run(mut self) {
        let mut back_off = BACK_OFF_FIRST;
        let mut connected_before = false;
        loop {
            match self.connect().await {
                Ok((connection, driver, end)) => {
                    back_off = BACK_OFF_FIRST;
                    self.serve(connection, driver, &end, connected_before).await;
                    connected_before = true;
                    tracing::debug!("the subscription's connection to Redis ended");
                }
                Err(error) => tracing::debug!("no subscription: {error}"),
            }
            sleep(back_off).await;
            back_off = back_off.saturating_mul(2).min(BACK_OFF_LAST);
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, Driver, End), StoreError> {
        let wake = Arc::clone(&self.wake);
        let prefix = Arc::clone(&self.prefix);
        let config = AsyncConnectionConfig::new().set_push_sender(move |push: PushInfo| {
            if let Some(key) = woken(&push, &prefix) {
                wake(Wake::Key(key));
            }
            Ok::<_, std::convert::Infallible>(())
        });
        self.target.connect(&self.target.access.login, config).await
    }

    /// Until the connection ends.
    async fn serve(
        &mut self,
        mut connection: MultiplexedConnection,
        mut driver: Driver,
        end: &End,
        again: bool,
    ) {
        self.subscribed.clear();
        self.wanted.start_over();
        if self.reconcile(&mut connection).await.is_err() {
            return;
        }
        if again {
            (self.wake)(Wake::All);
        }
        let mut ticks = interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let alive = tokio::select! {
                () = driver.ended() => return,
                () = self.wanted.changed() => self.reconcile(&mut connection).await,
                _ = ticks.tick() => ping(&mut connection).await,
            };
            if alive.is_err() || self.target.has_left(end) {
                return;
            }
        }
    }

    /// Makes the server's subscriptions what is wanted.
    async fn reconcile(
        &mut self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), redis::RedisError> {
        loop {
            let changed = self.wanted.take_changed();
            if changed.is_empty() {
                return Ok(());
            }
            let mut add = Vec::new();
            let mut remove = Vec::new();
            for (key, wanted) in &changed {
                match (wanted, self.subscribed.contains(key)) {
                    (true, false) => add.push(*key),
                    (false, true) => remove.push(*key),
                    _ => {}
                }
            }
            if !add.is_empty() {
                connection.subscribe(self.channels(&add)).await?;
                self.subscribed.extend(&add);
            }
            if !remove.is_empty() {
                connection.unsubscribe(self.channels(&remove)).await?;
                self.subscribed.retain(|key| !remove.contains(key));
            }
            let wanted = changed.iter().filter(|(_, wanted)| *wanted);
            let wanted: Vec<_> = wanted.map(|(key, _)| *key).collect();
            self.wanted.confirm(&wanted);
        }
    }

    fn channels(&self, keys: &[RecordKey]) -> Vec<String> {
        keys.iter()
            .map(|key| format!("{}{key}", self.prefix))
            .collect()
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> Result<(), redis::RedisError> {
    redis::cmd("PING").exec_async(connection).await
}

/// The key that a message is about.
fn woken(push: &PushInfo, prefix: &str) -> Option<RecordKey> {
    if push.kind != PushKind::Message {
        return None;
    }
    let Some(Value::BulkString(channel)) = push.data.first() else {
        return None;
    };
    let channel = std::str::from_utf8(channel).ok()?;
    key_of(channel.strip_prefix(prefix)?)
}

/// Reads a key's hexadecimal form.
fn key_of(text: &str) -> Option<RecordKey> {
    let mut key = [0; 32];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 64 || !text.bytes().all(|octet| octet.is_ascii_hexdigit()) {
        return None;
    }
    for (place, pair) in key.iter_mut().zip(pairs) {
        *place = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(RecordKey(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(channel: &str) -> PushInfo {
        PushInfo {
            kind: PushKind::Message,
            data: vec![
                Value::BulkString(channel.as_bytes().to_vec()),
                Value::BulkString(Vec::new()),
            ],
        }
    }

    #[test]
    fn a_message_names_its_key_and_nothing_else_does() {
        let key = RecordKey(std::array::from_fn(|at| u8::try_from(at * 8).unwrap()));
        let channel = format!("ns:wake:{key}");
        assert_eq!(woken(&message(&channel), "ns:wake:"), Some(key));
        for other in [
            format!("other:wake:{key}"),
            format!("{channel}00"),
            "ns:wake:".to_owned(),
            format!("ns:wake:{}", "+f".repeat(32)),
            format!("ns:wake:{}", "é".repeat(32)),
        ] {
            assert_eq!(woken(&message(&other), "ns:wake:"), None, "{other}");
        }
        let mut subscribed = message(&channel);
        subscribed.kind = PushKind::Subscribe;
        assert_eq!(woken(&subscribed, "ns:wake:"), None);
    }
}
