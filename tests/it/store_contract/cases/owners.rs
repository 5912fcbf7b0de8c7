//! What owners do: claim, settle, renew.

use retrysafe::idempotency::record::FailedWhy;

use super::Step::{Do, Wait};
use super::{Case, case};
use crate::store_contract::operations::*;

pub(super) fn claims() -> Vec<Case> {
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
    ]
}

pub(super) fn claims_after_an_end() -> Vec<Case> {
    vec![
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

pub(super) fn settles() -> Vec<Case> {
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

pub(super) fn leases() -> Vec<Case> {
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
