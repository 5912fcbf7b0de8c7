//! Wake-ups from other processes: one listening session for the whole process.
//!
//! Owns the keys somebody here waits for, counted, and a task that keeps a session listening on the
//! one channel. Invariant: `listen` answers once a notice of our own has come back over that
//! session, and what was missed while there was none is made good by [`Wake::All`] after every new
//! one.
//!
//! That first notice is sent over another session on purpose: a pooler takes a `LISTEN` without a
//! word and gives the session to somebody else. Where nothing comes back nobody is kept waiting for
//! it: waiters look each second (R13), and it is tried again now and then.
//!
//! Deliberately absent: waiting for a record, and that slow look.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_postgres::Notification;
use tokio_postgres::types::Type;

use super::pool::Pool;
use super::session::{Argument, Session};
use super::statements::{CHANNEL, NOTIFY};
use crate::idempotency::RecordKey;
use crate::store::background::{Task, Undo};
use crate::store::{StoreError, StoreErrorKind, Wake, WakeFn};

/// A session that carries nothing is asked for a sign of life this often.
const PING: Duration = Duration::from_secs(5);
/// How long a notice of our own may take to come back.
const ECHO: Duration = Duration::from_secs(2);
const BACK_OFF_FIRST: Duration = Duration::from_millis(50);
const BACK_OFF_LAST: Duration = Duration::from_secs(2);
/// Between two attempts where notices do not come back.
const DEAF: Duration = Duration::from_secs(30);
/// Notices on their way to the waiters.
const QUEUE: usize = 1_024;

/// How the listening goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Not yet, or not just now.
    No,
    /// Notices come.
    Yes,
    /// There is a session, and notices do not come back over it.
    Deaf,
}

/// What became of a notice of our own.
enum Echo {
    Heard,
    /// It was sent, and did not come back.
    None,
    /// It could not be sent: that says nothing.
    Unasked,
}

/// The listeners of one process.
pub(super) struct Subscription {
    wanted: Arc<Wanted>,
    wake: WakeFn,
    pool: Arc<Pool>,
    standing: watch::Sender<Standing>,
    task: Task,
}

impl Subscription {
    pub(super) fn new(pool: Arc<Pool>, wake: WakeFn) -> Self {
        Self {
            wanted: Arc::default(),
            wake,
            pool,
            standing: watch::Sender::new(Standing::No),
            task: Task::default(),
        }
    }

    pub(super) async fn listen(&self, key: RecordKey) -> Result<(), StoreError> {
        self.start();
        self.wanted.add(key);
        let undo = Undo::new(|| self.wanted.remove(key));
        let mut standing = self.standing.subscribe();
        let stands = standing.wait_for(|standing| *standing != Standing::No);
        // The sender only goes away with the process.
        match timeout(self.pool.target.timeout, stands).await {
            Ok(Ok(_)) => {
                undo.keep();
                Ok(())
            }
            _ => Err(StoreError::not_sent(
                StoreErrorKind::Timeout,
                "PostgreSQL did not confirm the subscription in time",
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
                pool: Arc::clone(&self.pool),
                standing: self.standing.clone(),
            };
            keeper.run()
        });
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("keys", &self.wanted.set().len())
            .field("standing", &*self.standing.borrow())
            .finish_non_exhaustive()
    }
}

/// The keys somebody waits for, with how many do. Bounded by the callers.
#[derive(Default)]
struct Wanted(Mutex<HashMap<RecordKey, usize>>);

impl Wanted {
    fn set(&self) -> MutexGuard<'_, HashMap<RecordKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, key: RecordKey) {
        *self.set().entry(key).or_default() += 1;
    }

    fn remove(&self, key: RecordKey) {
        let mut set = self.set();
        if let Some(count) = set.get_mut(&key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                set.remove(&key);
            }
        }
    }
}

/// The task's own state.
struct Keeper {
    wanted: Arc<Wanted>,
    wake: WakeFn,
    pool: Arc<Pool>,
    standing: watch::Sender<Standing>,
}

impl Keeper {
    async fn run(self) {
        let mut back_off = BACK_OFF_FIRST;
        let mut stood_before = false;
        loop {
            match self.connect().await {
                Ok((session, mut heard)) => {
                    back_off = BACK_OFF_FIRST;
                    match self.echo(&mut heard).await {
                        Echo::Heard => {
                            self.standing.send_replace(Standing::Yes);
                            if stood_before {
                                (self.wake)(Wake::All);
                            }
                            stood_before = true;
                            self.serve(&session, &mut heard).await;
                            self.standing.send_replace(Standing::No);
                        }
                        Echo::None if !session.has_ended() => self.be_deaf(session).await,
                        Echo::None | Echo::Unasked => {}
                    }
                }
                Err(error) => tracing::debug!("no subscription: {error}"),
            }
            sleep(back_off).await;
            back_off = back_off.saturating_mul(2).min(BACK_OFF_LAST);
        }
    }

