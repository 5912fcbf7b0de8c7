//! `store.wait_replicas`: what a replica must have before it counts, and what a failover to it loses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::Value;
use retrysafe::store::{Delivery, Store, StoreErrorKind};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{apply, stores};
use crate::store_contract::operations::*;
use crate::support::cut::Link;
use crate::support::in_time;
use crate::support::redis::{Flavour, Redis};
use crate::support::redis_groups::{master_flavour, replica_of_flavour};
use crate::support::sidecar::{Plan, Tables};
use crate::support::upstream::Upstream;

/// A master, a link that can be cut, and the replica behind it.
fn linked() -> Option<(Redis, Link, Redis)> {
    linked_flavour(Flavour::Installed)
}

fn linked_flavour(flavour: Flavour) -> Option<(Redis, Link, Redis)> {
    let patient = ["--repl-timeout", "3600"];
    let master = master_flavour(flavour, &patient)?;
    let link = Link::to(master.addr());
    let replica = replica_of_flavour(flavour, link.addr, &patient)?;
    Some((master, link, replica))
}

const TIMEOUT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn what_no_replica_has_does_not_count_and_is_there_all_the_same() {
    let Some((master, link, _replica)) = linked() else {
        return;
    };
    let store = stores(master.url(), 1, TIMEOUT).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    assert_eq!(apply(&store, 2, claim('a')).await.unwrap(), "acquired 1");
    let settled = settle('a', 1, completed());
    assert_eq!(apply(&store, 2, settled.clone()).await.unwrap(), "stored");

    link.cut();
    // Refused before its time is over: else it would be a timeout.
    for operation in [claim('c'), claim('c')] {
        let error = apply(&store, 3, operation).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unconfirmed, "{error}");
        assert_eq!(error.delivery, Delivery::MaybeSent);
        assert_eq!(error.message, "replicas that confirmed the write: 0 of 1");
    }
    // What was confirmed is replayed, and what was not can be withdrawn.
    let held = apply(&store, 2, claim('b')).await.unwrap();
    assert_eq!(held, "held completed a1");
    assert_eq!(apply(&store, 3, abandon('c')).await.unwrap(), "stored");
    assert_eq!(
        apply(&store, 1, renew('a', 1, true)).await.unwrap(),
        "stored"
    );
    for _ in 0..2 {
        // The second finds its work done, and asks the replicas all the same.
        let error = apply(&store, 1, settled.clone()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unconfirmed, "{error}");
    }

    link.heal();
    in_time("the settle is confirmed", async || {
        apply(&store, 1, settled.clone()).await == Ok("stored".to_owned())
    })
    .await;
    assert_eq!(apply(&store, 3, claim('d')).await.unwrap(), "acquired 2");
}

#[tokio::test]
async fn a_repetition_on_another_connection_is_confirmed_too() {
    for flavour in [Flavour::Installed, Flavour::Redis62, Flavour::Valkey] {
        repeated_elsewhere(flavour).await;
    }
}

async fn repeated_elsewhere(flavour: Flavour) {
    let Some((master, link, _replica)) = linked_flavour(flavour) else {
        return;
    };
    let [first, second] = [(); 2].map(|()| stores(master.url(), 1, TIMEOUT).handle());
    assert_eq!(apply(&first, 9, claim('a')).await.unwrap(), "acquired 1");
    link.cut();
    // WAIT speaks of a connection's own writes: whoever finds the work done writes something too.
    for operation in [claim('a'), settle('a', 1, completed())] {
        let before = calls(&master, "pexpire");
        for store in [&first, &second] {
            let error = apply(store, 1, operation.clone()).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Unconfirmed, "{error}");
        }
        assert_eq!(calls(&master, "pexpire") - before, 1, "{operation:?}");
    }
    let lost = settle('b', 1, unresolved());
    assert!(apply(&first, 2, lost).await.is_err());
    for store in [&first, &second] {
        let error = apply(store, 2, take_over('c', seen('b', 1)))
            .await
            .unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unconfirmed, "{error}");
    }
}

#[tokio::test]
async fn many_writes_share_one_wait() {
    let Some((master, link, _replica)) = linked() else {
        return;
    };
    let store = stores(master.url(), 1, Duration::from_secs(2)).handle();
    let mut claims = JoinSet::new();
    for number in 1..=500 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await.unwrap() });
    }
    let said = claims.join_all().await;
    assert!(said.iter().all(|said| said == "acquired 1"), "{said:?}");
    let waits = calls(&master, "wait");
    assert!(waits < 250, "{waits} times");
    // Nobody holds the others up: one after another they would take minutes.
    link.cut();
    let began = Instant::now();
    let mut claims = JoinSet::new();
    for number in 1_001..=1_200 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await.unwrap_err().kind });
    }
    let refused = claims.join_all().await;
    assert!(
        refused
            .iter()
            .all(|kind| *kind == StoreErrorKind::Unconfirmed)
    );
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
}

