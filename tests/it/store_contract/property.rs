//! Random play: several owners, lost replies, stale tokens, jumps in time. After every step the
//! store and the specification must have answered the same.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use retrysafe::idempotency::record::{FailedWhy, Seen};
use retrysafe::idempotency::transition::{Entry, OperateOn};
use retrysafe::idempotency::{Attempt, Operation, Outcome, State, transition};

use super::bench::{Bench, GRAIN, Kind, comparable};
use super::operations::*;

const OWNERS: [char; 3] = ['a', 'b', 'c'];
const OPERATORS: [char; 2] = ['x', 'y'];

/// A step without the facts that only the moment knows (attempts, the owner in place).
#[derive(Debug, Clone)]
enum Move {
    Read,
    Claim { who: char, waited: bool },
    TakeOver { who: char, stale: bool },
    Renew { who: char, dispatched: bool },
    Settle { who: char, state: State },
    Abandon { who: char },
    Operate { who: char, stale: bool, any: bool },
    Jump { grains: u64 },
}

/// A move, and whether its reply is lost, so that it is sent again.
#[derive(Debug, Clone)]
struct Turn {
    step: Move,
    lost_reply: bool,
}

fn states() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => Just(completed()),
        1 => Just(not_kept()),
        2 => Just(unresolved()),
        1 => Just(failed(FailedWhy::NotSent)),
        1 => Just(failed_by_status()),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    let who = || prop::sample::select(OWNERS.to_vec());
    let operator = prop::sample::select(OPERATORS.to_vec());
    let rarely = || prop::bool::weighted(0.2);
    prop_oneof![
        1 => Just(Move::Read),
        6 => (who(), any::<bool>()).prop_map(|(who, waited)| Move::Claim { who, waited }),
        2 => (who(), rarely()).prop_map(|(who, stale)| Move::TakeOver { who, stale }),
        2 => (who(), any::<bool>()).prop_map(|(who, dispatched)| Move::Renew { who, dispatched }),
        4 => (who(), states()).prop_map(|(who, state)| Move::Settle { who, state }),
        2 => who().prop_map(|who| Move::Abandon { who }),
        2 => (operator, rarely(), any::<bool>())
            .prop_map(|(who, stale, any)| Move::Operate { who, stale, any }),
        3 => (1..=12_u64).prop_map(|grains| Move::Jump { grains }),
    ]
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (moves(), prop::bool::weighted(0.25))
        .prop_map(|(step, lost_reply)| Turn { step, lost_reply });
    vec(turn, 1..40)
}

/// Plays many games against one store.
pub(crate) fn play(kind: Kind) {
    let runtime = kind.runtime();
    let Some(bench) = runtime.block_on(async { Bench::new(kind) }) else {
        return;
    };
    let config = Config {
        cases: kind.plays(),
        failure_persistence: None,
        ..Config::default()
    };
    let mut steps = 0;
    let steps = std::cell::RefCell::new(&mut steps);
    let result = TestRunner::new(config).run(&turns(), |turns| {
        **steps.borrow_mut() += turns.len();
        runtime.block_on(game(&bench, turns))
    });
    if let Err(TestError::Fail(why, turns)) = result {
        panic!("{why}\nshortest game: {turns:#?}");
    }
    assert!(**steps.borrow() > 100, "games were played");
}

async fn game(bench: &Bench, turns: Vec<Turn>) -> Result<(), TestCaseError> {
    let key = bench.key();
    let mut expected: Option<Entry> = None;
    let mut attempts = std::collections::HashMap::new();
    for Turn { step, lost_reply } in turns {
        let Some((who, operation)) = operation(&step, expected.as_ref(), &attempts) else {
            if let Move::Jump { grains } = step {
                bench.advance(grains * GRAIN).await;
            }
            continue;
        };
        for _ in 0..=u8::from(lost_reply) {
            let answer = bench.apply(key, operation.clone()).await;
            let (entry, outcome) = transition(expected, operation.clone(), bench.now());
            expected = entry;
            if let Outcome::Acquired { attempt } = outcome {
                attempts.insert(who, attempt);
            }
            prop_assert_eq!(answer, Ok(comparable(outcome)), "{:?}", operation);
        }
    }
    Ok(())
}

/// The operation a move means now, and whose it is; `None` for a jump.
fn operation(
    step: &Move,
    entry: Option<&Entry>,
    attempts: &std::collections::HashMap<char, Attempt>,
) -> Option<(char, Operation)> {
    let attempt = |who: &char| attempts.get(who).copied().unwrap_or(1);
    let seen = |stale: bool| -> Seen {
        match entry {
            Some(entry) if !stale => entry.record.seen(),
            _ => seen('a', 1),
        }
    };
    Some(match step {
        Move::Read => ('-', read()),
        Move::Claim { who, waited: false } => (*who, claim(*who)),
        Move::Claim { who, waited: true } => (*who, claim_waited(*who)),
        Move::TakeOver { who, stale } => (*who, take_over(*who, seen(*stale))),
        Move::Renew { who, dispatched } => (*who, renew(*who, attempt(who), *dispatched)),
        Move::Settle { who, state } => (*who, settle(*who, attempt(who), state.clone())),
        Move::Abandon { who } => (*who, abandon(*who)),
        Move::Operate { who, stale, any } => {
            let on = if *any {
                OperateOn::Any
            } else {
                OperateOn::Unresolved
            };
            (*who, release(*who, seen(*stale), on))
        }
        Move::Jump { .. } => return None,
    })
}
