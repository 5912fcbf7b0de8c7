//! A cluster: slots that move while claims run, and the loss of a node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use retrysafe::store::{OpenError, RedisStores, Settings, Store, StoreErrorKind, Wake};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Certificates, apply, key, stores};
use crate::store_contract::operations::*;
use crate::support::redis::{Redis, TLS_PORT, own_ip, settings_at, tls_port};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_groups::text;
use crate::support::{eventually, in_time};

const TIMEOUT: Duration = Duration::from_secs(2);

/// The slot of key `number`, and which node keeps it at the beginning.
fn slot(cluster: &Cluster, number: u32) -> (String, usize) {
    let slot = cluster.slot(&format!("test:{}", key(number)));
    (slot.to_string(), Cluster::keeper(slot))
}

/// Keys that node 0 keeps, each in a slot of its own.
pub(super) fn of_node_0(cluster: &Cluster, count: usize) -> Vec<(u32, String)> {
    let all = (1..).map(|number| (number, slot(cluster, number)));
    let of_0 = all.filter(|(_, (_, keeper))| *keeper == 0);
    of_0.map(|(number, (slot, _))| (number, slot))
        .take(count)
        .collect()
}

/// Begins to move a slot from node 0 to node 1: its absent keys are asked for there from now on.
pub(super) fn begin_move(cluster: &Cluster, slot: &str) {
    let (from, to) = (cluster.id(0), cluster.id(1));
    let importing = cluster.nodes[1].cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from]);
    let migrating = cluster.nodes[0].cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to]);
    assert_eq!((importing, migrating), (Value::Okay, Value::Okay));
}

/// Moves what is in it, and says so.
pub(super) fn end_move(cluster: &Cluster, slot: &str) {
    let to = cluster.nodes[1].addr();
    let (ip, port) = (to.ip().to_string(), to.port().to_string());
    loop {
        let found = cluster.nodes[0].cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
        let Value::Array(names) = found else {
            panic!("{found:?}");
        };
        if names.is_empty() {
            break;
        }
        for name in names {
            let Value::BulkString(name) = name else {
                panic!("a name");
            };
            let name = String::from_utf8(name).unwrap();
            cluster.nodes[0].cli(&["MIGRATE", &ip, &port, &name, "0", "5000"]);
        }
    }
    let to = cluster.id(1);
    for node in [1, 0, 2] {
        let said = cluster.nodes[node].cli(&["CLUSTER", "SETSLOT", slot, "NODE", &to]);
        assert_eq!(said, Value::Okay);
    }
}

#[tokio::test]
async fn a_slot_on_its_way_has_each_key_once() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    let store = stores(cluster.url(), 0, TIMEOUT).handle();
    let [(number, slot)] = <[_; 1]>::try_from(of_node_0(&cluster, 1)).unwrap();
    begin_move(&cluster, &slot);
    // Absent: it is made where the slot goes to, scripts included.
    for _ in 0..2 {
        cluster.nodes[1].cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(
            apply(&store, number, claim('a')).await.unwrap(),
            "acquired 1"
        );
        let held = apply(&store, number, claim('b')).await.unwrap();
        assert_eq!(held, "held in_flight a1");
    }
    assert_eq!(cluster.nodes[0].cli(&["DBSIZE"]), Value::Int(0));
    assert_eq!(cluster.nodes[1].cli(&["DBSIZE"]), Value::Int(1));
    end_move(&cluster, &slot);
    // The table is out of date; the node says so.
    let settled = settle('a', 1, completed());
    assert_eq!(apply(&store, number, settled).await.unwrap(), "stored");
    let held = apply(&store, number, claim('b')).await.unwrap();
    assert_eq!(held, "held completed a1");
}

