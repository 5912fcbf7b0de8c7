//! `settle`: what an exchange with the upstream makes of the record (R16 to R19).
//!
//! Total over what can happen. "Not sent" needs proof; whatever is not a whole answer is unresolved.

use super::policy::{On5xx, Policy};
use super::record::{FailedWhy, HeldProblem, UnknownWhy};

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// R16: the request provably never left.
    NotSent,
    /// R17: a whole answer came.
    Answered {
        /// Its status.
        status: u16,
        /// Its `Retry-After`: `None` without the field, 0 if it names no seconds.
        retry_after: Option<u32>,
        /// R19: whether the body fits `max_response`.
        kept: bool,
    },
    /// R18: sent, but no whole answer.
    Unknown(UnknownWhy),
}

/// What the record becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Completed, with the answer.
    Complete,
    /// Completed, without it (R19).
    CompleteNotKept,
    /// Failed: the next try executes.
    Fail(FailedWhy),
    /// Unresolved, with the problem the client is told.
    Unresolve(UnknownWhy, HeldProblem),
}

/// Decides what becomes of the record.
pub fn settle(exchange: Exchange, policy: &Policy) -> Settlement {
    match exchange {
        Exchange::NotSent => Settlement::Fail(FailedWhy::NotSent),
        Exchange::Answered {
            status,
            retry_after,
            ..
        } if is_released(status, retry_after.is_some(), policy) => {
            let retry_after = retry_after.unwrap_or(0);
            Settlement::Fail(FailedWhy::Status {
                status,
                retry_after,
            })
        }
        Exchange::Answered { kept: true, .. } => Settlement::Complete,
        Exchange::Answered { kept: false, .. } => Settlement::CompleteNotKept,
        Exchange::Unknown(why) => Settlement::Unresolve(why, problem_of(why)),
    }
}

/// R17: whether a status means "not carried out".
pub fn is_released(status: u16, has_retry_after: bool, policy: &Policy) -> bool {
    policy.release_statuses.contains(&status)
        || (status == 503 && has_retry_after)
        || (policy.on_5xx == On5xx::Release && (500..=599).contains(&status))
}

/// R18, R33: what the first client is told.
pub fn problem_of(why: UnknownWhy) -> HeldProblem {
    match why {
        UnknownWhy::ConnectionLost | UnknownWhy::Truncated => HeldProblem::ConnectionLost,
        UnknownWhy::BadAnswer => HeldProblem::BadResponse,
        UnknownWhy::GaveUp => HeldProblem::Timeout,
        UnknownWhy::LeaseLapsed | UnknownWhy::Drained | UnknownWhy::Fault => {
            HeldProblem::OutcomeUnknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, retry_after: Option<u32>) -> Exchange {
        Exchange::Answered {
            status,
            retry_after,
            kept: true,
        }
    }

    #[test]
    fn every_status_is_recorded_but_the_released_ones() {
        let policy = Policy::default();
        let released = [401, 403, 407, 409, 421, 423, 425, 429];
        for status in 200..=599 {
            let settlement = settle(answered(status, None), &policy);
            if released.contains(&status) {
                let why = FailedWhy::Status {
                    status,
                    retry_after: 0,
                };
                assert_eq!(settlement, Settlement::Fail(why), "{status}");
            } else {
                assert_eq!(settlement, Settlement::Complete, "{status}");
            }
        }
    }

    #[test]
    fn a_503_is_not_carried_out_only_if_it_says_when_to_come_again() {
        let policy = Policy::default();
        assert_eq!(settle(answered(503, None), &policy), Settlement::Complete);
        let why = FailedWhy::Status {
            status: 503,
            retry_after: 7,
        };
        assert_eq!(
            settle(answered(503, Some(7)), &policy),
            Settlement::Fail(why)
        );
    }

    #[test]
    fn on_5xx_release_lets_every_5xx_run_again() {
        let policy = Policy {
            on_5xx: On5xx::Release,
            ..Policy::default()
        };
        for status in [500, 502, 503, 504, 599] {
            assert!(matches!(
                settle(answered(status, None), &policy),
                Settlement::Fail(_)
            ));
        }
        assert_eq!(settle(answered(499, None), &policy), Settlement::Complete);
    }

    #[test]
    fn what_was_not_answered_whole_is_unresolved_and_only_proof_makes_it_failed() {
        let policy = Policy::default();
        for why in UnknownWhy::ALL {
            let settlement = settle(Exchange::Unknown(why), &policy);
            assert_eq!(settlement, Settlement::Unresolve(why, problem_of(why)));
        }
        assert_eq!(
            settle(Exchange::NotSent, &policy),
            Settlement::Fail(FailedWhy::NotSent)
        );
    }

    #[test]
    fn an_answer_over_the_limit_is_completed_but_not_kept() {
        let exchange = Exchange::Answered {
            status: 201,
            retry_after: None,
            kept: false,
        };
        assert_eq!(
            settle(exchange, &Policy::default()),
            Settlement::CompleteNotKept
        );
    }
}
