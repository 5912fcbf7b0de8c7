//! The laws, each over every state, owner and age that matters.

mod table;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::idempotency::record::{Answer, HeldProblem, UnknownWhy};

const ME: Owner = Owner([1; 16]);
const OTHER: Owner = Owner([2; 16]);
const THIRD: Owner = Owner([3; 16]);
const LEASE: Duration = Duration::from_secs(30);
const KEPT: Duration = Duration::from_mins(10);
const NOW: u64 = 1_000_000;

fn fingerprint() -> Fingerprint {
    Fingerprint {
        profile: 1,
        digest: [7; 32],
        parts: Vec::new().into(),
    }
}

fn claim_by(owner: Owner) -> Claim {
    let fingerprint = fingerprint();
    Claim {
        owner,
        fingerprint,
        lease: LEASE,
        retention: KEPT,
        waited: false,
    }
}

fn in_flight() -> State {
    State::InFlight {
        fingerprint: fingerprint(),
        lease: LEASE,
    }
}

fn completed() -> State {
    let answer = Answer {
        status: 201,
        fields: vec![],
        body: Bytes::from_static(b"x"),
        trailers: vec![],
    };
    State::Completed {
        fingerprint: fingerprint(),
        answer,
        completed_at: 5,
    }
}

fn not_kept() -> State {
    let fingerprint = fingerprint();
    State::NotKept {
        fingerprint,
        status: 200,
        location: None,
        digest: None,
        completed_at: 5,
    }
}

fn unresolved() -> State {
    let problem = Some(HeldProblem::Timeout);
    State::Unresolved {
        fingerprint: fingerprint(),
        why: UnknownWhy::GaveUp,
        problem,
    }
}

fn failed(why: FailedWhy) -> State {
    State::Failed { why }
}

fn states() -> Vec<State> {
    let status = FailedWhy::Status {
        status: 429,
        retry_after: 3,
    };
    vec![
        in_flight(),
        completed(),
        not_kept(),
        unresolved(),
        failed(FailedWhy::NotSent),
        failed(status),
        failed(FailedWhy::Operator),
    ]
}

fn record(owner: Owner, state: State) -> Record {
    Record {
        owner,
        attempt: 4,
        retention: KEPT,
        state,
    }
}

/// An entry of that age.
fn entry(owner: Owner, state: State, age: Duration) -> Entry {
    Entry {
        record: record(owner, state),
        ends_at: NOW + millis(KEPT.saturating_sub(age)),
    }
}

/// Absent, and every state of every owner at every age that decides something.
fn entries() -> Vec<Option<Entry>> {
    let ages = [0, 29, 30, 59, 60, 599].map(Duration::from_secs);
    let mut all = vec![None];
    for owner in [ME, OTHER] {
        for state in states() {
            all.extend(ages.map(|age| Some(entry(owner, state.clone(), age))));
        }
    }
    all
}

fn own_operations() -> Vec<Operation> {
    let mut all = vec![
        Operation::Read,
        Operation::Claim(claim_by(ME)),
        Operation::Claim(Claim {
            waited: true,
            ..claim_by(ME)
        }),
        Operation::TakeOver {
            seen: Seen {
                owner: OTHER,
                attempt: 4,
            },
            claim: claim_by(ME),
        },
        Operation::Renew {
            record: record(ME, in_flight()),
            dispatched: true,
        },
        Operation::Renew {
            record: record(ME, in_flight()),
            dispatched: false,
        },
        Operation::Abandon { owner: ME },
    ];
    let endings = states().into_iter().skip(1);
    all.extend(endings.map(|state| Operation::Settle {
        record: record(ME, state),
    }));
    for on in [OperateOn::Unresolved, OperateOn::Any] {
        let record = record(ME, failed(FailedWhy::Operator));
        all.push(Operation::Operate {
            seen: Seen {
                owner: OTHER,
                attempt: 4,
            },
            record,
            on,
        });
    }
    all
}

fn run(entry: Option<Entry>, operation: Operation) -> (Option<Entry>, Outcome) {
    transition(entry, operation, NOW)
}

#[test]
fn law_1_a_repeated_operation_changes_nothing_and_answers_as_it_did() {
    for before in entries() {
        for operation in own_operations() {
            let (once, first) = run(before.clone(), operation.clone());
            let (twice, second) = run(once.clone(), operation.clone());
            assert_eq!(twice, once, "{operation:?} on {before:?}");
            // Written again the first time, there the second: both are Stored.
            let plain = |outcome: Outcome| match outcome {
                Outcome::Stored { .. } => Outcome::Stored { reasserted: false },
                other => other,
            };
            assert_eq!(plain(second), plain(first), "{operation:?} on {before:?}");
        }
    }
}

#[test]
fn law_1_one_owners_record_only_moves_forward() {
    for before in entries()
        .into_iter()
        .flatten()
        .filter(|entry| entry.record.owner == ME)
    {
        for operation in own_operations() {
            let (after, _) = run(Some(before.clone()), operation.clone());
            let after = after.unwrap();
            assert_eq!(after.record.owner, ME);
            let (was, is) = (rank(&before.record.state), rank(&after.record.state));
            assert!(is >= was, "{operation:?} moved {before:?} back");
            if is == was && was == 2 {
                assert_eq!(after.record, before.record, "{operation:?} changed an end");
            }
        }
    }
}

