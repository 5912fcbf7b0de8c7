//! Who takes what, and when: the table of a record's life, row by row.

use std::time::Duration;

use super::*;

#[test]
fn claims_take_what_is_absent_or_failed_and_count_on() {
    let claim = |entry| run(entry, Operation::Claim(claim_by(ME))).1;
    assert_eq!(claim(None), Outcome::Acquired { attempt: 1 });
    for state in states() {
        let is_failed = matches!(state, State::Failed { .. });
        let outcome = claim(Some(entry(OTHER, state.clone(), Duration::from_secs(599))));
        match outcome {
            Outcome::Acquired { attempt } => assert!(is_failed && attempt == 5),
            Outcome::Held(held) => assert!(!is_failed && held.record.state == state),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_waited_does_not_take_what_was_released_by_status() {
    let waited = || {
        Operation::Claim(Claim {
            waited: true,
            ..claim_by(ME)
        })
    };
    let status = failed(FailedWhy::Status {
        status: 429,
        retry_after: 3,
    });
    let by_status = Some(entry(OTHER, status, Duration::ZERO));
    assert!(matches!(run(by_status, waited()).1, Outcome::Held(_)));
    let not_sent = Some(entry(OTHER, failed(FailedWhy::NotSent), Duration::ZERO));
    assert_eq!(run(not_sent, waited()).1, Outcome::Acquired { attempt: 5 });
}

#[test]
fn unresolved_is_taken_over_at_once_lapsed_only_after_a_further_lease() {
    let take = |state, age| {
        let seen = Seen {
            owner: OTHER,
            attempt: 4,
        };
        let operation = Operation::TakeOver {
            seen,
            claim: claim_by(ME),
        };
        matches!(
            run(
                Some(entry(OTHER, state, Duration::from_secs(age))),
                operation
            )
            .1,
            Outcome::Acquired { attempt: 5 }
        )
    };
    assert!(take(unresolved(), 0));
    assert!(!take(in_flight(), 30) && !take(in_flight(), 59) && take(in_flight(), 60));
    assert!(!take(completed(), 599) && !take(not_kept(), 599));
}

#[test]
fn a_late_owner_may_settle_a_lapsed_record_that_nobody_took() {
    let lapsed = Some(entry(ME, in_flight(), Duration::from_secs(599)));
    let settle = Operation::Settle {
        record: record(ME, completed()),
    };
    let (after, outcome) = run(lapsed, settle);
    assert_eq!(outcome, Outcome::Stored { reasserted: false });
    assert_eq!(after.unwrap().record.state, completed());
}

#[test]
fn operators_resolve_what_is_unresolved_or_lapsed_and_nothing_in_flight() {
    let operate = |state, age, on| {
        let record = record(ME, failed(FailedWhy::Operator));
        let operation = Operation::Operate {
            seen: Seen {
                owner: OTHER,
                attempt: 4,
            },
            record,
            on,
        };
        run(
            Some(entry(OTHER, state, Duration::from_secs(age))),
            operation,
        )
        .1
    };
    let stored = Outcome::Stored { reasserted: false };
    for on in [OperateOn::Unresolved, OperateOn::Any] {
        assert_eq!(operate(unresolved(), 0, on), stored);
        assert_eq!(operate(in_flight(), 30, on), stored);
        assert!(matches!(operate(in_flight(), 29, on), Outcome::Refused(_)));
    }
    for state in [completed(), not_kept(), failed(FailedWhy::NotSent)] {
        assert_eq!(operate(state.clone(), 0, OperateOn::Any), stored);
        assert!(matches!(
            operate(state, 0, OperateOn::Unresolved),
            Outcome::Refused(_)
        ));
    }
}

#[test]
fn renewal_gives_a_running_record_its_whole_life_again() {
    let renew = Operation::Renew {
        record: record(ME, in_flight()),
        dispatched: true,
    };
    let (after, _) = run(
        Some(entry(ME, in_flight(), Duration::from_secs(599))),
        renew.clone(),
    );
    assert_eq!(after.unwrap().ends_at, NOW + millis(KEPT));
    let ended = entry(ME, completed(), Duration::from_secs(599));
    assert_eq!(run(Some(ended.clone()), renew).0, Some(ended));
}

#[test]
fn the_age_is_the_retention_less_what_remains() {
    let held = entry(OTHER, in_flight(), Duration::from_secs(31));
    let (_, outcome) = run(Some(held), Operation::Read);
    let Outcome::Held(held) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (held.age, held.remaining()),
        (Duration::from_secs(31), Duration::from_secs(569))
    );
    assert!(held.lapsed() && !held.may_be_taken_over());
}

#[test]
fn law_5_takeovers_and_operators_act_only_on_the_owner_and_attempt_they_saw() {
    let wrong = [
        Seen {
            owner: THIRD,
            attempt: 4,
        },
        Seen {
            owner: OTHER,
            attempt: 3,
        },
    ];
    for before in entries()
        .into_iter()
        .flatten()
        .filter(|entry| entry.record.owner == OTHER)
    {
        for seen in wrong {
            let take = Operation::TakeOver {
                seen,
                claim: claim_by(ME),
            };
            let (after, outcome) = run(Some(before.clone()), take);
            assert_eq!(after.as_ref(), Some(&before));
            assert!(matches!(outcome, Outcome::Held(_)));
            let record = record(ME, failed(FailedWhy::Operator));
            let operate = Operation::Operate {
                seen,
                record,
                on: OperateOn::Any,
            };
            let (after, outcome) = run(Some(before.clone()), operate);
            assert_eq!(after.as_ref(), Some(&before));
            assert!(matches!(outcome, Outcome::Refused(_)));
        }
    }
}
