//! The marks by which a cluster's nodes are known to be what they were: one each, where its slots are.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use retrysafe::store::{RedisStores, Settings};

use super::cluster::{begin_move, end_move, of_node_0};
use super::{apply, key};
use crate::store_contract::operations::claim;
use retrysafe::store::tier::Tier;

use crate::support::cut::Link;
use crate::support::faulty::Faulty;
use crate::support::in_time;
use crate::support::redis::{Redis, settings_at};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_groups::{master, replica_of};

fn watching(url: String) -> RedisStores {
    let settings = Settings {
        hold_off: Duration::from_mins(10),
        ..settings_at(url)
    };
    RedisStores::new(&settings, Arc::new(|_| {})).unwrap()
}

/// A master and its replica behind a name, and a store that waits for the replica.
fn confirmed(disk: &[&str]) -> Option<(Redis, Redis, Faulty, RedisStores)> {
    let first = master(disk)?;
    let second = replica_of(first.addr(), disk)?;
    let name = Faulty::to(first.addr());
    let settings = Settings {
        hold_off: Duration::from_mins(10),
        wait_replicas: 1,
        ..settings_at(format!("redis://{}", name.addr))
    };
    let stores = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
    Some((first, second, name, stores))
}

async fn looked(stores: &RedisStores) -> (u64, &'static str) {
    let store = stores.handle();
    in_time("it answers", async || store.ping().await.is_ok()).await;
    stores.look().await;
    let noticed = *stores.loss().subscribe().borrow();
    (noticed.times, noticed.how)
}

#[tokio::test]
async fn a_replica_that_confirmed_and_took_over_lost_nothing() {
    let Some((mut first, second, name, stores)) = confirmed(&["--save", ""]) else {
        return;
    };
    in_time("the replica is known", async || {
        stores.guarantee().await.unwrap().tier == Tier::T3
    })
    .await;
    assert_eq!(looked(&stores).await, (0, ""));
    // It counts whole seconds, at the beginning from below zero.
    in_time(
        "the replica has the mark and was surely there",
        async || {
            !marks(&second).is_empty() && second.info("uptime_in_seconds").parse().unwrap_or(0) > 2
        },
    )
    .await;
    assert_eq!(looked(&stores).await, (0, ""));
    first.kill();
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    name.redirect(second.addr());
    assert_eq!(looked(&stores).await, (0, ""));
}

#[tokio::test]
async fn a_connection_to_a_replica_gives_out_nothing_before_somebody_looked() {
    let Some(mut first) = master(&["--save", ""]) else {
        return;
    };
    let link = Link::to(first.addr());
    let second = replica_of(link.addr, &["--save", ""]).unwrap();
    let name = Faulty::to(first.addr());
    let stores = watching(format!("redis://{}", name.addr));
    assert_eq!(looked(&stores).await, (0, ""));
    in_time("the replica has the mark", async || {
        !marks(&second).is_empty()
    })
    .await;
    link.cut();
    let store = stores.handle();
    let claimed = apply(&store, 1, claim('a')).await;
    assert_eq!(claimed.unwrap(), "acquired 1");
    first.kill();
    name.redirect(second.addr());
    // Connections to the replica, which survive its promotion.
    in_time("it is asked", async || store.ping().await.is_ok()).await;
    stores.look().await;
    let error = apply(&store, 1, claim('b')).await.unwrap_err();
    assert!(error.message.contains("READONLY"), "{error}");
    assert_eq!(losses(&stores), 0);
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    let error = apply(&store, 1, claim('b')).await.unwrap_err();
    assert!(error.message.contains("lost its memory"), "{error}");
    assert_eq!(losses(&stores), 1);
}

#[tokio::test]
async fn a_master_that_starts_anew_lost_what_its_replica_confirmed_and_its_disk_had_not() {
    let Some((mut first, _second, _name, stores)) = confirmed(&["--appendonly", "yes"]) else {
        return;
    };
    // The mark is on the disk; what comes later may not be.
    first.cli(&["CONFIG", "SET", "appendfsync", "always"]);
    assert_eq!(looked(&stores).await, (0, ""));
    first.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    in_time("the replica is known", async || {
        stores.guarantee().await.unwrap().tier == Tier::T3
    })
    .await;
    first.kill();
    first.restart(&[]);
    let how = "it was started anew, or another one answers";
    assert_eq!(looked(&stores).await, (1, how));
}

