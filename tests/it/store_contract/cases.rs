//! The list: conversations with one record, each step with the answer it must get.
//!
//! The letters are owners, `a1` is owner a's first attempt. `x` is an operator.

use retrysafe::idempotency::Operation;
use retrysafe::idempotency::record::FailedWhy;
use retrysafe::idempotency::transition::OperateOn;

use super::bench::Bench;
use super::operations::*;

enum Step {
    Do(Operation, &'static str),
    /// Seconds pass.
    Wait(u64),
}

use Step::{Do, Wait};

struct Case {
    says: &'static str,
    steps: Vec<Step>,
}

fn case(says: &'static str, steps: impl IntoIterator<Item = Step>) -> Case {
    let steps = steps.into_iter().collect();
    Case { says, steps }
}

/// Plays the whole list.
pub async fn all(bench: Bench) {
    let list = [
        claims(),
        settles(),
        leases(),
        abandoned(),
        lost_memory(),
        takeovers(),
        operators(),
        ends(),
    ];
    let mut steps = 0;
    for case in list.into_iter().flatten() {
        let key = bench.key();
        for (number, step) in case.steps.into_iter().enumerate() {
            match step {
                Wait(seconds) => bench.advance(seconds).await,
                Do(operation, expected) => {
                    let answer = bench.apply(key, operation).await;
                    let answer = answer.map(|outcome| words(&outcome));
                    assert_eq!(
                        answer.as_deref(),
                        Ok(expected),
                        "{}, step {number}",
                        case.says
                    );
                    steps += 1;
                }
            }
        }
    }
    assert!(steps > 100, "the list was played, {steps} steps");
}

fn claims() -> Vec<Case> {
    vec![
        case(
            "reading makes nothing",
            [Do(read(), "absent"), Do(read(), "absent")],
        ),
        case(
            "the first claim gets the lease, the second finds it",
            [
                Do(claim('a'), "acquired 1"),
                Do(claim('b'), "held in_flight a1"),
                Do(read(), "held in_flight a1"),
                Wait(100),
                Do(claim('b'), "held in_flight a1 100s"),
            ],
        ),
        case(
            "a claim whose reply was lost is sent again and gets its own lease",
            [Do(claim('a'), "acquired 1"), Do(claim('a'), "acquired 1")],
        ),
        case(
            "a completed record answers every claim, its owner's too",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, completed()), "stored"),
                Do(claim('b'), "held completed a1"),
                Do(claim('a'), "held completed a1"),
                Do(claim_waited('c'), "held completed a1"),
                Do(read(), "held completed a1"),
            ],
        ),
        case(
            "a record without its answer is held like one",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, not_kept()), "stored"),
                Do(claim('b'), "held completed_not_kept a1"),
            ],
        ),
        case(
            "a failed record is claimed with the next attempt",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, failed(FailedWhy::NotSent)), "stored"),
                Do(claim('b'), "acquired 2"),
                Do(settle('b', 2, failed(FailedWhy::NotSent)), "stored"),
                Do(claim_waited('c'), "acquired 3"),
            ],
        ),
        case(
            "a release by status is not for a request that waited",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, failed_by_status()), "stored"),
                Do(claim_waited('b'), "held failed a1"),
                Do(claim('b'), "acquired 2"),
            ],
        ),
        case(
            "a claim never takes over a failed record of its own",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, failed(FailedWhy::NotSent)), "stored"),
                Do(claim('a'), "held failed a1"),
            ],
        ),
        case(
            "an unresolved record is held",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Wait(100),
                Do(claim('b'), "held unresolved a1 100s"),
                Do(claim('a'), "held unresolved a1 100s"),
            ],
        ),
    ]
}

