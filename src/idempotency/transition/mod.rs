//! The specification of every store: what each operation does to a record.
//!
//! One pure, total function. The memory and file stores run it inside their lock or transaction;
//! the Redis scripts say the same thing and are tested against it step by step.
//!
//! Laws (`docs/protocol.md` explains them):
//! 1. Atomic, decided by owner token, repeatable. For one owner a record only moves forward: in
//!    flight, unresolved, then completed or failed. A repeated or overtaken operation of that owner
//!    changes nothing and answers as it did.
//! 2. A claim whose reply never came is abandoned with the same token. On an absent record that
//!    writes `failed` for an hour, so that a claim still under way finds it; a claim never takes
//!    over a failed record of its own.
//! 3. Settling, and the renewal of a dispatched owner, write an absent record (the store lost its
//!    memory). An owner not yet dispatched that finds its record absent stops.
//! 4. A record past its end is absent to every operation.
//! 5. Takeovers and operator actions compare the owner seen and set a new owner.
//!
//! `now` and [`Entry::ends_at`] are milliseconds of the store's own clock; nobody else's matters.

use std::time::Duration;

use super::fingerprint::Fingerprint;
use super::record::{Attempt, FailedWhy, Owner, Record, Seen, State};

/// Law 2: how long an abandoned or failed claim blocks its own late arrival.
pub const ABANDONED_RETENTION: Duration = Duration::from_hours(1);

/// A record with the store time at which it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record.
    pub record: Record,
    /// Milliseconds of the store's clock; from then on the record is absent (law 4).
    pub ends_at: u64,
}

impl Entry {
    fn new(record: Record, now: u64) -> Self {
        let ends_at = now.saturating_add(millis(record.retention));
        Self { record, ends_at }
    }
}

/// A claim: everything a new lease needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The new owner's token.
    pub owner: Owner,
    /// Of the claiming request.
    pub fingerprint: Fingerprint,
    /// R14.
    pub lease: Duration,
    /// R22, in flight.
    pub retention: Duration,
    /// R13: the request waited for this key, so a release *by status* is not for it.
    pub waited: bool,
}

impl Claim {
    /// The in-flight record this claim writes.
    pub fn record(&self, attempt: Attempt) -> Record {
        let state = State::InFlight {
            fingerprint: self.fingerprint.clone(),
            lease: self.lease,
        };
        Record {
            owner: self.owner,
            attempt,
            retention: self.retention,
            state,
        }
    }
}

/// What can be asked of a store for one record key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Look, change nothing.
    Read,
    /// Take the lease if the record is absent or failed.
    Claim(Claim),
    /// Take the lease of an unresolved record, or of one that lapsed a further lease ago (R18).
    TakeOver {
        /// The owner and attempt that were read.
        seen: Seen,
        /// The lease wanted.
        claim: Claim,
    },
    /// Keep an in-flight record alive (R14).
    Renew {
        /// The in-flight record as its owner knows it, written again if the store lost it.
        record: Record,
        /// Whether the request may have reached the upstream (law 3).
        dispatched: bool,
    },
    /// End a lease: the record to be.
    Settle {
        /// Completed, not kept, failed or unresolved, with owner and attempt of the lease.
        record: Record,
    },
    /// Take back a claim whose reply never came (law 2).
    Abandon {
        /// The token of that claim.
        owner: Owner,
    },
    /// An operator's decision (R34).
    Operate {
        /// The owner and attempt that the operator saw.
        seen: Seen,
        /// The record to be, under a new owner.
        record: Record,
        /// What the record may be in.
        on: OperateOn,
    },
}

/// Which records an operator's action applies to. In flight within its lease is never one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperateOn {
    /// Resolve: unresolved or lapsed only.
    Unresolved,
    /// Delete: any state.
    Any,
}

/// A record in somebody's way, with its age by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The record.
    pub record: Record,
    /// Time since this state was entered, or last renewed.
    pub age: Duration,
}

impl Held {
    /// R14: in flight, and the lease has lapsed. That is an unresolved outcome.
    pub fn lapsed(&self) -> bool {
        matches!(self.record.state, State::InFlight { lease, .. } if self.age >= lease)
    }