#[tokio::test]
async fn while_slots_move_each_key_is_claimed_by_one() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    let keys = of_node_0(&cluster, 24);
    let moving = Arc::new(AtomicBool::new(true));
    let mut contenders = JoinSet::new();
    for letter in ['a', 'b', 'c', 'd'] {
        let store = stores(cluster.url(), 0, TIMEOUT).handle();
        let (keys, moving) = (keys.clone(), Arc::clone(&moving));
        contenders.spawn(async move {
            let mut won = Vec::new();
            let mut rounds = 0;
            while moving.load(Ordering::Relaxed) || rounds == 0 {
                for (number, _) in &keys {
                    let said = apply(&store, *number, claim(letter)).await.unwrap();
                    match said.as_str() {
                        "acquired 1" => won.push(*number),
                        other => assert!(other.starts_with("held in_flight"), "{other}"),
                    }
                    if won.contains(number) {
                        let renewed = apply(&store, *number, renew(letter, 1, true)).await;
                        assert_eq!(renewed.unwrap(), "stored");
                    }
                }
                rounds += 1;
            }
            won.sort_unstable();
            won.dedup();
            (won, rounds)
        });
    }
    let cluster = tokio::task::spawn_blocking(move || {
        for (_, slot) in &keys {
            begin_move(&cluster, slot);
        }
        for (_, slot) in &keys {
            end_move(&cluster, slot);
        }
        moving.store(false, Ordering::Relaxed);
        (cluster, keys)
    });
    let ends = contenders.join_all().await;
    let (cluster, keys) = cluster.await.unwrap();
    let mut won: Vec<u32> = ends.iter().flat_map(|(won, _)| won.clone()).collect();
    won.sort_unstable();
    let all: Vec<u32> = keys.iter().map(|(number, _)| *number).collect();
    assert_eq!(won, all, "each key has one owner");
    let rounds: usize = ends.iter().map(|(_, rounds)| rounds).sum();
    assert!(rounds > 4, "claims ran while slots moved");
    assert_eq!(cluster.nodes[0].cli(&["DBSIZE"]), Value::Int(0));
}

