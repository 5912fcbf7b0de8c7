//! What is in the file: records by key, and keys by the time at which they end.
//!
//! Owns the two tables for the length of one transaction. Invariant: both say the same; a record is
//! `ends_at` (8 octets, big endian) and the codec's form. Expired is decided by `ends_at` alone, so
//! even a record that cannot be read goes away at its end, and not before.
//!
//! Deliberately absent: transactions themselves (`writer.rs`).

use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};

use crate::idempotency::transition::Entry;
use crate::idempotency::{Operation, Outcome, RecordKey, transition};
use crate::store::vault::Vault;
use crate::store::{StoreError, StoreErrorKind};

pub(super) const RECORDS: TableDefinition<'static, &[u8; 32], &[u8]> =
    TableDefinition::new("records");
pub(super) const ENDS: TableDefinition<'static, (u64, &[u8; 32]), ()> =
    TableDefinition::new("ends");

/// Expired records removed in one go at most, so that no transaction grows long.
pub(super) const SWEEP_AT_MOST: usize = 1_000;

/// What the tables may hold, and how it is stored.
pub(super) struct Contents {
    pub(super) max_records: u64,
    pub(super) vault: Arc<Vault>,
}

/// The open tables of one transaction.
pub(super) struct Tables<'txn> {
    records: Table<'txn, &'static [u8; 32], &'static [u8]>,
    ends: Table<'txn, (u64, &'static [u8; 32]), ()>,
    contents: &'txn Contents,
    /// Expired records removed so far.
    swept: usize,
    changed: bool,
}

/// Why an operation has no outcome.
#[derive(Debug)]
pub(super) enum Failure {
    /// This operation alone.
    Operation(StoreError),
    /// The file; nothing of this transaction may be believed.
    Database(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(
        transaction: &'txn WriteTransaction,
        contents: &'txn Contents,
    ) -> Result<Self, redb::Error> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            ends: transaction.open_table(ENDS)?,
            contents,
            swept: 0,
            changed: false,
        })
    }

    /// Whether anything was written: if not, there is nothing to commit.
    pub(super) fn changed(&self) -> bool {
        self.changed
    }

    /// Applies one operation and says whether it changed the record.
    pub(super) fn apply(
        &mut self,
        key: RecordKey,
        operation: Operation,
        now: u64,
    ) -> Result<(Outcome, bool), Failure> {
        let stored = self.load(key)?;
        if stored.is_none() && matches!(operation, Operation::Claim(_)) {
            self.make_room(now)?;
        }
        let ended_at = stored.as_ref().map(|(ends_at, _)| *ends_at);
        let before = stored
            .filter(|(ends_at, _)| *ends_at > now)
            .map(|(ends_at, octets)| self.read(key, ends_at, &octets))
            .transpose()
            .map_err(Failure::Operation)?;
        let (after, outcome) = transition(before.clone(), operation, now);
        let Some(entry) = after.filter(|after| Some(after) != before.as_ref()) else {
            return Ok((outcome, false));
        };
        self.save(key, ended_at, &entry)?;
        Ok((outcome, true))
    }

    /// Removes at most `limit` expired records, the oldest first, and no more in one transaction
    /// than [`SWEEP_AT_MOST`].
    pub(super) fn sweep(&mut self, now: u64, limit: usize) -> Result<usize, redb::Error> {
        let left = SWEEP_AT_MOST.saturating_sub(self.swept);
        self.remove(now, limit.min(left))
    }

    fn remove(&mut self, now: u64, limit: usize) -> Result<usize, redb::Error> {
        let mut expired = Vec::new();
        for item in self.ends.range(..=(now, &[0xff; 32]))?.take(limit) {
            let (end, ()) = item.map(|(end, unit)| (end, unit.value()))?;
            let (ends_at, key) = end.value();
            expired.push((ends_at, *key));
        }
        for (ends_at, key) in &expired {
            self.ends.remove((*ends_at, key))?;
            self.records.remove(key)?;
        }
        self.swept += expired.len();
        self.changed |= !expired.is_empty();
        Ok(expired.len())
    }

    fn read(&self, key: RecordKey, ends_at: u64, octets: &Bytes) -> Result<Entry, StoreError> {
        let record = self.contents.vault.decode(key, octets);
        let record = record.map_err(|error| unreadable(&error.to_string()))?;
        Ok(Entry { record, ends_at })
    }

    fn make_room(&mut self, now: u64) -> Result<(), Failure> {
        let room = self.records.len()? < self.contents.max_records
            || self.sweep(now, SWEEP_AT_MOST)? > 0
            // Its own place at least.
            || self.remove(now, 1)? > 0;
        if room {
            return Ok(());
        }
        let message = format!(
            "the store holds {} records, its bound",
            self.contents.max_records
        );
        let full = StoreError::not_sent(StoreErrorKind::Full, message);
        Err(Failure::Operation(full))
    }

    fn load(&self, key: RecordKey) -> Result<Option<(u64, Bytes)>, Failure> {
        let Some(found) = self.records.get(&key.0)? else {
            return Ok(None);
        };
        let Some((ends_at, octets)) = found.value().split_first_chunk() else {
            return Err(Failure::Operation(unreadable("cut short")));
        };
        let octets = Bytes::copy_from_slice(octets);
        Ok(Some((u64::from_be_bytes(*ends_at), octets)))
    }

    fn save(
        &mut self,
        key: RecordKey,
        ended_at: Option<u64>,
        entry: &Entry,
    ) -> Result<(), Failure> {
        let mut value = entry.ends_at.to_be_bytes().to_vec();
        let stored = self
            .contents
            .vault
            .encode(key, &entry.record)
            .map_err(Failure::Operation)?;
        value.extend_from_slice(&stored);
        self.records.insert(&key.0, value.as_slice())?;
        if ended_at != Some(entry.ends_at) {
            if let Some(ended_at) = ended_at {
                self.ends.remove((ended_at, &key.0))?;
            }
            self.ends.insert((entry.ends_at, &key.0), ())?;
        }
        self.changed = true;
        Ok(())
    }
}

fn unreadable(why: &str) -> StoreError {
    let message = format!("a stored record cannot be read: {why}");
    StoreError::not_sent(StoreErrorKind::Unreadable, message)
}