    /// R18: whether a retry may take over: unresolved at once, lapsed after a further lease.
    pub fn may_be_taken_over(&self) -> bool {
        match self.record.state {
            State::Unresolved { .. } | State::Failed { .. } => true,
            State::InFlight { lease, .. } => self.age >= lease.saturating_mul(2),
            State::Completed { .. } | State::NotKept { .. } => false,
        }
    }

    /// How long the record is still kept.
    pub fn remaining(&self) -> Duration {
        self.record.retention.saturating_sub(self.age)
    }
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The lease is the claimant's.
    Acquired {
        /// Which execution this is.
        attempt: Attempt,
    },
    /// A record is in the way; also the answer to `Read`.
    Held(Held),
    /// No record; answer to `Read` and `Operate`.
    Absent,
    /// Settled or renewed, now or before.
    Stored {
        /// The record was absent and has been written again (law 3).
        reasserted: bool,
    },
    /// Somebody else owns the record, or it is gone and the owner must stop.
    LeaseLost,
    /// An operator's action that does not apply: what is there now.
    Refused(Held),
}

/// Applies one operation. Returns the entry to keep (`None`: none) and the answer.
pub fn transition(
    entry: Option<Entry>,
    operation: Operation,
    now: u64,
) -> (Option<Entry>, Outcome) {
    let entry = entry.filter(|entry| entry.ends_at > now);
    match operation {
        Operation::Read => match entry {
            None => (None, Outcome::Absent),
            Some(entry) => keep(entry, now, Outcome::Held),
        },
        Operation::Claim(claim) => on_claim(entry, &claim, now),
        Operation::TakeOver { seen, claim } => on_take_over(entry, seen, &claim, now),
        Operation::Renew { record, dispatched } => on_renew(entry, record, dispatched, now),
        Operation::Settle { record } => on_settle(entry, record, now),
        Operation::Abandon { owner } => on_abandon(entry, owner, now),
        Operation::Operate { seen, record, on } => on_operate(entry, seen, record, on, now),
    }
}

fn on_claim(entry: Option<Entry>, claim: &Claim, now: u64) -> (Option<Entry>, Outcome) {
    let Some(entry) = entry else {
        return acquire(claim, 1, now);
    };
    let own = entry.record.owner == claim.owner;
    match entry.record.state {
        State::InFlight { .. } if own => repeat_acquired(entry),
        State::Failed { .. } if own => keep(entry, now, Outcome::Held),
        State::Failed {
            why: FailedWhy::Status { .. },
        } if claim.waited => keep(entry, now, Outcome::Held),
        State::Failed { .. } => acquire(claim, entry.record.attempt.saturating_add(1), now),
        _ => keep(entry, now, Outcome::Held),
    }
}

fn on_take_over(
    entry: Option<Entry>,
    seen: Seen,
    claim: &Claim,
    now: u64,
) -> (Option<Entry>, Outcome) {
    let Some(entry) = entry else {
        return (None, Outcome::Absent);
    };
    if entry.record.owner == claim.owner && matches!(entry.record.state, State::InFlight { .. }) {
        return repeat_acquired(entry);
    }
    let held = held(entry.record.clone(), entry.ends_at, now);
    if entry.record.seen() == seen && seen.owner != claim.owner && held.may_be_taken_over() {
        return acquire(claim, seen.attempt.saturating_add(1), now);
    }
    (Some(entry), Outcome::Held(held))
}

fn on_renew(
    entry: Option<Entry>,
    record: Record,
    dispatched: bool,
    now: u64,
) -> (Option<Entry>, Outcome) {
    match entry {
        None if dispatched => (
            Some(Entry::new(record, now)),
            Outcome::Stored { reasserted: true },
        ),
        None => (None, Outcome::LeaseLost),
        Some(entry) if entry.record.owner != record.owner => (Some(entry), Outcome::LeaseLost),
        Some(mut entry) => {
            if matches!(entry.record.state, State::InFlight { .. }) {
                entry.ends_at = now.saturating_add(millis(entry.record.retention));
            }
            (Some(entry), Outcome::Stored { reasserted: false })
        }
    }
}