#[tokio::test]
async fn a_master_that_starts_anew_from_a_snapshot_is_no_replica_that_took_over() {
    let Some((mut first, _second, _name, stores)) = confirmed(&["--save", ""]) else {
        return;
    };
    in_time("the replica is known", async || {
        stores.guarantee().await.unwrap().tier == Tier::T3
    })
    .await;
    assert_eq!(looked(&stores).await, (0, ""));
    let data = first.info("master_replid");
    assert_eq!(first.cli(&["SAVE"]), Value::Okay);
    first.kill();
    first.restart(&[]);
    assert_eq!(
        first.info("master_replid2"),
        data,
        "as a promoted replica says it"
    );
    let how = "it was started anew, or another one answers";
    assert_eq!(looked(&stores).await, (1, how));
}

fn losses(stores: &RedisStores) -> u64 {
    stores.loss().subscribe().borrow().times
}

/// The names of the marks that a node keeps.
fn marks(node: &Redis) -> Vec<Value> {
    match node.cli(&["KEYS", "test:mark*"]) {
        Value::Array(names) => names,
        other => panic!("{other:?}"),
    }
}

/// The name of the mark in this slot.
fn mark_in(cluster: &Cluster, slot: &str) -> Value {
    let found = cluster.nodes[0].cli(&["CLUSTER", "GETKEYSINSLOT", slot, "2"]);
    match found {
        Value::Array(names) if names.len() == 1 => names[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_mark_along_and_that_is_no_loss() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    let stores = watching(cluster.url());
    stores.look().await;
    for node in &cluster.nodes {
        assert_eq!(marks(node).len(), 1);
    }
    // The slot in which node 0 has its mark, and its next.
    for slot in ["0", "1"] {
        let mark = mark_in(&cluster, slot);
        begin_move(&cluster, slot);
        stores.look().await;
        end_move(&cluster, slot);
        assert!(!marks(&cluster.nodes[0]).contains(&mark));
        assert!(marks(&cluster.nodes[1]).contains(&mark));
        // Meanwhile it is the last one that is looked at; then the table is known to be another.
        in_time("node 0 has a mark in its first slot again", async || {
            stores.look().await;
            marks(&cluster.nodes[0]).len() == 2
        })
        .await;
        stores.look().await;
        assert_eq!(losses(&stores), 0);
    }
    cluster.nodes[1].cli(&["FLUSHALL"]);
    stores.look().await;
    assert_eq!(losses(&stores), 1);
    assert!(stores.loss().left().is_some());
    // Who comes now is told, whichever node it asks.
    let late = watching(cluster.url());
    late.look().await;
    assert_eq!(losses(&late), 0);
    assert!(late.loss().left().is_some());
    stores.look().await;
    for node in &cluster.nodes {
        let Value::Array(told) = node.cli(&["KEYS", "test:lost*"]) else {
            panic!("a list");
        };
        assert_eq!(told.len(), 1, "every node tells");
    }
}

#[tokio::test]
async fn a_replica_that_took_over_is_known_as_one_before_it_is_given_a_claim() {
    let Some(cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let stores = watching(cluster.url());
    stores.look().await;
    let store = stores.handle();
    let (number, _) = of_node_0(&cluster, 1).swap_remove(0);
    let claimed = apply(&store, number, claim('a')).await;
    assert_eq!(claimed.unwrap(), "acquired 1");
    let name = format!("test:{}", key(number));
    let replica = &cluster.nodes[3];
    // Its link is not the matter here: what it lacks is taken from it below.
    in_time("the replica has the record", async || {
        replica.info("slave_repl_offset") == cluster.nodes[0].info("master_repl_offset")
    })
    .await;
    assert_eq!(
        replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]),
        Value::Okay
    );
    in_time("the old one knows", async || {
        cluster.nodes[0].info("role") == "slave"
    })
    .await;
    assert_eq!(replica.cli(&["DEL", &name]), Value::Int(1));
    // The table still names the old one, which says MOVED.
    let error = apply(&store, number, claim('b')).await.unwrap_err();
    assert!(error.message.contains("lost its memory"), "{error}");
    assert_eq!(losses(&stores), 1);
}
