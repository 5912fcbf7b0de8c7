//! Short words for operations and outcomes, so that a case reads like a sentence.

use std::time::Duration;

use bytes::Bytes;
use retrysafe::idempotency::fingerprint::{Fingerprint, Part, PartKind};
use retrysafe::idempotency::record::{FailedWhy, HeldProblem, Seen, UnknownWhy};
use retrysafe::idempotency::transition::{Claim, Held, OperateOn};
use retrysafe::idempotency::{Answer, Attempt, Operation, Outcome, Owner, Record, State};

/// Seconds. A lease, how long in flight is kept, and how long everything else is.
pub(crate) const LEASE: u64 = 200;
pub(crate) const IN_FLIGHT: u64 = 1_000;
pub(crate) const KEPT: u64 = 2_000;

pub(crate) fn owner(letter: char) -> Owner {
    let mut token = [0; 16];
    token[0] = u8::try_from(letter).unwrap();
    // Octets that no text may hold: scripts have to be binary-safe.
    token[1..5].copy_from_slice(&[0, b'\r', b'\n', 0xff]);
    Owner(token)
}

pub(crate) fn seen(letter: char, attempt: Attempt) -> Seen {
    let owner = owner(letter);
    Seen { owner, attempt }
}

pub(crate) fn fingerprint(number: u8) -> Fingerprint {
    let part = Part {
        kind: PartKind::Header,
        name: "part".into(),
        digest: Some([number; 16]),
    };
    Fingerprint {
        profile: 7,
        digest: [number; 32],
        parts: vec![part].into(),
    }
}

fn claim_of(letter: char, waited: bool) -> Claim {
    Claim {
        owner: owner(letter),
        fingerprint: fingerprint(1),
        lease: Duration::from_secs(LEASE),
        retention: Duration::from_secs(IN_FLIGHT),
        waited,
    }
}

pub(crate) fn read() -> Operation {
    Operation::Read
}

pub(crate) fn claim(letter: char) -> Operation {
    Operation::Claim(claim_of(letter, false))
}

/// A claim of a request that waited for the key (R13).
pub(crate) fn claim_waited(letter: char) -> Operation {
    Operation::Claim(claim_of(letter, true))
}

pub(crate) fn take_over(letter: char, seen: Seen) -> Operation {
    let claim = claim_of(letter, false);
    Operation::TakeOver { seen, claim }
}

pub(crate) fn record(letter: char, attempt: Attempt, state: State) -> Record {
    let retention = match state {
        State::InFlight { .. } => IN_FLIGHT,
        _ => KEPT,
    };
    Record {
        owner: owner(letter),
        attempt,
        retention: Duration::from_secs(retention),
        state,
    }
}

pub(crate) fn renew(letter: char, attempt: Attempt, dispatched: bool) -> Operation {
    let state = State::InFlight {
        fingerprint: fingerprint(1),
        lease: Duration::from_secs(LEASE),
    };
    let record = record(letter, attempt, state);
    Operation::Renew { record, dispatched }
}

pub(crate) fn settle(letter: char, attempt: Attempt, state: State) -> Operation {
    let record = record(letter, attempt, state);
    Operation::Settle { record }
}

pub(crate) fn abandon(letter: char) -> Operation {
    let owner = owner(letter);
    Operation::Abandon { owner }
}

/// An operator under the name `letter`, who makes the record failed.
pub(crate) fn release(letter: char, seen: Seen, on: OperateOn) -> Operation {
    let record = record(letter, seen.attempt, failed(FailedWhy::Operator));
    Operation::Operate { seen, record, on }
}

pub(crate) fn completed() -> State {
    completed_with(b"\0\r\n$5\xff body")
}

pub(crate) fn completed_with(body: &[u8]) -> State {
    State::Completed {
        fingerprint: fingerprint(1),
        answer: Answer {
            status: 201,
            fields: vec![(
                Bytes::from_static(b"content-type"),
                Bytes::from_static(b"text/plain"),
            )],
            body: Bytes::copy_from_slice(body),
            trailers: Vec::new(),
        },
        completed_at: 1_700_000_000_000,
    }
}

pub(crate) fn not_kept() -> State {
    State::NotKept {
        fingerprint: fingerprint(1),
        status: 200,
        location: Some(Bytes::from_static(b"/payments/1")),
        digest: Some([9; 32]),
        completed_at: 1_700_000_000_000,
    }
}

pub(crate) fn failed(why: FailedWhy) -> State {
    State::Failed { why }
}

pub(crate) fn failed_by_status() -> State {
    failed(FailedWhy::Status {
        status: 503,
        retry_after: 2,
    })
}

pub(crate) fn unresolved() -> State {
    State::Unresolved {
        fingerprint: fingerprint(1),
        why: UnknownWhy::GaveUp,
        problem: Some(HeldProblem::Timeout),
    }
}

/// An outcome in words: `acquired 2`, `held in_flight a1 200s`, `stored again`.
pub(crate) fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Acquired { attempt } => format!("acquired {attempt}"),
        Outcome::Held(held) => format!("held {}", held_words(held)),
        Outcome::Absent => "absent".to_owned(),
        Outcome::Stored { reasserted: false } => "stored".to_owned(),
        Outcome::Stored { reasserted: true } => "stored again".to_owned(),
        Outcome::LeaseLost => "lease lost".to_owned(),
        Outcome::Refused(held) => format!("refused {}", held_words(held)),
    }
}

fn held_words(held: &Held) -> String {
    let Record {
        owner,
        attempt,
        state,
        ..
    } = &held.record;
    let age = match held.age.as_secs() {
        0 => String::new(),
        seconds => format!(" {seconds}s"),
    };
    format!("{} {}{attempt}{age}", state.name(), char::from(owner.0[0]))
}
