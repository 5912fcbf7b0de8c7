//! The sessions of this process, lent to one call at a time.
//!
//! Invariant: a session comes back only if the server has answered all that was asked of it.
//! Whoever gives up in the middle (a deadline drops the future) leaves a session that is cancelled
//! and closed; until that is done it counts, so that the server never has more of us than
//! `store.connections`.
//!
//! An attempt to connect belongs to nobody: who runs out of time leaves its session to the next.
//! Several sessions and not one shared by all: a session does one statement after the other, and
//! commits of different sessions share a write to disk.
//!
//! Deliberately absent: a session's age, a health check before each use. One that ended is not lent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::{Error, Row};

use super::errors;
use super::session::{Argument, Session, Target};
use crate::store::{StoreError, StoreErrorKind};

/// Logging in takes several round trips and a new process of the server; callers do not wait for it
/// longer than they may.
const LOG_IN: Duration = Duration::from_secs(5);

/// The sessions. See the module.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) target: Arc<Target>,
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(target: Arc<Target>, connections: usize) -> Arc<Self> {
        Arc::new(Self {
            target,
            places: Arc::new(Semaphore::new(connections)),
            idle: Mutex::new(Vec::new()),
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
        let place = Arc::clone(&self.places).acquire_owned().await;
        let Ok(place) = place else {
            return Err(closed());
        };
        if let Some(session) = self.rested() {
            return Ok(Lent::new(self, session, place));
        }
        let (made, waits) = oneshot::channel();
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let session = pool.target.connect(LOG_IN, None).await;
            let lent = session.map(|session| Lent::new(&pool, session, place));
            // If nobody waits any more, dropping it puts it to rest.
            drop(made.send(lent));
        });
        waits.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The session that came back last: the others may be closed by whoever counts idle ones.
    fn rested(&self) -> Option<Session> {
        let mut idle = self.lock();
        idle.retain(|session| !session.has_ended());
        idle.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
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
    session: Option<Session>,
    place: Option<OwnedSemaphorePermit>,
    /// Something was asked and the server has not answered.
    asking: bool,
}

impl Lent {
    fn new(pool: &Arc<Pool>, session: Session, place: OwnedSemaphorePermit) -> Self {
        Self {
            pool: Arc::clone(pool),
            session: Some(session),
            place: Some(place),
            asking: false,
        }
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
                self.session = None;
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
        self.session.as_ref().ok_or(Trouble::Ended)
    }

    fn answered<T>(&mut self, answer: Result<T, Error>) -> Result<T, Trouble> {
        self.asking = false;
        answer.map_err(|error| {
            if errors::ends_session(&error) {
                self.session = None;
            }
            Trouble::Answered(error)
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(session), Some(place)) = (self.session.take(), self.place.take()) else {
            return;
        };
        if !self.asking {
            self.pool.lock().push(session);
            return;
        }
        // Without a runtime it is closed at once, and the place is free.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let target = Arc::clone(&self.pool.target);
            runtime.spawn(async move {
                target.cancel(session).await;
                drop(place);
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
