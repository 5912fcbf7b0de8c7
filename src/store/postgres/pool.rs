//! The sessions of this process, lent to one call at a time.
//!
//! Invariant: a session comes back only if the server has answered all that was asked of it.
//! Whoever gives up in the middle (a deadline drops the future) leaves a session that is cancelled
//! and closed; until that is done it keeps its place, so that the server never has more of us than
//! `store.connections`.
//!
//! Who finds no session at rest begins one, if there is a place, and takes whichever is free first.
//! An attempt to connect belongs to nobody: who runs out of time leaves its session to the next.
//! Several sessions and not one shared by all: a session does one statement after the other, and
//! commits of different sessions share a write to disk.
//!
//! Deliberately absent: a session's age, a health check before each use. One that ended is not lent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::{Error, Row};

use super::errors;
use super::mark::Mark;
use super::session::{Argument, Session, Target};
use crate::store::vault::Vault;
use crate::store::{StoreError, StoreErrorKind};

/// Logging in takes several round trips and a new process of the server; callers do not wait for it
/// longer than they may.
const LOG_IN: Duration = Duration::from_secs(5);

/// The sessions. See the module.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) target: Arc<Target>,
    vault: Arc<Vault>,
    /// What each session looks at first.
    mark: Option<Arc<Mark>>,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Seat>>,
    /// A session was put to rest, or a place is free.
    freed: Arc<Notify>,
}

/// A session with its place.
#[derive(Debug)]
struct Seat {
    session: Session,
    place: Place,
    /// Somebody has looked over it whether this is still the same store.
    has_looked: bool,
}

/// One of so many.
#[derive(Debug)]
struct Place {
    permit: Option<OwnedSemaphorePermit>,
    freed: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.permit.take());
        // Rare, and who is told first may have no use for it: all look.
        self.freed.notify_waiters();
    }
}

