//! Every pair of one owner's operations, in both orders and doubled, from every state the owner can
//! find the record in: each step answers what the specification answers.

use std::sync::Arc;

use retrysafe::idempotency::record::FailedWhy;
use retrysafe::idempotency::transition::Entry;
use retrysafe::idempotency::{Operation, RecordKey, transition};
use tokio::task::JoinSet;

use super::bench::{Bench, comparable};
use super::operations::*;

/// Sequences under way at once: what makes the file store commit them together.
const AT_ONCE: usize = 128;

/// What happened before the owner `a` acts: nothing, a claim of its own, or somebody else.
fn beginnings() -> Vec<Vec<Operation>> {
    vec![
        vec![],
        vec![claim('a')],
        vec![claim('b')],
        vec![settle('b', 1, failed(FailedWhy::NotSent))],
        vec![settle('b', 1, failed_by_status())],
        vec![settle('b', 1, unresolved())],
        vec![settle('b', 1, completed())],
    ]
}

fn operations() -> Vec<Operation> {
    vec![
        claim('a'),
        claim_waited('a'),
        take_over('a', seen('b', 1)),
        renew('a', 1, false),
        renew('a', 1, true),
        settle('a', 1, completed()),
        settle('a', 1, not_kept()),
        settle('a', 1, failed(FailedWhy::NotSent)),
        settle('a', 1, unresolved()),
        abandon('a'),
    ]
}

fn sequences() -> Vec<Vec<Operation>> {
    let mut all = Vec::new();
    let operations = operations();
    for (at, one) in operations.iter().enumerate() {
        for other in operations.iter().skip(at) {
            for order in [
                [one, other, one, other],
                [other, one, other, one],
                [one, one, other, other],
                [other, other, one, one],
            ] {
                all.push(order.into_iter().cloned().collect());
            }
        }
    }
    all
}

/// Plays all of them, at first within the lease and then past two of them.
pub(crate) async fn all(bench: Bench) {
    let bench = Arc::new(bench);
    let mut played = 0;
    for pause in [0, 2 * LEASE] {
        let mut plays = Vec::new();
        for beginning in beginnings() {
            for sequence in sequences() {
                plays.push(Play {
                    key: bench.key(),
                    beginning: beginning.clone(),
                    sequence,
                    began: bench.now(),
                });
            }
        }
        played += plays.len();
        plays = at_once(&bench, plays, Play::begin).await;
        bench.advance(pause).await;
        at_once(&bench, plays, Play::go_on).await;
    }
    assert!(played > 1_000, "{played} sequences");
}

/// Runs one phase of every play, many at a time, and gives the plays back.
async fn at_once<F>(
    bench: &Arc<Bench>,
    plays: Vec<Play>,
    phase: fn(Arc<Bench>, Play) -> F,
) -> Vec<Play>
where
    F: Future<Output = Play> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    for play in plays {
        if running.len() >= AT_ONCE {
            done.push(running.join_next().await.unwrap().unwrap());
        }
        running.spawn(phase(Arc::clone(bench), play));
    }
    done.extend(running.join_all().await);
    done
}

struct Play {
    key: RecordKey,
    beginning: Vec<Operation>,
    sequence: Vec<Operation>,
    began: u64,
}

impl Play {
    async fn begin(bench: Arc<Bench>, play: Self) -> Self {
        for operation in play.beginning.clone() {
            bench.apply(play.key, operation).await.unwrap();
        }
        play
    }

    async fn go_on(bench: Arc<Bench>, play: Self) -> Self {
        let mut expected: Option<Entry> = None;
        for operation in play.beginning.clone() {
            expected = transition(expected, operation, play.began).0;
        }
        let now = bench.now();
        for (step, operation) in play.sequence.iter().enumerate() {
            let answer = bench.apply(play.key, operation.clone()).await.unwrap();
            let (entry, outcome) = transition(expected, operation.clone(), now);
            expected = entry;
            assert_eq!(
                answer,
                comparable(outcome),
                "step {step} of {:?} after {:?}",
                play.sequence,
                play.beginning
            );
        }
        play
    }
}
