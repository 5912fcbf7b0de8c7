//! One record in a form that can be hashed, and the program's `transition` on it.

use std::time::Duration;

use bytes::Bytes;
use retrysafe::idempotency::fingerprint::Fingerprint;
use retrysafe::idempotency::record::{
    Answer, FailedWhy, HeldProblem, Owner, Record, Seen, State, UnknownWhy,
};
use retrysafe::idempotency::transition::{Claim, Entry};
use retrysafe::idempotency::{Operation, Outcome, transition};

const LEASE: Duration = Duration::from_secs(1);
/// So long that no record ends: how long records live is another matter.
const RETENTION: Duration = Duration::from_secs(1_000_000);
const NOW: u64 = 10_000_000_000;

/// A record of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) owner: u8,
    pub(crate) attempt: u32,
    pub(crate) is: Is,
    /// In leases since its state was entered: 0, 1 or 2.
    pub(crate) age: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Is {
    InFlight,
    /// With the number of the execution that gave the answer.
    Completed(u8),
    Failed,
    Unresolved,
}

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ask {
    Claim,
    TakeOver { owner: u8, attempt: u32 },
    Renew { attempt: u32, dispatched: bool },
    Complete { attempt: u32, answer: u8 },
    Unresolve { attempt: u32 },
    Fail { attempt: u32 },
    Abandon,
}

/// What it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Told {
    Acquired(u32),
    Held(Cell),
    Absent,
    Stored,
    LeaseLost,
    /// The store has lost its memory lately.
    NotYet,
}

fn owner(number: u8) -> Owner {
    Owner([number; 16])
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        profile: 0,
        digest: [0; 32],
        parts: Vec::new().into(),
    }
}

fn claim(number: u8) -> Claim {
    Claim {
        owner: owner(number),
        fingerprint: fingerprint(),
        lease: LEASE,
        retention: RETENTION,
        waited: false,
    }
}

fn record(number: u8, attempt: u32, is: Is) -> Record {
    let fingerprint = fingerprint();
    let state = match is {
        Is::InFlight => State::InFlight {
            fingerprint,
            lease: LEASE,
        },
        Is::Completed(answer) => State::Completed {
            fingerprint,
            answer: Answer {
                status: 201,
                fields: Vec::new(),
                body: Bytes::copy_from_slice(&[answer]),
                trailers: Vec::new(),
            },
            completed_at: 0,
        },
        Is::Failed => State::Failed {
            why: FailedWhy::NotSent,
        },
        Is::Unresolved => State::Unresolved {
            fingerprint,
            why: UnknownWhy::ConnectionLost,
            problem: Some(HeldProblem::ConnectionLost),
        },
    };
    Record {
        owner: owner(number),
        attempt,
        retention: RETENTION,
        state,
    }
}

impl Cell {
    fn entry(self) -> Entry {
        let lived = LEASE * u32::from(self.age);
        let left = RETENTION.saturating_sub(lived).as_millis();
        Entry {
            record: record(self.owner, self.attempt, self.is),
            ends_at: NOW + u64::try_from(left).unwrap(),
        }
    }

    fn of(record: &Record, age: Duration) -> Self {
        let is = match &record.state {
            State::InFlight { .. } => Is::InFlight,
            State::Completed { answer, .. } => Is::Completed(answer.body[0]),
            State::NotKept { .. } => panic!("nothing is too large here"),
            State::Failed { .. } => Is::Failed,
            State::Unresolved { .. } => Is::Unresolved,
        };
        let age = age.as_secs() / LEASE.as_secs();
        Self {
            owner: record.owner.0[0],
            attempt: record.attempt,
            is,
            age: u8::try_from(age.min(2)).unwrap(),
        }
    }

    pub(crate) fn lapsed(self) -> bool {
        self.is == Is::InFlight && self.age >= 1
    }

    pub(crate) fn may_be_taken_over(self) -> bool {
        match self.is {
            Is::Unresolved => true,
            Is::InFlight => self.age >= 2,
            Is::Completed(_) | Is::Failed => false,
        }
    }
}

/// The store does what `who` asks, as the program says.
pub(crate) fn apply(cell: Option<Cell>, who: u8, ask: Ask) -> (Option<Cell>, Told) {
    let settle = |attempt, is| Operation::Settle {
        record: record(who, attempt, is),
    };
    let operation = match ask {
        Ask::Claim => Operation::Claim(claim(who)),
        Ask::TakeOver {
            owner: seen,
            attempt,
        } => Operation::TakeOver {
            seen: Seen {
                owner: owner(seen),
                attempt,
            },
            claim: claim(who),
        },
        Ask::Renew {
            attempt,
            dispatched,
        } => Operation::Renew {
            record: record(who, attempt, Is::InFlight),
            dispatched,
        },
        Ask::Complete { attempt, answer } => settle(attempt, Is::Completed(answer)),
        Ask::Unresolve { attempt } => settle(attempt, Is::Unresolved),
        Ask::Fail { attempt } => settle(attempt, Is::Failed),
        Ask::Abandon => Operation::Abandon { owner: owner(who) },
    };
    let (entry, outcome) = transition(cell.map(Cell::entry), operation, NOW);
    let told = match outcome {
        Outcome::Acquired { attempt } => Told::Acquired(attempt),
        Outcome::Held(held) => Told::Held(Cell::of(&held.record, held.age)),
        Outcome::Absent => Told::Absent,
        Outcome::Stored { .. } => Told::Stored,
        Outcome::LeaseLost => Told::LeaseLost,
        Outcome::Refused(_) => panic!("no operator is here"),
    };
    let cell = entry.map(|entry| {
        let left = Duration::from_millis(entry.ends_at - NOW);
        let age = entry.record.retention.saturating_sub(left);
        Cell::of(&entry.record, age)
    });
    (cell, told)
}
