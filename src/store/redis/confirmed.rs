//! `store.wait_replicas`: writes that count only once so many replicas have them.
//!
//! `WAIT` speaks of the writes of its own connection, and blocks it until the replicas have
//! answered. So writes that wait travel on a connection of their own, and those that come while one
//! `WAIT` is under way go out together behind it, with one `WAIT` for all. Inside a script or a
//! transaction it would not wait at all.
//!
//! Invariant: `Confirmation::given` says yes only if the replicas confirmed a point of this
//! connection behind the write. A write that is not confirmed may still have been carried out.
//!
//! Deliberately absent: what was written. An operation that found its work done already has written
//! nothing, and must write something before it may ask (`operations.rs`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, ServerError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::connection::{Live, Slot, Trouble};
use super::errors;
use super::link::Target;
use crate::store::{StoreError, StoreErrorKind};

/// Writes that may wait for their turn; beyond it callers wait, within their deadline.
const QUEUE: usize = 1_024;
/// Writes that go out together.
const BATCH: usize = 256;
/// Between two warnings.
const QUIET: Duration = Duration::from_secs(10);

/// How many replicas must have a write, and how long that may take.
#[derive(Debug, Clone)]
pub(super) struct Replicas {
    pub(super) wanted: u32,
    within: Duration,
    /// When the log said last that there are too few, whoever said it.
    said: Arc<Mutex<Option<Instant>>>,
}

impl Replicas {
    /// Two fifths of a call: a write that comes just behind a `WAIT` that nobody answers has
    /// its own answer in time.
    pub(super) fn new(wanted: u32, timeout: Duration) -> Self {
        let within = (timeout * 2 / 5).max(Duration::from_millis(1));
        Self {
            wanted,
            within,
            said: Arc::default(),
        }
    }

    fn say(&self, error: &StoreError) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= QUIET) {
            *said = Some(Instant::now());
            tracing::warn!(event = "replicas_missing", wanted = self.wanted, "{error}");
        }
    }

    fn command(&self) -> Cmd {
        let millis = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted).arg(millis.max(1));
        wait
    }
}

/// A connection for writes that wait.
#[derive(Debug)]
pub(super) struct Confirmed {
    slot: Arc<Slot>,
    replicas: Replicas,
    queue: Mutex<Option<mpsc::Sender<Ask>>>,
}

/// One caller's commands.
struct Ask {
    commands: Pipeline,
    said: oneshot::Sender<Result<Answers, Trouble>>,
}

/// The replies, and what will say whether replicas have what was written.
pub(super) struct Answers {
    pub(super) replies: Vec<Value>,
    pub(super) confirmation: Confirmation,
}

/// Whether enough replicas have a write. Need not be asked.
pub(super) struct Confirmation(Option<(oneshot::Receiver<Result<(), StoreError>>, u32)>);

impl Confirmation {
    /// Where no replica is asked for.
    pub(super) fn not_needed() -> Self {
        Self(None)
    }

    /// Waits until the replicas have answered.
    pub(super) async fn given(self) -> Result<(), StoreError> {
        let Some((confirmed, wanted)) = self.0 else {
            return Ok(());
        };
        let confirmed = confirmed.await;
        confirmed.unwrap_or_else(|_| Err(errors::unconfirmed("the connection broke", wanted)))
    }
}

impl Confirmed {
    pub(super) fn new(target: Arc<Target>, replicas: Replicas) -> Self {
        Self {
            slot: Arc::new(Slot::new(target)),
            replicas,
            queue: Mutex::new(None),
        }
    }

    /// The connection, for what must be known of its server beforehand.
    pub(super) async fn live(&self) -> Result<Arc<Live>, StoreError> {
        self.slot.live().await
    }

    /// Whether somebody has looked over it.
    pub(super) async fn has_looked(&self, live: &Arc<Live>) -> Result<bool, StoreError> {
        self.slot.has_looked(live).await
    }

    /// It leads to a replica, if it is this one.
    pub(super) fn read_only(&self, live: &Arc<Live>) {
        self.slot.read_only(live);
    }

    /// Remembers what an error says about the connection, if it is this one.
    pub(super) fn answered(&self, live: &Arc<Live>, error: ServerError) {
        self.slot.answered(live, error);
    }

