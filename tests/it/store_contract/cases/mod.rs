//! The list: conversations with one record, each step with the answer it must get.
//!
//! `owners.rs` and `others.rs` hold the cases. The letters are owners, `a1` is owner a's first attempt. `x` is an operator.

mod others;
mod owners;

use retrysafe::idempotency::Operation;

use super::bench::Bench;
use super::operations::words;

#[expect(clippy::large_enum_variant, reason = "a list of some hundred steps")]
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
pub(crate) async fn all(bench: Bench) {
    let list = [
        owners::claims(),
        owners::claims_after_an_end(),
        owners::settles(),
        owners::leases(),
        others::abandoned(),
        others::lost_memory(),
        others::takeovers(),
        others::operators(),
        others::ends(),
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