#[tokio::test]
async fn after_the_loss_of_a_node_its_replica_is_found() {
    let Some(mut cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let store = stores(cluster.url(), 1, TIMEOUT).handle();
    let keys = of_node_0(&cluster, 50);
    for (number, _) in &keys {
        assert_eq!(
            apply(&store, *number, claim('a')).await.unwrap(),
            "acquired 1"
        );
    }
    // Without confirmations from here on: the replica has no replica.
    let store = stores(cluster.url(), 0, TIMEOUT).handle();
    let (first, _) = keys[0];
    assert!(apply(&store, first, read()).await.is_ok());
    cluster.nodes[0].kill();
    let began = Instant::now();
    in_time("a read gets through", async || {
        match apply(&store, first, read()).await {
            Ok(said) => said == "held in_flight a1",
            Err(error) => {
                let kinds = [
                    StoreErrorKind::Unavailable,
                    StoreErrorKind::Timeout,
                    StoreErrorKind::Refused,
                ];
                assert!(kinds.contains(&error.kind), "{error}");
                false
            }
        }
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    for (number, _) in &keys {
        let held = apply(&store, *number, claim('b')).await.unwrap();
        assert_eq!(held, "held in_flight a1", "what was confirmed is there");
    }
}

#[tokio::test]
async fn one_node_that_is_named_and_gone_is_no_obstacle() {
    let Some(mut cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let url = cluster.url();
    cluster.nodes[0].kill();
    let store = stores(url, 0, TIMEOUT).handle();
    let mut done = 0;
    in_time("every slot is kept by somebody", async || {
        store.ping().await.unwrap();
        let claimed = apply(&store, done, claim('a')).await;
        done += u32::from(claimed.is_ok());
        done == 50
    })
    .await;
}

#[tokio::test]
async fn waiters_hear_of_keys_that_other_nodes_keep() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&heard);
    let wake = Arc::new(move |wake| hear.lock().unwrap().push(wake));
    let waiting = RedisStores::new(&settings_at(cluster.url()), wake).unwrap();
    let listening: Arc<dyn Store> = waiting.handle();
    let settling = stores(cluster.url(), 0, TIMEOUT).handle();
    let keepers: Vec<usize> = (1..=20).map(|number| slot(&cluster, number).1).collect();
    assert!((0..3).all(|node| keepers.contains(&node)), "{keepers:?}");
    for number in 1..=20 {
        listening.listen(key(number)).await.unwrap();
        let settled = settle('a', 1, completed());
        let stored = apply(&settling, number, settled).await.unwrap();
        assert_eq!(stored, "stored again");
    }
    in_time("all are heard of", async || {
        let heard = heard.lock().unwrap();
        (1..=20).all(|number| heard.contains(&Wake::Key(key(number))))
    })
    .await;
}

#[tokio::test]
async fn a_cluster_over_tls_names_its_nodes_by_their_tls_ports() {
    let certificates = Certificates::new();
    let lines = certificates.lines();
    let options: Vec<_> = lines.iter().map(|line| format!("--{line}")).collect();
    let mut arguments = vec!["--tls-port", TLS_PORT];
    for option in &options {
        arguments.extend(option.split(' '));
    }
    let Some(cluster) = Cluster::start(0, &arguments) else {
        return;
    };
    let addr = cluster.nodes[0].addr();
    let mut settings = settings_at(format!("rediss+cluster://{}:{}", addr.ip(), tls_port(addr)));
    settings.tls.ca_file = Some(certificates.ca());
    let stores = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
    assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    let store = stores.handle();
    store.listen(key(1)).await.unwrap();
    for number in 1..=20 {
        assert_eq!(
            apply(&store, number, claim('a')).await.unwrap(),
            "acquired 1"
        );
    }
    for node in &cluster.nodes {
        let Value::Int(1..) = node.cli(&["DBSIZE"]) else {
            panic!("every node keeps some");
        };
    }
}

#[tokio::test]
async fn every_node_must_be_fit() {
    let Some(cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let store = stores(cluster.url(), 0, TIMEOUT);
    assert_eq!(store.check().await.unwrap(), Vec::<String>::new());
    // A replica that has nothing yet is not listed.
    let writing = store.handle();
    for number in 1..=50 {
        assert_eq!(
            apply(&writing, number, claim('a')).await.unwrap(),
            "acquired 1"
        );
    }
    let lists_replicas = |node: &Redis| match node.cli(&["CLUSTER", "SLOTS"]) {
        Value::Array(ranges) => ranges
            .iter()
            .all(|range| matches!(range, Value::Array(parts) if parts.len() == 4)),
        other => panic!("{other:?}"),
    };
    in_time("all replicas are listed", async || {
        cluster.nodes.iter().all(lists_replicas)
    })
    .await;
    // A master and a replica, neither of them named in the url.
    for number in [2, 5] {
        let node: &Redis = &cluster.nodes[number];
        node.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
        let Err(OpenError::Unfit(message)) = store.check().await else {
            panic!("node {number} would evict");
        };
        let begins = format!("Redis at redis://{} evicts", node.addr());
        assert!(message.starts_with(&begins), "{message}");
        let accepted = Settings {
            allow_eviction: true,
            ..settings_at(cluster.url())
        };
        let accepted = RedisStores::new(&accepted, Arc::new(|_| {})).unwrap();
        assert_eq!(accepted.check().await.unwrap().len(), 1);
        node.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    }
}

#[tokio::test]
async fn a_node_of_another_cluster_is_not_followed() {
    let Some(cluster) = Cluster::start(0, &[]) else {
        return;
    };
    let ip = own_ip().to_string();
    let alone = ["--cluster-enabled", "yes", "--cluster-announce-ip", &ip];
    let other = Redis::start(&alone).unwrap();
    other.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("it is a cluster of its own", || {
        text(&other.cli(&["CLUSTER", "INFO"])).contains("cluster_state:ok")
    });
    let store_url = |first: &Redis, second: &Redis| {
        format!("redis+cluster://{},{}", first.addr(), second.addr())
    };
    // Who is asked first is the second of the two.
    let stores = stores(store_url(&other, &cluster.nodes[0]), 0, TIMEOUT);
    let store = stores.handle();
    for number in 1..=10 {
        let claimed = apply(&store, number, claim('a')).await.unwrap();
        assert_eq!(claimed, "acquired 1");
    }
    assert_eq!(other.records_of("test"), Vec::<String>::new());
    // Each asks another one first.
    for _ in 0..8 {
        stores.check().await.unwrap();
        for number in 1..=10 {
            let claimed = apply(&store, number, claim('b')).await.unwrap();
            assert_eq!(claimed, "held in_flight a1");
        }
    }
    assert_eq!(other.records_of("test"), Vec::<String>::new());
}