fn on_settle(entry: Option<Entry>, mut record: Record, now: u64) -> (Option<Entry>, Outcome) {
    match entry {
        None => {
            if matches!(record.state, State::Failed { .. }) {
                record.retention = ABANDONED_RETENTION;
            }
            (
                Some(Entry::new(record, now)),
                Outcome::Stored { reasserted: true },
            )
        }
        Some(entry) if entry.record.owner != record.owner => (Some(entry), Outcome::LeaseLost),
        Some(entry) => {
            let forward = rank(&entry.record.state) < rank(&record.state);
            let kept = if forward {
                Entry::new(record, now)
            } else {
                entry
            };
            (Some(kept), Outcome::Stored { reasserted: false })
        }
    }
}

/// Law 2. A failed record of somebody else is taken into `owner`'s name: otherwise the claim still
/// under way would take it over after all, and nobody would ever settle it.
fn on_abandon(entry: Option<Entry>, owner: Owner, now: u64) -> (Option<Entry>, Outcome) {
    let failed = State::Failed {
        why: FailedWhy::NotSent,
    };
    let Some(mut entry) = entry else {
        let record = Record {
            owner,
            attempt: 0,
            retention: ABANDONED_RETENTION,
            state: failed,
        };
        return (
            Some(Entry::new(record, now)),
            Outcome::Stored { reasserted: true },
        );
    };
    match entry.record.state {
        State::InFlight { .. } if entry.record.owner == owner => {
            let attempt = entry.record.attempt;
            let record = Record {
                owner,
                attempt,
                retention: ABANDONED_RETENTION,
                state: failed,
            };
            (
                Some(Entry::new(record, now)),
                Outcome::Stored { reasserted: false },
            )
        }
        State::Failed { .. } => {
            entry.record.owner = owner;
            (Some(entry), Outcome::Stored { reasserted: false })
        }
        _ if entry.record.owner == owner => (Some(entry), Outcome::Stored { reasserted: false }),
        _ => (Some(entry), Outcome::LeaseLost),
    }
}

fn on_operate(
    entry: Option<Entry>,
    seen: Seen,
    record: Record,
    on: OperateOn,
    now: u64,
) -> (Option<Entry>, Outcome) {
    let Some(entry) = entry else {
        return (None, Outcome::Absent);
    };
    if entry.record.owner == record.owner {
        return (Some(entry), Outcome::Stored { reasserted: false });
    }
    let held = held(entry.record.clone(), entry.ends_at, now);
    let applies = match (&held.record.state, on) {
        (State::InFlight { .. }, _) => held.lapsed(),
        (State::Unresolved { .. }, _) | (_, OperateOn::Any) => true,
        (_, OperateOn::Unresolved) => false,
    };
    if applies && held.record.seen() == seen {
        return (
            Some(Entry::new(record, now)),
            Outcome::Stored { reasserted: false },
        );
    }
    (Some(entry), Outcome::Refused(held))
}

fn acquire(claim: &Claim, attempt: Attempt, now: u64) -> (Option<Entry>, Outcome) {
    (
        Some(Entry::new(claim.record(attempt), now)),
        Outcome::Acquired { attempt },
    )
}

fn repeat_acquired(entry: Entry) -> (Option<Entry>, Outcome) {
    let attempt = entry.record.attempt;
    (Some(entry), Outcome::Acquired { attempt })
}

fn keep(entry: Entry, now: u64, answer: fn(Held) -> Outcome) -> (Option<Entry>, Outcome) {
    let held = held(entry.record.clone(), entry.ends_at, now);
    (Some(entry), answer(held))
}

/// The age is retention minus what remains: no clock but the store's is asked.
fn held(record: Record, ends_at: u64, now: u64) -> Held {
    let remaining = Duration::from_millis(ends_at.saturating_sub(now));
    let age = record.retention.saturating_sub(remaining);
    Held { record, age }
}

/// Law 1: one owner's states only move to a higher rank.
pub(crate) fn rank(state: &State) -> u8 {
    match state {
        State::InFlight { .. } => 0,
        State::Unresolved { .. } => 1,
        State::Completed { .. } | State::NotKept { .. } | State::Failed { .. } => 2,
    }
}

/// Whole milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