#[test]
fn law_1_a_foreign_record_is_out_of_reach_of_owner_operations() {
    for before in entries()
        .into_iter()
        .flatten()
        .filter(|entry| entry.record.owner == OTHER)
    {
        for operation in own_operations() {
            let settles = matches!(
                operation,
                Operation::Settle { .. } | Operation::Renew { .. }
            );
            if settles {
                let (after, outcome) = run(Some(before.clone()), operation);
                assert_eq!((after, outcome), (Some(before.clone()), Outcome::LeaseLost));
            }
        }
    }
}

#[test]
fn law_1_every_pair_of_one_owners_operations_ends_alike_in_both_orders_if_both_settle() {
    // Whichever of two ends comes first stays; the other answers Stored.
    for one in states().into_iter().skip(1) {
        for other in states().into_iter().skip(1) {
            let settle = |state: &State| Operation::Settle {
                record: record(ME, state.clone()),
            };
            let begun = Some(entry(ME, in_flight(), Duration::ZERO));
            let (after, _) = run(begun, settle(&one));
            let (after, outcome) = run(after, settle(&other));
            assert_eq!(outcome, Outcome::Stored { reasserted: false });
            let expected = if rank(&one) < rank(&other) {
                &other
            } else {
                &one
            };
            assert_eq!(&after.unwrap().record.state, expected);
        }
    }
}

#[test]
fn law_2_a_claim_and_its_withdrawal_never_leave_a_lease_in_either_order() {
    let withdraw = || Operation::Abandon { owner: ME };
    let claims = [
        Operation::Claim(claim_by(ME)),
        Operation::TakeOver {
            seen: Seen {
                owner: OTHER,
                attempt: 4,
            },
            claim: claim_by(ME),
        },
    ];
    for before in entries() {
        let foreign = before
            .as_ref()
            .is_none_or(|entry| entry.record.owner == OTHER);
        if !foreign {
            continue;
        }
        for claim in claims.clone() {
            let (after, _) = run(before.clone(), claim.clone());
            let (after, _) = run(after, withdraw());
            assert!(
                !mine_in_flight(after.as_ref()),
                "{claim:?} then withdrawal on {before:?}"
            );
            let takes_unresolved = matches!(claim, Operation::TakeOver { .. })
                && before
                    .as_ref()
                    .is_some_and(|entry| !matches!(entry.record.state, State::Failed { .. }));
            if takes_unresolved {
                // A takeover that arrives after its withdrawal is a lapsed lease like any other.
                continue;
            }
            let (after, _) = run(before.clone(), withdraw());
            let (after, outcome) = run(after, claim.clone());
            assert!(
                !mine_in_flight(after.as_ref()),
                "withdrawal then {claim:?} on {before:?}"
            );
            assert!(!matches!(outcome, Outcome::Acquired { .. }));
        }
    }
}

fn mine_in_flight(entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| {
        entry.record.owner == ME && matches!(entry.record.state, State::InFlight { .. })
    })
}

#[test]
fn law_2_withdrawal_of_nothing_blocks_the_late_claim_for_an_hour_only() {
    let (after, _) = run(None, Operation::Abandon { owner: ME });
    let hour = millis(ABANDONED_RETENTION);
    let late = |now| transition(after.clone(), Operation::Claim(claim_by(ME)), now).1;
    assert!(matches!(late(NOW + hour - 1), Outcome::Held(_)));
    assert_eq!(late(NOW + hour), Outcome::Acquired { attempt: 1 });
    // Anybody else goes ahead.
    let (_, other) = run(after, Operation::Claim(claim_by(OTHER)));
    assert_eq!(other, Outcome::Acquired { attempt: 1 });
}

#[test]
fn law_3_what_was_dispatched_is_written_again_the_rest_stops() {
    let renew = |dispatched| Operation::Renew {
        record: record(ME, in_flight()),
        dispatched,
    };
    let again = Outcome::Stored { reasserted: true };
    assert_eq!(run(None, renew(false)), (None, Outcome::LeaseLost));
    let (after, outcome) = run(None, renew(true));
    assert_eq!(
        (after.unwrap().record, outcome),
        (record(ME, in_flight()), again.clone())
    );
    for state in [completed(), not_kept(), unresolved()] {
        let settled = record(ME, state);
        let (after, outcome) = run(
            None,
            Operation::Settle {
                record: settled.clone(),
            },
        );
        assert_eq!(
            (after.unwrap(), outcome),
            (Entry::new(settled, NOW), again.clone())
        );
    }
    let settled = record(ME, failed(FailedWhy::NotSent));
    let (after, _) = run(None, Operation::Settle { record: settled });
    assert_eq!(after.unwrap().record.retention, ABANDONED_RETENTION);
}

#[test]
fn law_4_a_record_past_its_end_is_absent_to_every_operation() {
    for before in entries().into_iter().flatten() {
        let over = Entry {
            ends_at: NOW,
            ..before
        };
        for operation in own_operations() {
            assert_eq!(
                run(Some(over.clone()), operation.clone()),
                run(None, operation)
            );
        }
    }
}
