//! A connection to Redis that is made when it is needed and made again when it is lost.
//!
//! Owns one multiplexed connection of one thread. Invariant: at most one attempt to connect is
//! under way; it belongs to nobody, so a caller that runs out of time does not undo it. Until a
//! connection stands, every error is `NotSent`.
//!
//! A connection is dropped when it breaks, when it was silent three times in a row (a peer that
//! vanished says nothing), when the server is read-only (behind a name, the primary may be somebody
//! else by now), and when sentinels name somebody else.
//!
//! Deliberately absent: repeating a command. Whether that is right is for its sender to say.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisResult, ServerError, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::errors;
use super::info::Info;
use super::link::{Driver, End, Target};
use super::mark::Seen;
use crate::store::{StoreError, StoreErrorKind};

/// Replies missed in a row after which a connection is given up.
const SILENT: u32 = 3;
/// A read-only server's connection is given up only when it is older, or each call would connect.
const YOUNG: Duration = Duration::from_secs(1);

/// A connection that stands.
#[derive(Debug)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    driver: Driver,
    end: End,
    /// What the server said about itself.
    pub(super) info: Info,
    silent: AtomicU32,
    born: Instant,
    /// It was looked at over this connection whether this is still the same store.
    has_looked: AtomicBool,
}

/// What can come instead of a reply.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// The server's own error.
    Answered(ServerError),
    /// It is a replica, and nothing was sent: it may be promoted at any moment.
    Replica,
    /// No reply.
    Lost(StoreError),
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Answered(error) => errors::answered(&error),
            Trouble::Replica => {
                let message = "READONLY: Redis is a replica, which takes no records";
                Self::not_sent(StoreErrorKind::Refused, message)
            }
            Trouble::Lost(error) => error,
        }
    }
}

/// A connection, or the way to one.
#[derive(Debug)]
pub(super) struct Slot {
    target: Arc<Target>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    Idle,
    Connecting(watch::Receiver<Made>),
    Live(Arc<Live>),
}

type Made = Option<Result<Arc<Live>, StoreError>>;

impl Slot {
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self {
            target,
            state: Arc::new(Mutex::new(State::Idle)),
        }
    }

    /// The connection, made if there is none.
    pub(super) async fn live(&self) -> Result<Arc<Live>, StoreError> {
        let mut attempt = {
            let mut state = lock(&self.state);
            match &*state {
                State::Live(live) if self.is_good(live) => return Ok(Arc::clone(live)),
                // An attempt whose runtime went down never ends; it is not waited for.
                State::Connecting(attempt) if attempt.has_changed().is_ok() => attempt.clone(),
                _ => {
                    let attempt = self.begin();
                    *state = State::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        let made = attempt.wait_for(Option::is_some).await;
        match made.as_deref() {
            Ok(Some(made)) => made.clone(),
            _ => Err(StoreError::not_sent(
                StoreErrorKind::Unavailable,
                "the attempt to connect to Redis was given up",
            )),
        }
    }

    fn is_good(&self, live: &Live) -> bool {
        !live.driver.has_ended() && !self.target.has_left(&live.end)
    }

    fn begin(&self) -> watch::Receiver<Made> {
        let (done, attempt) = watch::channel(None);
        let target = Arc::clone(&self.target);
        let state = Arc::clone(&self.state);
        tokio::spawn(async move {
            let made = Live::connect(&target).await.map(Arc::new);
            *lock(&state) = match &made {
                Ok(live) => State::Live(Arc::clone(live)),
                Err(_) => State::Idle,
            };
            done.send_replace(Some(made));
        });
        attempt
    }

    /// Whether it is still the store it was.
    pub(super) async fn look(&self) -> Result<Seen, StoreError> {
        let live = self.live().await?;
        self.look_over(&live).await
    }

    /// Whether somebody has looked over this connection, now or before.
    pub(super) async fn has_looked(&self, live: &Arc<Live>) -> Result<bool, StoreError> {
        if live.has_looked.load(Ordering::Acquire) {
            return Ok(true);
        }
        Ok(self.look_over(live).await? != Seen::Nothing)
    }

    async fn look_over(&self, live: &Arc<Live>) -> Result<Seen, StoreError> {
        let looked = self.target.watch.look(&live.connection, &live.info).await;
        match looked {
            Ok(seen) => live
                .has_looked
                .store(seen != Seen::Nothing, Ordering::Release),
            Err(_) => self.give_up(live),
        }
        looked
    }

    /// One command, one reply.
    pub(super) async fn command(&self, live: &Arc<Live>, command: &Cmd) -> Result<Value, Trouble> {
        let sent = live.connection.clone().send_packed_command(command).await;
        match self.noted(live, sent)? {
            Value::ServerError(error) => Err(self.answered(live, error)),
            value => Ok(value),
        }
    }

    /// Several commands at once: the replies in order, errors of the server among them.
    pub(super) async fn pipeline(
        &self,
        live: &Arc<Live>,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, Trouble> {
        let mut connection = live.connection.clone();
        let sent = connection
            .send_packed_commands(pipeline, 0, pipeline.len())
            .await;
        self.noted(live, sent)
    }

    /// Remembers what an error says about the connection.
    pub(super) fn answered(&self, live: &Arc<Live>, error: ServerError) -> Trouble {
        if errors::code(&error) == "READONLY" {
            self.read_only(live);
        }
        Trouble::Answered(error)
    }

    /// It leads to a replica: behind a name the primary is somebody else by now.
    pub(super) fn read_only(&self, live: &Arc<Live>) {
        if live.born.elapsed() > YOUNG {
            self.give_up(live);
        }
    }

    fn noted<T>(&self, live: &Arc<Live>, sent: RedisResult<T>) -> Result<T, Trouble> {
        let error = match sent {
            Ok(reply) => {
                live.silent.store(0, Ordering::Relaxed);
                return Ok(reply);
            }
            Err(error) => errors::lost(&error),
        };
        let silent = match error.kind {
            StoreErrorKind::Timeout => live.silent.fetch_add(1, Ordering::Relaxed) + 1,
            _ => SILENT,
        };
        if silent >= SILENT {
            self.give_up(live);
        }
        Err(Trouble::Lost(error))
    }

    /// Lets go of this connection, unless it has been replaced already.
    fn give_up(&self, live: &Arc<Live>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Live(current) if Arc::ptr_eq(current, live)) {
            *state = State::Idle;
        }
    }
}

impl Live {
    async fn connect(target: &Target) -> Result<Self, StoreError> {
        let config = AsyncConnectionConfig::new();
        let (connection, driver, end) = target.connect(&target.access.login, config).await?;
        let asked = redis::cmd("INFO").arg("server").to_owned();
        let said = connection.clone().send_packed_command(&asked).await;
        let said =
            said.map_err(|error| errors::not_connected(&target.access.shown(&end), &error))?;
        // Whom `INFO` is not allowed can work all the same; any other refusal is one of everything.
        match &said {
            Value::ServerError(error) if errors::code(error) != "NOPERM" => {
                return Err(errors::answered(error));
            }
            _ => {}
        }
        let info = Info::read(&said);
        let seen = target.watch.look(&connection, &info).await?;
        Ok(Self {
            connection,
            driver,
            end,
            info,
            silent: AtomicU32::new(0),
            born: Instant::now(),
            has_looked: AtomicBool::new(seen != Seen::Nothing),
        })
    }
}

/// What it guards is whole after every statement, so a panic elsewhere does not spoil it.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
