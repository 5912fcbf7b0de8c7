//! `file:PATH`: an embedded, crash-safe store for one process.
//!
//! Owns one redb file under an exclusive lock, and one thread that writes it. Invariant: an answer
//! leaves this room only once everything it rests on is durable; an operation whose transaction did
//! not commit is answered with an error, never with an outcome. Operations wait in a bounded queue
//! and are committed together, so one `fsync` serves all callers that wait for it.
//!
//! The clock is wall time (records outlive the process, so it has to be), held back from running
//! backwards while the process lives. After a restart under a clock set back, records live longer
//! by that step: the safe side.
//!
//! Deliberately absent: eviction, a second process, compaction (the file keeps its largest size
//! and reuses the room), sharing with readers.
//!
//! Read next: `writer.rs` (the thread), `tables.rs` (what is in the file), `open.rs`.

mod open;
mod tables;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

use tokio::sync::{mpsc, oneshot};

use super::vault::Vault;
use super::{OpenError, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::clock::Clock;
use crate::idempotency::{Operation, Outcome, RecordKey};
use open::Opener;
use tables::Contents;
use writer::{Command, Done, Task, Writer};

/// Commands that may wait for the writer; beyond it callers wait, within their deadline.
const QUEUE: usize = 1_024;

/// Records in a file. Dropping it ends the writer and releases the lock. See the module.
pub struct FileStore {
    path: PathBuf,
    commits: Arc<AtomicU64>,
    /// `None` only while it is dropped: the writer ends when the last sender is gone.
    queue: Option<mpsc::Sender<Command>>,
    writer: Option<JoinHandle<()>>,
}

impl FileStore {
    /// Opens or creates the file. The folder must exist.
    pub fn open(
        path: &Path,
        max_records: u64,
        vault: Arc<Vault>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let contents = Contents { max_records, vault };
        Self::open_with(path, open::opener(path), contents, clock)
    }

    fn open_with(
        path: &Path,
        opener: Opener,
        contents: Contents,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let database = opener()?;
        let (queue, commands) = mpsc::channel(QUEUE);
        let commits = Arc::new(AtomicU64::new(0));
        let writer = Writer::new(database, opener, contents, clock, Arc::clone(&commits));
        let writer = Builder::new()
            .name("file-store".to_owned())
            .spawn(move || writer.run(commands))
            .map_err(|error| {
                OpenError::Unreachable(format!("the file store's thread does not start: {error}"))
            })?;
        Ok(Self {
            path: path.to_owned(),
            commits,
            queue: Some(queue),
            writer: Some(writer),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Durable transactions so far. Many operations share one.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Removes expired records, at most `limit` and never more than 1,000 at once, and says how
    /// many. Operations go on in between.
    pub async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        match self.ask(Task::Sweep { limit }).await? {
            Done::Swept(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, task: Task) -> Result<Done, StoreError> {
        let gone = || StoreError::not_sent(StoreErrorKind::Internal, "the writer is gone");
        let (reply, answer) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue
            .send(Command { task, reply })
            .await
            .map_err(|_| gone())?;
        let lost = |_| StoreError::maybe_sent(StoreErrorKind::Internal, "the writer died");
        answer.await.map_err(lost)?
    }
}

impl Store for FileStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(async move {
            match self.ask(Task::Apply { key, operation }).await? {
                Done::Outcome(outcome) => Ok(outcome),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.ask(Task::Ping).await.map(|_| ()) })
    }

    fn listen(&self, _key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unlisten(&self, _key: RecordKey) {}
}

impl Drop for FileStore {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(event = "fault", "the file store's thread panicked");
        }
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("path", &self.path)
            .field("commits", &self.commits())
            .finish_non_exhaustive()
    }
}

fn unexpected(done: &Done) -> StoreError {
    let message = format!("the writer answered something else: {done:?}");
    StoreError::maybe_sent(StoreErrorKind::Internal, message)
}

#[cfg(test)]
mod sweep_tests;
#[cfg(test)]
mod tests;