    async fn connect(&self) -> Result<(Session, mpsc::Receiver<Notification>), StoreError> {
        let (tell, heard) = mpsc::channel(QUEUE);
        let target = &self.pool.target;
        let session = target.connect(ECHO, Some(tell)).await?;
        let listen = format!("LISTEN {CHANNEL}");
        match timeout(ECHO, session.batch(&listen)).await {
            Ok(Ok(())) => Ok((session, heard)),
            Ok(Err(error)) => Err(super::errors::of_statement(&error)),
            Err(_) => Err(StoreError::not_sent(
                StoreErrorKind::Timeout,
                "PostgreSQL did not answer LISTEN in time",
            )),
        }
    }

    /// Whether a notice that another session sends is heard.
    async fn echo(&self, heard: &mut mpsc::Receiver<Notification>) -> Echo {
        let sent = async {
            let mut lent = self.pool.lend().await?;
            let arguments: [Argument<'_>; 1] = [(&"", Type::TEXT)];
            lent.execute(NOTIFY, &arguments).await?;
            Ok::<_, StoreError>(())
        };
        if !matches!(timeout(ECHO, sent).await, Ok(Ok(()))) {
            return Echo::Unasked;
        }
        // Anybody's will do.
        match timeout(ECHO, heard.recv()).await {
            Ok(Some(_)) => Echo::Heard,
            _ => Echo::None,
        }
    }

    async fn be_deaf(&self, session: Session) {
        tracing::warn!(
            event = "store_deaf",
            "notices of PostgreSQL do not come back, as through a pooler that shares sessions: \
             requests that wait for another replica look each second"
        );
        // What the pooler may have left on a session that others use now.
        let unlisten = format!("UNLISTEN {CHANNEL}");
        drop(timeout(ECHO, session.batch(&unlisten)).await);
        drop(session);
        self.standing.send_replace(Standing::Deaf);
        sleep(DEAF).await;
        self.standing.send_replace(Standing::No);
    }

    /// Until the session ends.
    async fn serve(&self, session: &Session, heard: &mut mpsc::Receiver<Notification>) {
        let mut ticks = interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                notice = heard.recv() => match notice {
                    Some(notice) => self.hear(&notice),
                    None => return,
                },
                _ = ticks.tick() => {
                    if !self.lives(session, heard).await {
                        return;
                    }
                }
            }
        }
    }

    /// Asks for a sign of life. Notices are taken meanwhile: the answer comes behind them.
    async fn lives(&self, session: &Session, heard: &mut mpsc::Receiver<Notification>) -> bool {
        let mut asked = std::pin::pin!(timeout(ECHO, session.batch("SELECT 1")));
        loop {
            tokio::select! {
                answer = &mut asked => return matches!(answer, Ok(Ok(()))),
                notice = heard.recv() => match notice {
                    Some(notice) => self.hear(&notice),
                    None => return false,
                },
            }
        }
    }

    fn hear(&self, notice: &Notification) {
        if let Some(key) = key_of(notice.payload())
            && notice.channel() == CHANNEL
            && self.wanted.set().contains_key(&key)
        {
            (self.wake)(Wake::Key(key));
        }
    }
}

/// Reads a key's hexadecimal form.
fn key_of(text: &str) -> Option<RecordKey> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.bytes().all(|octet| octet.is_ascii_hexdigit()) {
        return None;
    }
    for (place, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *place = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(RecordKey(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_its_key_and_nothing_else_does() {
        let key = RecordKey(std::array::from_fn(|at| u8::try_from(at * 8).unwrap()));
        assert_eq!(key_of(&key.to_string()), Some(key));
        for other in [
            "",
            &format!("{key}0"),
            &"+f".repeat(32),
            &"\u{e9}".repeat(32),
        ] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }

    #[test]
    fn listeners_are_counted() {
        let wanted = Wanted::default();
        let key = RecordKey([1; 32]);
        wanted.add(key);
        wanted.add(key);
        wanted.remove(key);
        assert!(wanted.set().contains_key(&key), "one is left");
        wanted.remove(key);
        wanted.remove(key);
        assert!(wanted.set().is_empty(), "once too often is harmless");
    }
}
