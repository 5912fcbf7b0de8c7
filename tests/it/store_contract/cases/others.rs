//! What comes between an owner and its record: lost replies, a store that forgets, takeovers,
//! operators, the end.

use retrysafe::idempotency::record::FailedWhy;
use retrysafe::idempotency::transition::OperateOn;

use super::Step::{Do, Wait};
use super::{Case, case};
use crate::store_contract::operations::*;

pub(super) fn abandoned() -> Vec<Case> {
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

pub(super) fn lost_memory() -> Vec<Case> {
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

pub(super) fn takeovers() -> Vec<Case> {
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

pub(super) fn operators() -> Vec<Case> {
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

pub(super) fn ends() -> Vec<Case> {
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
