//! The one thread that writes the file: takes what waits, commits it together, then answers.
//!
//! Invariant: an answer that rests on a change of this batch leaves after the commit; all others
//! rest on what earlier commits made durable and leave at once. A batch that changed nothing is not
//! committed at all, so a replay costs no `fsync` of its own.
//!
//! After an error of the file nothing is acknowledged any more: every command is answered with that
//! error. Only a full disk is tried again, with a fresh database, because there the pages that were
//! written are known to be good; after a failed `fsync` the kernel may show pages that are not on
//! disk, and only a restart (better, a look at the disk) helps.
//!
//! Deliberately absent: what an operation does (`tables.rs`).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redb::Database;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::open::Opener;
use super::tables::{Contents, Failure, Tables};
use crate::clock::Clock;
use crate::idempotency::record::State;
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::store::{StoreError, StoreErrorKind};

/// Commands in one transaction at most.
const BATCH: usize = 512;
/// Body octets after which no further command joins a batch.
const BATCH_OCTETS: usize = 8 * 1024 * 1024;
/// Expired records cleared for each record written, so that the file does not grow unswept.
const REAPED_PER_RECORD: usize = 2;
/// The pauses between attempts to open the file again after the disk was full.
const REOPEN_FIRST: Duration = Duration::from_secs(1);
const REOPEN_LAST: Duration = Duration::from_secs(30);

/// What is asked of the writer.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is nearly all of them"
)]
pub(super) enum Task {
    Apply {
        key: RecordKey,
        operation: Operation,
    },
    Sweep {
        limit: usize,
    },
    Ping,
}

/// What it answers.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is nearly all of them"
)]
pub(super) enum Done {
    Outcome(Outcome),
    Swept(usize),
    Alive,
}

type Reply = oneshot::Sender<Result<Done, StoreError>>;

/// A task and who waits for it.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) task: Task,
    pub(super) reply: Reply,
}

/// The thread's state.
pub(super) struct Writer {
    file: Source,
    opener: Opener,
    contents: Contents,
    clock: Arc<dyn Clock>,
    commits: Arc<AtomicU64>,
    last_now: u64,
}

enum Source {
    Open(Database),
    Failed {
        error: StoreError,
        /// `None`: not without a restart.
        again: Option<(Instant, Duration)>,
    },
}

impl Writer {
    pub(super) fn new(
        database: Database,
        opener: Opener,
        contents: Contents,
        clock: Arc<dyn Clock>,
        commits: Arc<AtomicU64>,
    ) -> Self {
        Self {
            file: Source::Open(database),
            opener,
            contents,
            clock,
            commits,
            last_now: 0,
        }
    }

    /// Until every sender is gone.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(first) = commands.blocking_recv() {
            let mut weight = octets(&first.task);
            let mut batch = vec![first];
            while batch.len() < BATCH && weight < BATCH_OCTETS {
                let Ok(command) = commands.try_recv() else {
                    break;
                };
                weight += octets(&command.task);
                batch.push(command);
            }
            self.handle(batch);
        }
    }

    /// One batch, whole.
    pub(super) fn handle(&mut self, batch: Vec<Command>) {
        self.reopen_if_due();
        let now = self.now();
        let mut batch = Batch {
            waiting: batch.into_iter(),
            changed: Vec::new(),
            dirty: HashSet::new(),
        };
        let failed = match &self.file {
            Source::Failed { error, .. } => Some(error.clone()),
            Source::Open(database) => match batch.commit(database, &self.contents, now) {
                Ok(false) => None,
                Ok(true) => {
                    self.commits.fetch_add(1, Ordering::Relaxed);
                    None
                }
                Err(error) => Some(self.fail(&error)),
            },
        };
        match failed {
            None => batch.acknowledge(),
            Some(error) => batch.refuse(&error),
        }
    }

    /// Wall time that never runs backwards here.
    fn now(&mut self) -> u64 {
        self.last_now = self.last_now.max(self.clock.unix_millis());
        self.last_now
    }

    /// Lets go of the database: whatever it says from now on, it is not believed.
    fn fail(&mut self, error: &Broken) -> StoreError {
        let full = is_full(&error.cause);
        let (kind, advice) = if full {
            (StoreErrorKind::Full, "it is tried again")
        } else {
            (StoreErrorKind::Unavailable, "look at the disk and restart")
        };
        let message = format!("the store's file failed, {advice}: {}", error.cause);
        tracing::error!("{message}");
        let error = StoreError {
            kind,
            delivery: error.delivery,
            message,
        };
        self.file = Source::Failed {
            // Later commands are refused before anything is tried.
            error: StoreError::not_sent(kind, error.message.clone()),
            again: full.then(|| (Instant::now() + REOPEN_FIRST, REOPEN_FIRST)),
        };
        error
    }

    fn reopen_if_due(&mut self) {
        let Source::Failed { again, .. } = &mut self.file else {
            return;
        };
        let Some((at, pause)) = again else {
            return;
        };
        if Instant::now() < *at {
            return;
        }
        match (self.opener)() {
            Ok(database) => {
                tracing::warn!("the store's file is open again");
                self.file = Source::Open(database);
            }
            Err(error) => {
                tracing::error!("the store's file does not open: {error}");
                let pause = pause.saturating_mul(2).min(REOPEN_LAST);
                *again = Some((Instant::now() + pause, pause));
            }
        }
    }
}

