//! A server that answers, but will not do it: no new claim gets through, what is completed is still
//! replayed, and the error says whether anything can have happened.

use retrysafe::store::{Delivery, StoreErrorKind};

use super::{Bench, apply, assert_refused, in_time, key};
use crate::store_contract::operations::*;
use crate::support::eventually;

/// Key 1 completed, 2 in flight, 3 unresolved; 9 is free.
async fn prepared(arguments: &[&str]) -> Option<Bench> {
    let bench = Bench::start(arguments).await?;
    for number in 1..=3 {
        assert_eq!(bench.says(number, claim('a')).await, "acquired 1");
    }
    let completed = settle('a', 1, completed());
    assert_eq!(bench.says(1, completed).await, "stored");
    let unresolved = settle('a', 1, unresolved());
    assert_eq!(bench.says(3, unresolved).await, "stored");
    Some(bench)
}

/// What holds for every server that takes no new claims.
async fn assert_replays_only(bench: &Bench, kind: StoreErrorKind, code: &str) {
    for (number, what) in [(9, "a new claim"), (2, "in flight"), (3, "unresolved")] {
        let error = bench.error(number, claim('b')).await;
        assert_eq!(error.kind, kind, "{what}: {error}");
        assert_eq!(error.delivery, Delivery::NotSent, "{what}: {error}");
        assert!(error.message.contains(code), "{what}: {error}");
    }
    assert_eq!(bench.says(1, claim('b')).await, "held completed a1");
    assert_eq!(bench.says(2, read()).await, "held in_flight a1");
}

#[tokio::test]
async fn full_memory_refuses_leases_and_records_finished_work() {
    let Some(bench) = prepared(&[]).await else {
        return;
    };
    bench.config("maxmemory", "1");
    assert_replays_only(&bench, StoreErrorKind::Full, "OOM").await;
    let take_over = bench.error(3, take_over('b', seen('a', 1))).await;
    assert_eq!(take_over.kind, StoreErrorKind::Full);
    // Work that is done is written down, whatever it costs.
    assert_eq!(bench.says(2, renew('a', 1, true)).await, "stored");
    let large = settle('a', 1, completed_with(&vec![7; 100_000]));
    assert_eq!(bench.says(2, large).await, "stored");
    assert_eq!(bench.says(2, claim('b')).await, "held completed a1");
    let lost = settle('c', 1, completed());
    assert_eq!(bench.says(8, lost).await, "stored again");
    assert_eq!(bench.says(7, abandon('d')).await, "stored again");
    bench.config("maxmemory", "0");
    assert_eq!(bench.says(9, claim('b')).await, "acquired 1");
}

#[tokio::test]
async fn a_read_only_replica_replays_and_does_nothing_else() {
    let Some(bench) = prepared(&[]).await else {
        return;
    };
    bench.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_replays_only(&bench, StoreErrorKind::Refused, "READONLY").await;
    assert_refused(
        &bench.error(2, settle('a', 1, completed())).await,
        "READONLY",
    );
    assert_refused(&bench.error(2, renew('a', 1, true)).await, "READONLY");
    assert_refused(&bench.error(9, abandon('a')).await, "READONLY");
    bench.server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(bench.says(9, claim('b')).await, "acquired 1");
}

#[tokio::test]
async fn a_server_that_cannot_save_replays_and_does_nothing_else() {
    let Some(bench) = prepared(&[]).await else {
        return;
    };
    bench.config("save", "3600 1");
    std::fs::remove_dir_all(bench.server.folder()).unwrap();
    bench.server.cli(&["BGSAVE"]);
    eventually("the snapshot fails", || {
        bench.server.info("rdb_last_bgsave_status") == "err"
    });
    assert_replays_only(&bench, StoreErrorKind::Refused, "MISCONF").await;
    assert_refused(
        &bench.error(2, settle('a', 1, completed())).await,
        "MISCONF",
    );
    bench.config("stop-writes-on-bgsave-error", "no");
    let settled = settle('a', 1, completed());
    assert_eq!(bench.says(2, settled).await, "stored");
}

#[tokio::test]
async fn too_few_replicas_let_nothing_but_replays_through() {
    let Some(bench) = prepared(&[]).await else {
        return;
    };
    bench.config("min-replicas-to-write", "1");
    assert_replays_only(&bench, StoreErrorKind::Refused, "NOREPLICAS").await;
    bench.config("min-replicas-to-write", "0");
    assert_eq!(bench.says(9, claim('b')).await, "acquired 1");
}

#[tokio::test]
async fn a_busy_server_refuses_everything_for_as_long() {
    let Some(bench) = prepared(&["--lua-time-limit", "50"]).await else {
        return;
    };
    let _looping = bench.server.send(&["EVAL", "while true do end", "0"]);
    eventually("the script is too slow", || {
        let said = bench.server.cli(&["PING"]);
        matches!(said, redis::Value::ServerError(error) if error.code() == "BUSY")
    });
    let error = bench.error(9, claim('b')).await;
    assert_refused(&error, "BUSY");
    assert_eq!(error.delivery, Delivery::NotSent);
    assert_refused(&bench.error(1, claim('b')).await, "BUSY");
    assert_refused(&bench.error(2, renew('a', 1, true)).await, "BUSY");
    // A connection made meanwhile does not mistake the refusal for an old server.
    let fresh = bench.stores.handle();
    assert_refused(&apply(&fresh, 9, claim('b')).await.unwrap_err(), "BUSY");
    bench.server.cli(&["SCRIPT", "KILL"]);
    in_time("the script ends", async || bench.store.ping().await.is_ok()).await;
    assert_eq!(bench.says(9, claim('b')).await, "acquired 1");
}

#[tokio::test]
async fn a_server_that_is_loading_refuses_until_it_has_loaded() {
    let Some(mut bench) = prepared(&["--loading-process-events-interval-bytes", "1024"]).await
    else {
        return;
    };
    let fill = "for i = 1, 2000 do redis.call('SET', 'filler' .. i, string.rep('x', 1000)) end";
    bench.server.cli(&["EVAL", fill, "0"]);
    bench.server.cli(&["SAVE"]);
    bench.server.kill();
    bench.server.restart_loading(&["--key-load-delay", "20000"]);
    let store = bench.stores.handle();
    let error = apply(&store, 9, claim('b')).await.unwrap_err();
    assert_refused(&error, "LOADING");
    assert_eq!(error.delivery, Delivery::NotSent);
    let error = apply(&store, 1, claim('b')).await.unwrap_err();
    assert_refused(&error, "LOADING");
    bench.config("key-load-delay", "0");
    in_time("it has loaded", async || store.ping().await.is_ok()).await;
    let replay = apply(&store, 1, claim('b')).await.unwrap();
    assert_eq!(replay, "held completed a1");
    assert_eq!(apply(&store, 9, claim('b')).await.unwrap(), "acquired 1");
}

#[tokio::test]
async fn an_error_names_no_key() {
    let Some(bench) = prepared(&[]).await else {
        return;
    };
    bench.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = bench.error(9, claim('b')).await;
    assert!(!error.message.contains(&key(9).to_string()), "{error}");
}