impl Pool {
    pub(super) fn new(
        target: Arc<Target>,
        connections: usize,
        vault: Arc<Vault>,
        mark: Option<Arc<Mark>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            vault,
            mark,
            places: Arc::new(Semaphore::new(connections)),
            idle: Mutex::new(Vec::new()),
            freed: Arc::default(),
        })
    }

    /// A session for one call. Every error is `NotSent`.
    pub(super) async fn lend(self: &Arc<Self>) -> Result<Lent, StoreError> {
        // Less than the caller's own deadline, which would not know that nothing was sent.
        self.lend_within(self.target.timeout.mul_f32(0.9)).await
    }

    /// The same for a caller without a deadline.
    pub(super) async fn lend_at_leisure(self: &Arc<Self>) -> Result<Lent, StoreError> {
        self.lend_within(LOG_IN.max(self.target.timeout)).await
    }

    async fn lend_within(self: &Arc<Self>, patience: Duration) -> Result<Lent, StoreError> {
        match tokio::time::timeout(patience, self.take()).await {
            Ok(lent) => lent,
            Err(_) => Err(StoreError::not_sent(
                StoreErrorKind::Timeout,
                format!("no session with PostgreSQL in {patience:?}"),
            )),
        }
    }

    async fn take(self: &Arc<Self>) -> Result<Lent, StoreError> {
        let mut attempt = None;
        loop {
            // Before the look, so that nothing is freed between the two.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(seat) = self.rested() {
                return Ok(Lent::new(self, seat));
            }
            if attempt.is_none() {
                attempt = self.begin();
            }
            match attempt.as_mut() {
                None => freed.await,
                Some(made) => tokio::select! {
                    made = made => {
                        made.unwrap_or_else(|_| Err(closed()))?;
                        // It may have gone to somebody who waited longer.
                        attempt = None;
                    }
                    () = freed => {}
                },
            }
        }
    }

    /// Begins a session, if there is a place for it.
    fn begin(self: &Arc<Self>) -> Option<oneshot::Receiver<Result<(), StoreError>>> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let place = Place {
            permit: Some(permit),
            freed: Arc::clone(&self.freed),
        };
        let (made, waits) = oneshot::channel();
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let result = pool.make(place).await;
            // Whoever began it may have found another meanwhile.
            drop(made.send(result));
        });
        Some(waits)
    }

    /// Makes a session, which looks whether this is still the same store, and puts it to rest.
    async fn make(self: &Arc<Self>, place: Place) -> Result<(), StoreError> {
        let session = self.target.connect(LOG_IN, None).await?;
        let seat = Seat {
            session,
            place,
            has_looked: false,
        };
        let Some(mark) = &self.mark else {
            self.rest(seat);
            return Ok(());
        };
        let mut lent = Lent::new(self, seat);
        let looked = match tokio::time::timeout(LOG_IN, mark.look(&mut lent)).await {
            Ok(looked) => looked,
            Err(_) => Err(StoreError::not_sent(
                StoreErrorKind::Timeout,
                format!("no look at the mark in {LOG_IN:?}"),
            )),
        };
        if looked.is_err() && !lent.asking {
            lent.end();
        }
        // What the look sent was no operation.
        let looked = looked.map_err(|error| StoreError::not_sent(error.kind, error.message));
        looked.map(drop)
    }

    fn rest(&self, seat: Seat) {
        self.lock().push(seat);
        self.freed.notify_one();
    }

    /// The session that came back last: the others may be closed by whoever counts idle ones.
    fn rested(&self) -> Option<Seat> {
        let mut idle = self.lock();
        idle.retain(|seat| !seat.session.has_ended());
        idle.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Seat>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> StoreError {
    StoreError::not_sent(
        StoreErrorKind::Unavailable,
        "the attempt to connect to PostgreSQL was given up",
    )
}

/// A session for one call.
#[derive(Debug)]
pub(super) struct Lent {
    pool: Arc<Pool>,
    /// `None`: it has ended.
    seat: Option<Seat>,
    /// Something was asked and the server has not answered.
    asking: bool,
    /// Somebody has looked over it whether this is still the same store.
    pub(super) has_looked: bool,
}

impl Lent {
    fn new(pool: &Arc<Pool>, seat: Seat) -> Self {
        Self {
            pool: Arc::clone(pool),
            has_looked: seat.has_looked,
            seat: Some(seat),
            asking: false,
        }
    }

    /// It is not lent again.
    pub(super) fn end(&mut self) {
        self.seat = None;
    }

    /// What records are stored through.
    pub(super) fn vault(&self) -> &Vault {
        &self.pool.vault
    }

    /// One statement and its rows.
    pub(super) async fn query(
        &mut self,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>, Trouble> {
        let session = self.ask()?;
        let answer = session.query(statement, arguments).await;
        self.answered(answer)
    }

    /// One statement; how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<u64, Trouble> {
        let session = self.ask()?;
        let answer = session.execute(statement, arguments).await;
        self.answered(answer)
    }

    /// One statement as [`Lent::execute`], and a second one right behind it, in one round trip; the
    /// second one's failure is nobody's.
    pub(super) async fn execute_then(
        &mut self,
        (statement, arguments): (&str, &[Argument<'_>]),
        (then, then_arguments): (&str, &[Argument<'_>]),
    ) -> Result<u64, Trouble> {
        let session = self.ask()?;
        let (answer, then) = tokio::join!(
            biased;
            session.execute(statement, arguments),
            session.execute(then, then_arguments),
        );
        let answer = self.answered(answer);
        if let Err(error) = then {
            if errors::ends_session(&error) {
                self.seat = None;
            }
            tracing::debug!("no wake-up was sent: {error}");
        }
        answer
    }

    /// Several statements in one transaction.
    pub(super) async fn batch(&mut self, statements: &str) -> Result<(), Trouble> {
        let session = self.ask()?;
        let answer = session.batch(statements).await;
        self.answered(answer)
    }

    fn ask(&mut self) -> Result<&Session, Trouble> {
        self.asking = true;
        let seat = self.seat.as_ref().ok_or(Trouble::Ended)?;
        Ok(&seat.session)
    }

    fn answered<T>(&mut self, answer: Result<T, Error>) -> Result<T, Trouble> {
        self.asking = false;
        answer.map_err(|error| {
            if errors::ends_session(&error) {
                self.seat = None;
            }
            Trouble::Answered(error)
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut seat) = self.seat.take() else {
            return;
        };
        seat.has_looked = self.has_looked;
        if !self.asking {
            self.pool.rest(seat);
            return;
        }
        // Without a runtime it is closed at once, and the place is free.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let target = Arc::clone(&self.pool.target);
            runtime.spawn(async move {
                target.cancel(seat.session).await;
                drop(seat.place);
            });
        }
    }
}

/// What can come instead of an answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server's own error, or a session that broke.
    Answered(Error),
    /// The session ended with the statement before.
    Ended,
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Answered(error) => errors::of_statement(&error),
            Trouble::Ended => Self::not_sent(
                StoreErrorKind::Unavailable,
                "the session with PostgreSQL ended",
            ),
        }
    }
}