/// How often the server carried a command out.
fn calls(server: &Redis, command: &str) -> u64 {
    let stats = server.info(&format!("cmdstat_{command}"));
    let calls = stats
        .strip_prefix("calls=")
        .and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Claims while the link is cut, the master killed and the replica promoted. Answers how many were
/// acknowledged, how many were refused, and how many of the acknowledged ones are lost.
async fn failover(replicas: u32) -> Option<(usize, usize, usize)> {
    let (mut master, link, replica) = linked()?;
    let store = stores(master.url(), replicas, Duration::from_millis(100)).handle();
    let (next, refused) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
    let granted = Arc::new(AtomicU32::new(0));
    let mut claiming = JoinSet::new();
    for _ in 0..16 {
        let (store, next, refused) = (Arc::clone(&store), Arc::clone(&next), Arc::clone(&refused));
        let granted = Arc::clone(&granted);
        claiming.spawn(async move {
            let mut acknowledged = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                match apply(&store, number, claim('a')).await {
                    Ok(said) => {
                        assert_eq!(said, "acquired 1");
                        acknowledged.push(number);
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) if error.kind == StoreErrorKind::Unavailable => break,
                    Err(_) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            acknowledged
        });
    }
    let count = || next.load(Ordering::Relaxed);
    in_time("it runs", async || granted.load(Ordering::Relaxed) > 1_000).await;
    link.cut();
    let cut_at = count();
    in_time("it goes on without the replica", async || {
        count() > cut_at + 100
    })
    .await;
    master.kill();
    let acknowledged: Vec<u32> = claiming.join_all().await.into_iter().flatten().collect();
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), Value::Okay);
    let promoted = stores(replica.url(), 0, Duration::from_secs(5)).handle();
    let lost = lost(&promoted, &acknowledged).await;
    let refused = refused.load(Ordering::Relaxed).try_into().unwrap();
    Some((acknowledged.len(), refused, lost))
}

async fn lost(store: &Arc<dyn Store>, acknowledged: &[u32]) -> usize {
    let mut lost = 0;
    for number in acknowledged {
        match apply(store, *number, read()).await.unwrap().as_str() {
            "held in_flight a1" => {}
            "absent" => lost += 1,
            other => panic!("{other}"),
        }
    }
    lost
}

#[tokio::test]
async fn what_a_replica_confirmed_survives_the_loss_of_the_master() {
    let Some((acknowledged, refused, lost)) = failover(1).await else {
        return;
    };
    println!("confirmed: {acknowledged} acknowledged, {refused} refused, {lost} lost");
    assert!(acknowledged > 1_000 && refused > 0);
    assert_eq!(lost, 0);
}

#[tokio::test]
async fn what_nobody_confirmed_may_be_lost_as_the_documents_say() {
    let Some((acknowledged, _, lost)) = failover(0).await else {
        return;
    };
    println!("asynchronous: {acknowledged} acknowledged, {lost} lost");
    assert!(lost > 0, "or the test above shows nothing");
}

#[test]
fn without_its_replica_nothing_is_executed() {
    let Some((master, link, _replica)) = linked() else {
        return;
    };
    let upstream = Upstream::counting();
    let url = master.url();
    let tables = Tables {
        store_url: Some(&url),
        store: "wait_replicas = 1",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let pay = |key| crate::support::client::pay(sidecar.addr, key, "x");
    assert_eq!(pay("a").status, 201);
    link.cut();
    for key in ["b", "c"] {
        let refused = pay(key);
        let code = refused.code();
        let expected = (503, "idempotency_store_unavailable");
        assert_eq!((refused.status, code.as_str()), expected);
    }
    assert!(pay("a").is_replay());
    assert_eq!(upstream.calls(), 1);
    let labels = "{operation=\"claim\",kind=\"unconfirmed\"}";
    let refused = sidecar.metric(&format!("retrysafe_store_errors_total{labels}"));
    assert!(refused >= 2, "{refused}");
    sidecar.wait_log("\"event\":\"replicas_missing\"");
    link.heal();
    // Withdrawn, and executed by the next try.
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |count| count == 0);
    crate::support::eventually("it is executed", || pay("b").status == 201);
    assert_eq!(upstream.calls(), 2);
}
