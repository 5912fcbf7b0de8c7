//! What is stored: what cannot be read, what has ended, what a try costs.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Operation, Outcome, RecordKey};
use retrysafe::store::{Delivery, StoreErrorKind};
use tokio::task::JoinSet;

use super::{Bench, apply, key};
use crate::store_contract::operations::*;
use crate::support::postgres::stores;

#[tokio::test]
async fn what_cannot_be_read_is_an_error_and_never_absent() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for (number, change) in [
        (1, "record = set_byte(record, 0, 9)"),
        (2, "record = set_byte(record, 60, 255)"),
        (3, "record = substr(record, 1, 30)"),
        (4, "record = ''"),
    ] {
        bench.says(number, claim('a')).await;
        bench.says(number, settle('a', 1, completed())).await;
        let name = key(number);
        let spoil = format!("UPDATE retrysafe_records SET {change} WHERE key = '\\x{name}'");
        bench.server.sql(&spoil).await;
        for operation in [claim('b'), read(), abandon('b')] {
            let error = bench.error(number, operation).await;
            assert_eq!(error.kind, StoreErrorKind::Unreadable, "{error}");
            assert_eq!(error.delivery, Delivery::NotSent);
        }
    }
}

#[tokio::test]
async fn a_first_execution_is_two_statements_and_a_replay_one() {
    let Some(bench) = Bench::start(&["log_statement=all"]).await else {
        return;
    };
    let statements = || {
        let log = bench.server.log();
        let told = log
            .lines()
            .filter(|line| line.contains("execute <unnamed>"));
        told.map(|line| line.contains("pg_notify"))
            .collect::<Vec<_>>()
    };
    let before = statements().len();
    bench.says(1, claim('a')).await;
    assert_eq!(statements()[before..], [false], "the claim");
    bench.says(1, settle('a', 1, completed())).await;
    assert_eq!(
        statements()[before..],
        [false, false, true],
        "the settle, and its wake-up"
    );
    let before = statements().len();
    assert_eq!(bench.says(1, claim('b')).await, "held completed a1");
    assert_eq!(statements().len() - before, 1, "the replay");
    bench.says(2, claim('a')).await;
    let before = statements().len();
    bench.says(2, renew('a', 1, true)).await;
    assert_eq!(statements().len() - before, 1, "a renewal");
}

#[tokio::test]
async fn a_sweep_takes_a_batch_of_what_has_ended_and_waits_for_nobody() {
    let Some(bench) = Bench::start(&["synchronous_commit=off"]).await else {
        return;
    };
    let fill = "INSERT INTO retrysafe_records
        SELECT sha256(n::text::bytea), 4, '', 1, 1000, n, '' FROM generate_series(1, 2500) AS n";
    bench.server.sql(fill).await;
    bench.says(1, claim('a')).await;
    // Somebody is at one of them.
    let busy = bench.server.client().await;
    let hold = "BEGIN; SELECT FROM retrysafe_records WHERE ends_at = 1 FOR UPDATE";
    busy.batch_execute(hold).await.unwrap();
    assert_eq!(bench.stores.sweep(1_000).await, Ok(1_000));
    assert_eq!(bench.stores.sweep(1_000).await, Ok(1_000));
    assert_eq!(bench.stores.sweep(1_000).await, Ok(499));
    assert_eq!(bench.stores.sweep(1_000).await, Ok(0));
    busy.batch_execute("COMMIT").await.unwrap();
    assert_eq!(bench.stores.sweep(1_000).await, Ok(1));
    assert_eq!(bench.says(1, read()).await, "held in_flight a1");
    let plan = bench.server.client().await;
    plan.batch_execute("SET enable_seqscan = off")
        .await
        .unwrap();
    let explain = "EXPLAIN SELECT key FROM retrysafe_records WHERE ends_at <= \
                   (extract(epoch from statement_timestamp()) * 1000)::bigint ORDER BY ends_at LIMIT 1000";
    let said = format!("{:?}", plan.simple_query(explain).await.unwrap());
    assert!(said.contains("Index Cond"), "{said}");
}

#[tokio::test]
async fn sweeps_and_traffic_do_not_stand_in_each_others_way() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    // Records that end at once are claimed, settled and swept all the time.
    let short = || Operation::Settle {
        record: retrysafe::idempotency::Record {
            retention: Duration::from_millis(1),
            ..record('a', 1, completed())
        },
    };
    let mut play = JoinSet::new();
    for number in 1..=4 {
        let store = Arc::clone(&bench.store);
        play.spawn(async move {
            for _ in 0..100 {
                let said = apply(&store, number, claim('a')).await.unwrap();
                assert!(
                    said == "acquired 1" || said == "held completed a1",
                    "{said}"
                );
                store.apply(key(number), short()).await.unwrap();
            }
        });
    }
    while !play.is_empty() {
        bench.stores.sweep(1_000).await.unwrap();
        if let Some(ended) = play.try_join_next() {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_claimers_in_two_processes_one_wins() {
    let Some(bench) = Bench::start(&["synchronous_commit=off"]).await else {
        return;
    };
    let other = stores(&bench.server.url()).handle();
    for round in 0..100_u8 {
        let mut claims = JoinSet::new();
        for letter in 'a'..='p' {
            let store = if letter < 'i' { &bench.store } else { &other };
            let store = Arc::clone(store);
            claims.spawn(async move {
                let key = RecordKey([round; 32]);
                store.apply(key, claim(letter)).await.unwrap()
            });
        }
        let all = claims.join_all().await;
        let won = |outcome: &&Outcome| matches!(outcome, Outcome::Acquired { attempt: 1 });
        let held = |outcome: &&Outcome| matches!(outcome, Outcome::Held(_));
        assert_eq!(all.iter().filter(won).count(), 1, "{all:?}");
        assert_eq!(all.iter().filter(held).count(), 15, "{all:?}");
    }
}

#[tokio::test]
async fn a_large_answer_comes_back_whole() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let body: Vec<u8> = (0..8_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    bench.says(1, claim('a')).await;
    bench.says(1, settle('a', 1, completed_with(&body))).await;
    let Ok(Outcome::Held(held)) = bench.store.apply(key(1), claim('b')).await else {
        panic!("it is completed");
    };
    assert!(held.record.state == completed_with(&body));
}