fn settles() -> Vec<Case> {
    vec![
        case(
            "settling again changes nothing and answers the same",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, completed()), "stored"),
                Do(settle('a', 1, completed()), "stored"),
                Do(settle('a', 1, failed(FailedWhy::NotSent)), "stored"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(renew('a', 1, true), "stored"),
                Do(read(), "held completed a1"),
            ],
        ),
        case(
            "failed is as final as completed",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, failed_by_status()), "stored"),
                Do(settle('a', 1, completed()), "stored"),
                Do(read(), "held failed a1"),
            ],
        ),
        case(
            "an unresolved outcome may still become known",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(settle('a', 1, completed()), "stored"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(claim('b'), "held completed a1"),
            ],
        ),
        case(
            "a stranger settles nothing",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('b', 1, completed()), "lease lost"),
                Do(renew('b', 1, true), "lease lost"),
                Do(abandon('b'), "lease lost"),
                Do(read(), "held in_flight a1"),
                Do(settle('a', 1, completed()), "stored"),
                Do(settle('b', 1, failed(FailedWhy::NotSent)), "lease lost"),
                Do(abandon('b'), "lease lost"),
                Do(read(), "held completed a1"),
            ],
        ),
        case(
            "a large answer is kept whole",
            [
                Do(claim('a'), "acquired 1"),
                Do(
                    settle('a', 1, completed_with(&vec![0xee; 300_000])),
                    "stored",
                ),
                Do(claim('b'), "held completed a1"),
                Do(renew('a', 1, true), "stored"),
                Do(claim('b'), "held completed a1"),
            ],
        ),
    ]
}

fn leases() -> Vec<Case> {
    vec![
        case(
            "renewing starts the age again",
            [
                Do(claim('a'), "acquired 1"),
                Wait(100),
                Do(renew('a', 1, false), "stored"),
                Do(read(), "held in_flight a1"),
                Wait(900),
                Do(renew('a', 1, true), "stored"),
                Wait(900),
                Do(read(), "held in_flight a1 900s"),
            ],
        ),
        case(
            "only in flight is renewed",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Wait(300),
                Do(renew('a', 1, true), "stored"),
                Do(read(), "held unresolved a1 300s"),
            ],
        ),
        case(
            "a late owner whom nobody replaced repairs the record",
            [
                Do(claim('a'), "acquired 1"),
                Wait(500),
                Do(claim('b'), "held in_flight a1 500s"),
                Do(settle('a', 1, completed()), "stored"),
                Do(claim('b'), "held completed a1"),
            ],
        ),
    ]
}

fn abandoned() -> Vec<Case> {
    vec![
        case(
            "an abandoned claim that was never seen finds itself in its way",
            [
                Do(abandon('a'), "stored again"),
                Do(claim('a'), "held failed a0"),
                Do(abandon('a'), "stored"),
                Do(claim('b'), "acquired 1"),
                Do(abandon('a'), "lease lost"),
            ],
        ),
        case(
            "an abandoned claim that was applied frees the key",
            [
                Do(claim('a'), "acquired 1"),
                Do(abandon('a'), "stored"),
                Do(abandon('a'), "stored"),
                Do(claim('a'), "held failed a1"),
                Do(claim('b'), "acquired 2"),
            ],
        ),
        case(
            "abandoning blocks its own late claim although somebody else failed before",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, failed(FailedWhy::NotSent)), "stored"),
                Wait(100),
                Do(abandon('b'), "stored"),
                Do(read(), "held failed b1 100s"),
                Do(claim('b'), "held failed b1 100s"),
                Do(claim('c'), "acquired 2"),
            ],
        ),
        case(
            "abandoning never takes back an end",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, completed()), "stored"),
                Do(abandon('a'), "stored"),
                Do(read(), "held completed a1"),
            ],
        ),
        case(
            "an abandoned claim is remembered for an hour",
            [
                Do(abandon('a'), "stored again"),
                Wait(3_500),
                Do(claim('a'), "held failed a0 3500s"),
                Wait(100),
                Do(claim('a'), "acquired 1"),
            ],
        ),
    ]
}

fn lost_memory() -> Vec<Case> {
    vec![
        case(
            "settling writes a record that the store lost",
            [
                Do(settle('a', 1, completed()), "stored again"),
                Do(settle('a', 1, completed()), "stored"),
                Do(claim('b'), "held completed a1"),
            ],
        ),
        case(
            "an unresolved outcome is written again too",
            [
                Do(settle('a', 3, unresolved()), "stored again"),
                Do(claim('b'), "held unresolved a3"),
            ],
        ),
        case(
            "a failure that the store lost is remembered for an hour",
            [
                Do(settle('a', 1, failed(FailedWhy::NotSent)), "stored again"),
                Wait(3_500),
                Do(claim('a'), "held failed a1 3500s"),
                Wait(100),
                Do(read(), "absent"),
            ],
        ),
        case(
            "a dispatched owner writes its record again, another one stops",
            [
                Do(renew('a', 1, false), "lease lost"),
                Do(read(), "absent"),
                Do(renew('a', 2, true), "stored again"),
                Do(claim('b'), "held in_flight a2"),
                Do(renew('a', 2, true), "stored"),
            ],
        ),
    ]
}

