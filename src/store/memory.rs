//! `memory:`: records in this process, for tests and trials.
//!
//! Owns a map in shards. Invariant: [`transition()`] runs inside the shard's lock, so every
//! operation is atomic; the clock is tokio's, so tests can pause it. At most `max_records` are
//! kept: a claim that would need one more is refused, nothing is ever evicted. Everything else
//! (settling, renewing, abandoning) works beyond the bound, because it speaks of work already done.
//!
//! Deliberately absent: persistence. A restart forgets every key.
//!
//! Read next: `file/`, the same contract on disk.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::ready;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use super::{Store, StoreError, StoreErrorKind, StoreFuture};
use crate::idempotency::transition::{Entry, millis};
use crate::idempotency::{Operation, Outcome, RecordKey, transition};

const SHARDS: usize = 64;
/// Expired records that each writing operation clears from its shard, so that the map shrinks even
/// if nobody sweeps. More than one, or a steady flow would never catch up.
const REAPED_PER_WRITE: usize = 2;
/// Expired records looked for before a claim is refused as full.
const REAPED_WHEN_FULL: usize = 1_000;

/// Records in this process's memory. See the module.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    records: AtomicU64,
    max_records: u64,
    started: Instant,
    next_sweep: AtomicUsize,
}

/// The records, and their ends in order: what makes a sweep cost what it removes.
#[derive(Default)]
struct Shard {
    records: HashMap<RecordKey, Entry>,
    ends: BTreeSet<(u64, RecordKey)>,
}

enum Ran {
    Answered(Outcome),
    /// A claim for which there is no room, handed back.
    Full(Operation),
}

impl MemoryStore {
    /// An empty store for at most `max_records`.
    pub fn new(max_records: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            records: AtomicU64::new(0),
            max_records,
            started: Instant::now(),
            next_sweep: AtomicUsize::new(0),
        }
    }

    /// Records kept, expired ones that no sweep has met included.
    pub fn len(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes at most `limit` expired records and says how many. Goes round the shards, so that
    /// small limits reach all of them in turn.
    pub fn sweep(&self, limit: usize) -> usize {
        let now = self.now();
        let first = self.next_sweep.fetch_add(1, Ordering::Relaxed);
        let mut swept = 0;
        for step in 0..SHARDS {
            if swept >= limit {
                break;
            }
            if let Ok(mut shard) = self.shard_at(first.wrapping_add(step)) {
                swept += self.reap(&mut shard, now, limit - swept);
            }
        }
        swept
    }

    fn run(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        let refused = match self.try_run(key, operation)? {
            Ran::Answered(outcome) => return Ok(outcome),
            Ran::Full(refused) => refused,
        };
        // What has expired does not count; the lock is free again, so all shards are looked at.
        if self.sweep(REAPED_WHEN_FULL) > 0
            && let Ran::Answered(outcome) = self.try_run(key, refused)?
        {
            return Ok(outcome);
        }
        let message = format!("the store holds {} records, its bound", self.max_records);
        Err(StoreError::not_sent(StoreErrorKind::Full, message))
    }

    fn try_run(&self, key: RecordKey, operation: Operation) -> Result<Ran, StoreError> {
        let place = usize::from(key.0[0]) ^ usize::from(key.0[31]);
        let mut shard = self.shard_at(place)?;
        let now = self.now();
        let known = shard.records.get(&key).cloned();
        let ended_at = known.as_ref().map(|entry| entry.ends_at);
        let bounded = matches!(operation, Operation::Claim(_));
        if known.is_none() && !self.reserve(bounded) {
            return Ok(Ran::Full(operation));
        }
        let (entry, outcome) = transition(known, operation, now);
        match entry {
            // Absent to the caller; if something expired lies there, a sweep takes it.
            None if ended_at.is_none() => self.release(),
            None => {}
            Some(entry) if ended_at == Some(entry.ends_at) => {
                shard.records.insert(key, entry);
            }
            Some(entry) => {
                if let Some(ended_at) = ended_at {
                    shard.ends.remove(&(ended_at, key));
                }
                shard.ends.insert((entry.ends_at, key));
                shard.records.insert(key, entry);
                self.reap(&mut shard, now, REAPED_PER_WRITE);
            }
        }
        Ok(Ran::Answered(outcome))
    }

    fn reap(&self, shard: &mut Shard, now: u64, limit: usize) -> usize {
        let mut reaped = 0;
        while reaped < limit {
            match shard.ends.first() {
                Some((ends_at, _)) if *ends_at <= now => {}
                _ => break,
            }
            if let Some((_, key)) = shard.ends.pop_first() {
                shard.records.remove(&key);
                self.release();
                reaped += 1;
            }
        }
        reaped
    }

    /// Counts a record that may come into being; `bounded` ones only while there is room.
    fn reserve(&self, bounded: bool) -> bool {
        let more = |count: u64| (!bounded || count < self.max_records).then_some(count + 1);
        let order = Ordering::Relaxed;
        self.records.fetch_update(order, order, more).is_ok()
    }

    fn release(&self) {
        self.records.fetch_sub(1, Ordering::Relaxed);
    }

    /// A shard whose lock is poisoned answers errors: nobody knows what is in it.
    fn shard_at(&self, place: usize) -> Result<MutexGuard<'_, Shard>, StoreError> {
        let lost = || StoreError::not_sent(StoreErrorKind::Internal, "a shard is poisoned");
        let shard = self.shards.get(place % SHARDS).ok_or_else(lost)?;
        shard.lock().map_err(|_| lost())
    }

    fn now(&self) -> u64 {
        millis(self.started.elapsed())
    }
}

impl Store for MemoryStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(async move { self.run(key, operation) })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn listen(&self, _key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn unlisten(&self, _key: RecordKey) {}
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.len())
            .field("max_records", &self.max_records)
            .finish_non_exhaustive()
    }
}
