//! How each operation is carried out on PostgreSQL.
//!
//! Invariant: the answer is what [`transition()`] would have answered at the moment the server
//! carried the operation out. A claim of what is absent, a replay, a settle, a renewal are one
//! statement. Everything else reads, lets `transition()` itself decide, and writes only if the row
//! is still as it was read: every change there is alters its state, its owner or its end.
//!
//! Deliberately absent: the loop around a lost reply. Every operation here may be sent again.

use bytes::Bytes;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::errors;
use super::mark::Looked;
use super::pool::{Lent, Trouble};
use super::session::Argument;
use super::statements::{CLAIM, INSERT, NOTIFY, READ, RENEW, SETTLE, SWAP};
use super::{Shared, schema};
use crate::idempotency::transition::{Claim, Entry, millis, rank};
use crate::idempotency::{Operation, Outcome, Record, RecordKey, codec, transition};
use crate::store::loss::held_off;
use crate::store::vault::Vault;
use crate::store::{StoreError, StoreErrorKind};

/// Rounds of reading and writing before a record that never stands still is an error.
const ROUNDS: usize = 5;
/// Milliseconds far below where the server's sums overflow.
const LONGEST: u64 = 1 << 53;

impl Shared {
    pub(super) async fn run(
        &self,
        key: RecordKey,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        let mut lent = self.pool.lend().await?;
        if matches!(operation, Operation::Claim(_) | Operation::TakeOver { .. }) {
            self.may_give_out(&mut lent).await?;
        }
        match self.attempt(&mut lent, key, &operation).await {
            Err(Failed::Asked(Trouble::Answered(error))) if errors::is_missing_table(&error) => {
                schema::create_if_never_seen(self, &mut lent).await?;
                let again = self.attempt(&mut lent, key, &operation).await;
                again.map_err(StoreError::from)
            }
            Ok(outcome) => {
                self.table.has_been_seen();
                Ok(outcome)
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// Whether absent keys may be given out over this session.
    async fn may_give_out(&self, lent: &mut Lent) -> Result<(), StoreError> {
        if let Some(mark) = self.mark.as_ref().filter(|_| !lent.has_looked) {
            let looked = mark.look(lent).await;
            let looked = looked.map_err(|error| StoreError::not_sent(error.kind, error.message))?;
            if looked == Looked::Standby {
                lent.end();
                let message = "PostgreSQL is a standby, which takes no records";
                return Err(StoreError::not_sent(StoreErrorKind::Refused, message));
            }
        }
        // The session may have begun just now, and shown a loss.
        match self.loss.left() {
            Some(_) => Err(held_off()),
            None => Ok(()),
        }
    }

    async fn attempt(
        &self,
        lent: &mut Lent,
        key: RecordKey,
        operation: &Operation,
    ) -> Result<Outcome, Failed> {
        match operation {
            Operation::Claim(claim) => claim_of(lent, key, claim, operation).await,
            Operation::Settle { record } => settle(lent, key, record, operation).await,
            Operation::Renew { record, .. } => renew(lent, key, record, operation).await,
            Operation::Read
            | Operation::TakeOver { .. }
            | Operation::Abandon { .. }
            | Operation::Operate { .. } => decide(lent, key, operation).await,
        }
    }
}

async fn claim_of(
    lent: &mut Lent,
    key: RecordKey,
    claim: &Claim,
    operation: &Operation,
) -> Result<Outcome, Failed> {
    let record = claim.record(1);
    let stored = lent.vault().encode(key, &record)?;
    let retention = retention(&record);
    for _ in 0..ROUNDS {
        let arguments: [Argument<'_>; 4] = [
            (&key.0.as_slice(), Type::BYTEA),
            (&claim.owner.0.as_slice(), Type::BYTEA),
            (&retention, Type::INT8),
            (&stored.as_ref(), Type::BYTEA),
        ];
        let rows = lent.query(CLAIM, &arguments).await?;
        // Somebody wrote it between this statement's beginning and its insert.
        let Some(row) = rows.first() else { continue };
        let Some(found) = Found::read(lent.vault(), key, row)? else {
            return Ok(Outcome::Acquired { attempt: 1 });
        };
        return match settled_by(lent, key, Some(found), operation).await? {
            Some(outcome) => Ok(outcome),
            None => decide(lent, key, operation).await,
        };
    }
    Err(restless())
}

async fn settle(
    lent: &mut Lent,
    key: RecordKey,
    record: &Record,
    operation: &Operation,
) -> Result<Outcome, Failed> {
    let columns = Columns::of(lent.vault(), key, record)?;
    let rank = i32::from(rank(&record.state));
    let arguments: [Argument<'_>; 7] = [
        (&key.0.as_slice(), Type::BYTEA),
        (&columns.owner.as_slice(), Type::BYTEA),
        (&rank, Type::INT4),
        (&columns.state, Type::INT2),
        (&columns.attempt, Type::INT8),
        (&columns.retention, Type::INT8),
        (&columns.record.as_ref(), Type::BYTEA),
    ];
    match and_wake(lent, key, SETTLE, &arguments).await? {
        0 => decide(lent, key, operation).await,
        _ => Ok(Outcome::Stored { reasserted: false }),
    }
}

async fn renew(
    lent: &mut Lent,
    key: RecordKey,
    record: &Record,
    operation: &Operation,
) -> Result<Outcome, Failed> {
    let arguments: [Argument<'_>; 2] = [
        (&key.0.as_slice(), Type::BYTEA),
        (&record.owner.0.as_slice(), Type::BYTEA),
    ];
    match lent.execute(RENEW, &arguments).await? {
        0 => decide(lent, key, operation).await,
        _ => Ok(Outcome::Stored { reasserted: false }),
    }
}

/// Reads, asks the specification, writes if nothing has changed since.
async fn decide(lent: &mut Lent, key: RecordKey, operation: &Operation) -> Result<Outcome, Failed> {
    for _ in 0..ROUNDS {
        let rows = lent
            .query(READ, &[(&key.0.as_slice(), Type::BYTEA)])
            .await?;
        let read = |row| Found::read(lent.vault(), key, row);
        let found = rows.first().map(read).transpose()?.flatten();
        if let Some(outcome) = settled_by(lent, key, found, operation).await? {
            return Ok(outcome);
        }
    }
    Err(restless())
}

/// What the specification says of a row that was read, once it is written. `None`: the row has
/// changed meanwhile.
async fn settled_by(
    lent: &mut Lent,
    key: RecordKey,
    found: Option<Found>,
    operation: &Operation,
) -> Result<Option<Outcome>, Failed> {
    let now = found.as_ref().map_or(0, |found| found.now);
    let before = found.as_ref().map(|found| found.entry.clone());
    let alive = before.clone().filter(|entry| entry.ends_at > now);
    let (after, outcome) = transition(before, operation.clone(), now);
    let Some(after) = after.filter(|after| Some(after) != alive.as_ref()) else {
        return Ok(Some(outcome));
    };
    let wakes = !matches!(operation, Operation::Claim(_) | Operation::TakeOver { .. });
    let written = write(lent, key, found.as_ref(), &after, wakes).await?;
    Ok(written.then_some(outcome))
}

async fn write(
    lent: &mut Lent,
    key: RecordKey,
    found: Option<&Found>,
    after: &Entry,
    wakes: bool,
) -> Result<bool, Failed> {
    let columns = Columns::of(lent.vault(), key, &after.record)?;
    let key_octets = key.0.as_slice();
    let (owner, record) = (columns.owner.as_slice(), columns.record.as_ref());
    let new: [Argument<'_>; 6] = [
        (&key_octets, Type::BYTEA),
        (&columns.state, Type::INT2),
        (&owner, Type::BYTEA),
        (&columns.attempt, Type::INT8),
        (&columns.retention, Type::INT8),
        (&record, Type::BYTEA),
    ];
    let Some(found) = found else {
        return changed(lent, key, INSERT, &new, wakes).await;
    };
    let seen = Columns::head(&found.entry.record);
    let seen_owner = seen.owner.as_slice();
    let alive = found.entry.ends_at > found.now;
    let same_end = alive && after.ends_at == found.entry.ends_at;
    let guard: [Argument<'_>; 6] = [
        (&same_end, Type::BOOL),
        (&seen.state, Type::INT2),
        (&seen_owner, Type::BYTEA),
        (&seen.attempt, Type::INT8),
        (&found.ends_at, Type::INT8),
        (&alive, Type::BOOL),
    ];
    let arguments: Vec<_> = new.into_iter().chain(guard).collect();
    changed(lent, key, SWAP, &arguments, wakes).await
}

async fn changed(
    lent: &mut Lent,
    key: RecordKey,
    statement: &str,
    arguments: &[Argument<'_>],
    wakes: bool,
) -> Result<bool, Failed> {
    let rows = if wakes {
        and_wake(lent, key, statement, arguments).await?
    } else {
        lent.execute(statement, arguments).await?
    };
    Ok(rows > 0)
}

/// Tells waiters in other processes afterwards, in the same round trip.
async fn and_wake(
    lent: &mut Lent,
    key: RecordKey,
    statement: &str,
    arguments: &[Argument<'_>],
) -> Result<u64, Trouble> {
    let name = key.to_string();
    let wake: [Argument<'_>; 1] = [(&name, Type::TEXT)];
    lent.execute_then((statement, arguments), (NOTIFY, &wake))
        .await
}

/// A row as it was read, and the server's clock then.
struct Found {
    entry: Entry,
    ends_at: i64,
    now: u64,
}

impl Found {
    /// `None`: a claim's own new row.
    fn read(vault: &Vault, key: RecordKey, row: &Row) -> Result<Option<Self>, StoreError> {
        let odd = |_| errors::odd("a row");
        let Some(record) = row.try_get::<_, Option<&[u8]>>(0).map_err(odd)? else {
            return Ok(None);
        };
        let ends_at: i64 = row.try_get(1).map_err(odd)?;
        let now: i64 = row.try_get(2).map_err(odd)?;
        let record = vault
            .decode(key, &Bytes::copy_from_slice(record))
            .map_err(|error| errors::unreadable(&error.to_string()))?;
        Ok(Some(Self {
            entry: Entry {
                record,
                ends_at: u64::try_from(ends_at).unwrap_or(0),
            },
            ends_at,
            now: u64::try_from(now).unwrap_or(0),
        }))
    }
}

/// A record as columns.
struct Columns {
    state: i16,
    owner: [u8; 16],
    attempt: i64,
    retention: i64,
    record: Bytes,
}

impl Columns {
    fn of(vault: &Vault, key: RecordKey, record: &Record) -> Result<Self, StoreError> {
        Ok(Self {
            record: vault.encode(key, record)?,
            ..Self::head(record)
        })
    }

    /// What a row is compared by.
    fn head(record: &Record) -> Self {
        Self {
            state: i16::from(codec::state_number(&record.state)),
            owner: record.owner.0,
            attempt: i64::from(record.attempt),
            retention: retention(record),
            record: Bytes::new(),
        }
    }
}

fn retention(record: &Record) -> i64 {
    i64::try_from(millis(record.retention).min(LONGEST)).unwrap_or(i64::MAX)
}

/// What ends an operation early.
enum Failed {
    Asked(Trouble),
    Store(StoreError),
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        Self::Asked(trouble)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Asked(trouble) => trouble.into(),
            Failed::Store(error) => error,
        }
    }
}

fn restless() -> Failed {
    let message = format!("the record changed {ROUNDS} times while it was looked at");
    // The server answers; the breaker has no part in this.
    Failed::Store(StoreError::not_sent(StoreErrorKind::Refused, message))
}