fn takeovers() -> Vec<Case> {
    vec![
        case(
            "an unresolved record is taken over by exactly one",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(take_over('b', seen('a', 1)), "acquired 2"),
                Do(take_over('c', seen('a', 1)), "held in_flight b2"),
                Do(take_over('b', seen('a', 1)), "acquired 2"),
                Do(settle('a', 1, completed()), "lease lost"),
                Do(settle('b', 2, completed()), "stored"),
            ],
        ),
        case(
            "a lapsed record is taken over after a further lease",
            [
                Do(claim('a'), "acquired 1"),
                Wait(300),
                Do(take_over('b', seen('a', 1)), "held in_flight a1 300s"),
                Wait(100),
                Do(take_over('b', seen('a', 2)), "held in_flight a1 400s"),
                Do(take_over('b', seen('a', 1)), "acquired 2"),
                Do(renew('a', 1, true), "lease lost"),
            ],
        ),
        case(
            "a renewed lease is not taken over",
            [
                Do(claim('a'), "acquired 1"),
                Wait(400),
                Do(renew('a', 1, true), "stored"),
                Do(take_over('b', seen('a', 1)), "held in_flight a1"),
            ],
        ),
        case(
            "completed is never taken over, absent neither",
            [
                Do(take_over('b', seen('a', 1)), "absent"),
                Do(read(), "absent"),
                Do(settle('a', 1, completed()), "stored again"),
                Do(take_over('b', seen('a', 1)), "held completed a1"),
            ],
        ),
        case(
            "nobody takes over from himself",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(take_over('a', seen('a', 1)), "held unresolved a1"),
            ],
        ),
    ]
}

fn operators() -> Vec<Case> {
    use OperateOn::{Any, Unresolved};
    vec![
        case(
            "an operator resolves what is unresolved, once",
            [
                Do(claim('a'), "acquired 1"),
                Do(settle('a', 1, unresolved()), "stored"),
                Do(
                    release('x', seen('a', 2), Unresolved),
                    "refused unresolved a1",
                ),
                Do(release('x', seen('a', 1), Unresolved), "stored"),
                Do(release('x', seen('a', 1), Unresolved), "stored"),
                Do(settle('a', 1, completed()), "lease lost"),
                Do(claim('b'), "acquired 2"),
            ],
        ),
        case(
            "an operator has to wait for a lease to lapse",
            [
                Do(claim('a'), "acquired 1"),
                Do(release('x', seen('a', 1), Any), "refused in_flight a1"),
                Wait(200),
                Do(release('x', seen('a', 1), Unresolved), "stored"),
                Do(settle('a', 1, completed()), "lease lost"),
            ],
        ),
        case(
            "an operator deletes what is completed, and does not resolve it",
            [
                Do(settle('a', 1, completed()), "stored again"),
                Do(
                    release('x', seen('a', 1), Unresolved),
                    "refused completed a1",
                ),
                Do(release('x', seen('a', 1), Any), "stored"),
                Do(claim('b'), "acquired 2"),
            ],
        ),
        case(
            "an operator finds nothing",
            [
                Do(release('x', seen('a', 1), Any), "absent"),
                Do(read(), "absent"),
            ],
        ),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        case(
            "a record past its end is absent to everybody",
            [
                Do(settle('a', 7, completed()), "stored again"),
                Wait(1_900),
                Do(claim('b'), "held completed a7"),
                Wait(100),
                Do(read(), "absent"),
                Do(take_over('b', seen('a', 7)), "absent"),
                Do(renew('a', 7, false), "lease lost"),
                Do(claim('b'), "acquired 1"),
            ],
        ),
        case(
            "in flight ends after its own retention",
            [
                Do(claim('a'), "acquired 1"),
                Wait(900),
                Do(claim('b'), "held in_flight a1 900s"),
                Wait(100),
                Do(claim('b'), "acquired 1"),
                Do(settle('a', 1, completed()), "lease lost"),
            ],
        ),
        case(
            "settling counts retention from then on",
            [
                Do(claim('a'), "acquired 1"),
                Wait(900),
                Do(settle('a', 1, completed()), "stored"),
                Wait(1_900),
                Do(claim('b'), "held completed a1"),
            ],
        ),
        case(
            "an expired record is written again by its late owner",
            [
                Do(claim('a'), "acquired 1"),
                Wait(1_000),
                Do(settle('a', 1, completed()), "stored again"),
                Do(claim('b'), "held completed a1"),
            ],
        ),
    ]
}