/// A transaction that failed, and whether its commit had begun.
struct Broken {
    cause: redb::Error,
    delivery: crate::store::Delivery,
}

impl<E: Into<redb::Error>> From<E> for Broken {
    fn from(cause: E) -> Self {
        Self {
            cause: cause.into(),
            delivery: crate::store::Delivery::NotSent,
        }
    }
}

/// One batch on its way through one transaction.
struct Batch {
    waiting: std::vec::IntoIter<Command>,
    /// Answers that rest on this transaction.
    changed: Vec<(Reply, Result<Done, StoreError>)>,
    /// Records this transaction changed.
    dirty: HashSet<RecordKey>,
}

impl Batch {
    /// Runs everything and commits if anything changed.
    fn commit(
        &mut self,
        database: &Database,
        contents: &Contents,
        now: u64,
    ) -> Result<bool, Broken> {
        let transaction = database.begin_write()?;
        let changed = {
            let mut tables = Tables::open(&transaction, contents)?;
            self.run(&mut tables, now)?;
            if !self.dirty.is_empty() {
                tables.sweep(now, self.dirty.len().saturating_mul(REAPED_PER_RECORD))?;
            }
            tables.changed()
        };
        if !changed {
            transaction.abort()?;
            return Ok(false);
        }
        transaction.commit().map_err(|error| Broken {
            cause: error.into(),
            delivery: crate::store::Delivery::MaybeSent,
        })?;
        Ok(true)
    }

    fn run(&mut self, tables: &mut Tables<'_>, now: u64) -> Result<(), Broken> {
        for Command { task, reply } in self.waiting.by_ref() {
            // Nobody waits for it any more: not applying it is one of the two things the caller
            // has to reckon with, and the cheaper one.
            if reply.is_closed() {
                continue;
            }
            match execute(tables, task, now, &mut self.dirty) {
                Ok((done, true)) => self.changed.push((reply, done)),
                Ok((done, false)) => answer(reply, done),
                Err(error) => {
                    // Not applied, like everything before it.
                    let pending = StoreError::not_sent(StoreErrorKind::Internal, "pending");
                    self.changed.push((reply, Err(pending)));
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn acknowledge(self) {
        for (reply, result) in self.changed {
            answer(reply, result);
        }
    }

    fn refuse(self, error: &StoreError) {
        for (reply, _) in self.changed {
            answer(reply, Err(error.clone()));
        }
        for Command { reply, .. } in self.waiting {
            let never_tried = StoreError::not_sent(error.kind, error.message.clone());
            answer(reply, Err(never_tried));
        }
    }
}

/// The answer, and whether it has to wait for the commit.
fn execute(
    tables: &mut Tables<'_>,
    task: Task,
    now: u64,
    dirty: &mut HashSet<RecordKey>,
) -> Result<(Result<Done, StoreError>, bool), redb::Error> {
    match task {
        Task::Ping => Ok((Ok(Done::Alive), false)),
        Task::Sweep { limit } => {
            let count = tables.sweep(now, limit)?;
            Ok((Ok(Done::Swept(count)), count > 0))
        }
        Task::Apply { key, operation } => match tables.apply(key, operation, now) {
            Ok((outcome, changed)) => {
                if changed {
                    dirty.insert(key);
                }
                Ok((Ok(Done::Outcome(outcome)), dirty.contains(&key)))
            }
            Err(Failure::Operation(error)) => Ok((Err(error), dirty.contains(&key))),
            Err(Failure::Database(error)) => Err(error),
        },
    }
}

/// A caller that has left is no fault.
fn answer(reply: Reply, result: Result<Done, StoreError>) {
    drop(reply.send(result));
}

fn octets(task: &Task) -> usize {
    match task {
        Task::Apply {
            operation: Operation::Settle { record },
            ..
        } => match &record.state {
            State::Completed { answer, .. } => answer.body.len(),
            _ => 0,
        },
        _ => 0,
    }
}

fn is_full(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else {
        return false;
    };
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}
