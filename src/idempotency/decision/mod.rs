//! `judge`: what a request gets that found a record in its way (R11, R13, R18, R19, R21).
//!
//! Total over the states. The order is R11's: a mismatch before anything else, in every state but
//! failed.

use bytes::Bytes;
use http::Method;

use super::fingerprint::{Comparison, Fingerprint};
use super::policy::Policy;
use super::record::{Answer, FailedWhy, HeldProblem, Seen, State};
use super::transition::Held;

/// What to do with a request whose record key has a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// R21: the recorded answer.
    Replay {
        /// What the upstream said.
        answer: Answer,
    },
    /// R19: 410, the operation was carried out and its answer is not here.
    NotKept {
        /// The upstream's status.
        status: u16,
        /// Its `Location`.
        location: Option<Bytes>,
        /// SHA-256 of its body.
        digest: Option<[u8; 32]>,
    },
    /// R11: 422, these parts differ.
    Mismatch(Vec<String>),
    /// R11: 422, the key belongs to other credentials.
    OtherCredentials,
    /// R13: in flight elsewhere; wait, then 409.
    InFlight,
    /// R13: released by status while this request waited; 409 with the upstream's Retry-After.
    ReleasedByStatus {
        /// Seconds, 0 where the upstream named none.
        retry_after: u32,
    },
    /// R18: hold; this problem.
    Unresolved(HeldProblem),
    /// R18: retry; take over from the owner seen.
    TakeOver(Seen),
    /// Failed: claim again.
    Claim,
}

/// Judges a record for a request. `waited`: the request waited for this key before.
pub fn judge(
    held: &Held,
    now: &Fingerprint,
    method: &Method,
    policy: &Policy,
    waited: bool,
) -> Decision {
    match held
        .record
        .state
        .fingerprint()
        .map(|recorded| recorded.compare(now))
    {
        Some(Comparison::OtherCredentials) => return Decision::OtherCredentials,
        Some(Comparison::Differs(parts)) => return Decision::Mismatch(parts),
        Some(Comparison::Same) | None => {}
    }
    match &held.record.state {
        State::Completed { answer, .. } => Decision::Replay {
            answer: answer.clone(),
        },
        State::NotKept {
            status,
            location,
            digest,
            ..
        } => Decision::NotKept {
            status: *status,
            location: location.clone(),
            digest: *digest,
        },
        State::Failed {
            why: FailedWhy::Status { retry_after, .. },
        } if waited => Decision::ReleasedByStatus {
            retry_after: *retry_after,
        },
        State::Failed { .. } => Decision::Claim,
        State::InFlight { .. } if !held.lapsed() => Decision::InFlight,
        State::InFlight { .. } | State::Unresolved { .. } => unresolved(held, method, policy),
    }
}

fn unresolved(held: &Held, method: &Method, policy: &Policy) -> Decision {
    if !policy.on_unknown.retries(method) {
        let problem = match held.record.state {
            State::Unresolved {
                problem: Some(problem),
                ..
            } => problem,
            _ => HeldProblem::OutcomeUnknown,
        };
        return Decision::Unresolved(problem);
    }
    // A lapsed lease may belong to an owner that was only slow: it gets a further lease to settle.
    if held.may_be_taken_over() {
        Decision::TakeOver(held.record.seen())
    } else {
        Decision::InFlight
    }
}

#[cfg(test)]
mod tests;
