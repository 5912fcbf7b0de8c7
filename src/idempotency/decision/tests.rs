//! What a request gets from each state, age and policy.

use std::time::Duration;

use super::*;
use crate::idempotency::policy::OnUnknown;
use crate::idempotency::record::{Owner, Record, UnknownWhy};

const LEASE: Duration = Duration::from_secs(30);

fn fingerprint(digest: u8) -> Fingerprint {
    Fingerprint {
        profile: 1,
        digest: [digest; 32],
        parts: Vec::new().into(),
    }
}

fn answer() -> Answer {
    Answer {
        status: 201,
        fields: vec![],
        body: Bytes::from_static(b"x"),
        trailers: vec![],
    }
}

fn held(state: State, age: u64) -> Held {
    let retention = Duration::from_mins(10);
    let record = Record {
        owner: Owner([1; 16]),
        attempt: 2,
        retention,
        state,
    };
    Held {
        record,
        age: Duration::from_secs(age),
    }
}

fn in_flight() -> State {
    State::InFlight {
        fingerprint: fingerprint(7),
        lease: LEASE,
    }
}

fn unresolved(problem: Option<HeldProblem>) -> State {
    State::Unresolved {
        fingerprint: fingerprint(7),
        why: UnknownWhy::GaveUp,
        problem,
    }
}

fn states() -> Vec<State> {
    vec![
        in_flight(),
        State::Completed {
            fingerprint: fingerprint(7),
            answer: answer(),
            completed_at: 0,
        },
        State::NotKept {
            fingerprint: fingerprint(7),
            status: 200,
            location: None,
            digest: None,
            completed_at: 0,
        },
        unresolved(None),
    ]
}

fn decide(held: &Held, method: &Method, waited: bool) -> Decision {
    judge(held, &fingerprint(7), method, &Policy::default(), waited)
}

#[test]
fn a_mismatch_comes_before_everything_in_every_state_but_failed() {
    for state in states() {
        for age in [0, 30, 60] {
            let decision = judge(
                &held(state.clone(), age),
                &fingerprint(8),
                &Method::PUT,
                &Policy::default(),
                true,
            );
            assert!(matches!(decision, Decision::Mismatch(_)), "{state:?}");
        }
    }
    let failed = held(
        State::Failed {
            why: FailedWhy::NotSent,
        },
        0,
    );
    let decision = judge(
        &failed,
        &fingerprint(8),
        &Method::POST,
        &Policy::default(),
        false,
    );
    assert_eq!(decision, Decision::Claim);
}

#[test]
fn completed_is_replayed_and_not_kept_is_gone() {
    let [_, completed, not_kept, _] = states().try_into().unwrap();
    assert_eq!(
        decide(&held(completed, 0), &Method::POST, false),
        Decision::Replay { answer: answer() }
    );
    assert!(matches!(
        decide(&held(not_kept, 0), &Method::POST, false),
        Decision::NotKept { status: 200, .. }
    ));
}

#[test]
fn in_flight_waits_until_its_lease_lapses_and_is_unresolved_then() {
    let seen = Seen {
        owner: Owner([1; 16]),
        attempt: 2,
    };
    let post = |age| decide(&held(in_flight(), age), &Method::POST, false);
    let put = |age| decide(&held(in_flight(), age), &Method::PUT, false);
    assert_eq!(
        (post(29), put(29)),
        (Decision::InFlight, Decision::InFlight)
    );
    assert_eq!(post(30), Decision::Unresolved(HeldProblem::OutcomeUnknown));
    assert_eq!(put(30), Decision::InFlight);
    assert_eq!(put(59), Decision::InFlight);
    assert_eq!(put(60), Decision::TakeOver(seen));
    assert_eq!(post(599), Decision::Unresolved(HeldProblem::OutcomeUnknown));
}

#[test]
fn unresolved_repeats_the_first_problem_or_runs_again_by_policy() {
    let seen = Seen {
        owner: Owner([1; 16]),
        attempt: 2,
    };
    let problem = Some(HeldProblem::Timeout);
    for (method, on_unknown, expected) in [
        (
            Method::POST,
            OnUnknown::Auto,
            Decision::Unresolved(HeldProblem::Timeout),
        ),
        (
            Method::PATCH,
            OnUnknown::Auto,
            Decision::Unresolved(HeldProblem::Timeout),
        ),
        (Method::PUT, OnUnknown::Auto, Decision::TakeOver(seen)),
        (Method::DELETE, OnUnknown::Auto, Decision::TakeOver(seen)),
        (
            Method::PUT,
            OnUnknown::Hold,
            Decision::Unresolved(HeldProblem::Timeout),
        ),
        (Method::POST, OnUnknown::Retry, Decision::TakeOver(seen)),
    ] {
        let policy = Policy {
            on_unknown,
            ..Policy::default()
        };
        let decision = judge(
            &held(unresolved(problem), 0),
            &fingerprint(7),
            &method,
            &policy,
            false,
        );
        assert_eq!(decision, expected, "{method} {on_unknown:?}");
    }
    assert_eq!(
        decide(&held(unresolved(None), 0), &Method::POST, false),
        Decision::Unresolved(HeldProblem::OutcomeUnknown)
    );
}

#[test]
fn released_by_status_is_for_newcomers_only() {
    let why = FailedWhy::Status {
        status: 429,
        retry_after: 9,
    };
    let released = held(State::Failed { why }, 0);
    assert_eq!(decide(&released, &Method::POST, false), Decision::Claim);
    assert_eq!(
        decide(&released, &Method::POST, true),
        Decision::ReleasedByStatus { retry_after: 9 }
    );
    let not_sent = held(
        State::Failed {
            why: FailedWhy::NotSent,
        },
        0,
    );
    assert_eq!(decide(&not_sent, &Method::POST, true), Decision::Claim);
}