    /// Sends commands and answers their replies; the confirmation comes later.
    pub(super) async fn pipeline(&self, commands: Pipeline) -> Result<Answers, Trouble> {
        let (said, answer) = oneshot::channel();
        let given_up = || {
            let message = "the connection for confirmed writes was given up";
            Trouble::Lost(StoreError::not_sent(StoreErrorKind::Unavailable, message))
        };
        let ask = Ask { commands, said };
        self.queue().send(ask).await.map_err(|_| given_up())?;
        // It may have gone down with its runtime before or after it was sent.
        let lost = |_| {
            let message = "the connection for confirmed writes was lost";
            Trouble::Lost(StoreError::maybe_sent(StoreErrorKind::Unavailable, message))
        };
        answer.await.map_err(lost)?
    }

    /// The way to the task, which is started on the caller's runtime if there is none.
    fn queue(&self) -> mpsc::Sender<Ask> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return queue.clone();
        }
        let (sender, asks) = mpsc::channel(QUEUE);
        let writer = Writer {
            slot: Arc::clone(&self.slot),
            replicas: self.replicas.clone(),
        };
        tokio::spawn(writer.run(asks));
        *queue = Some(sender.clone());
        sender
    }
}

/// The task: one batch after another. It ends with its last sender.
struct Writer {
    slot: Arc<Slot>,
    replicas: Replicas,
}

impl Writer {
    async fn run(self, mut asks: mpsc::Receiver<Ask>) {
        let mut batch = Vec::new();
        while asks.recv_many(&mut batch, BATCH).await > 0 {
            // Whoever has gone meanwhile wants nothing to be written.
            batch.retain(|ask: &Ask| !ask.said.is_closed());
            if !batch.is_empty() {
                self.write(std::mem::take(&mut batch)).await;
            }
        }
    }

    async fn write(&self, batch: Vec<Ask>) {
        let live = match self.slot.live().await {
            Ok(live) => live,
            Err(error) => {
                for ask in batch {
                    answer(ask.said, Err(Trouble::Lost(error.clone())));
                }
                return;
            }
        };
        let mut all = Pipeline::with_capacity(batch.len() * 2);
        for command in batch.iter().flat_map(|ask| ask.commands.cmd_iter()) {
            all.add_command(command.clone());
        }
        let wait = self.replicas.command();
        let slot = Arc::clone(&self.slot);
        let mut waiting = Vec::new();
        let written = async {
            let said = slot.pipeline(&live, &all).await;
            waiting = distributed(batch, said, self.replicas.wanted);
        };
        // In this order: what is polled first is sent first.
        let ((), said) = tokio::join!(biased; written, slot.command(&live, &wait));
        let confirmed = self.judged(said);
        for waits in waiting {
            let _gone = waits.send(confirmed.clone()).is_err();
        }
    }

    /// What the reply to `WAIT` says of every write before it.
    fn judged(&self, said: Result<Value, Trouble>) -> Result<(), StoreError> {
        let wanted = self.replicas.wanted;
        let confirmed = match said {
            Ok(Value::Int(count)) if count >= i64::from(wanted) => Ok(()),
            Ok(Value::Int(count)) => Err(errors::unconfirmed(&count.to_string(), wanted)),
            Ok(_) => Err(errors::odd("WAIT")),
            Err(Trouble::Answered(error)) => Err(errors::unconfirmed(errors::code(&error), wanted)),
            Err(Trouble::Replica) => Err(errors::unconfirmed("a replica", wanted)),
            Err(Trouble::Lost(error)) => {
                return Err(StoreError::maybe_sent(error.kind, error.message));
            }
        };
        if let Err(error) = &confirmed {
            self.replicas.say(error);
        }
        confirmed
    }
}

/// Gives each caller its replies; answers who will be told of the confirmation.
fn distributed(
    batch: Vec<Ask>,
    said: Result<Vec<Value>, Trouble>,
    wanted: u32,
) -> Vec<oneshot::Sender<Result<(), StoreError>>> {
    let mut waiting = Vec::with_capacity(batch.len());
    let mut replies = match said {
        Ok(replies) => replies.into_iter(),
        Err(trouble) => {
            for ask in batch {
                answer(ask.said, Err(trouble.clone()));
            }
            return waiting;
        }
    };
    for ask in batch {
        let replies = replies.by_ref().take(ask.commands.len()).collect();
        let (confirm, confirmed) = oneshot::channel();
        waiting.push(confirm);
        let confirmation = Confirmation(Some((confirmed, wanted)));
        answer(
            ask.said,
            Ok(Answers {
                replies,
                confirmation,
            }),
        );
    }
    waiting
}

fn answer(said: oneshot::Sender<Result<Answers, Trouble>>, with: Result<Answers, Trouble>) {
    let _gone = said.send(with).is_err();
}
