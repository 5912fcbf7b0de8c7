//! Waiters in one process hear of what another process settles, across lost connections too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use retrysafe::store::{Delivery, RedisStores, Settings, Store, StoreErrorKind, Wake};
use tokio::task::JoinSet;

use super::{Bench, in_time, key};
use crate::store_contract::operations::*;
use crate::support::redis::{Redis, settings};

/// Another process: a store of its own, and what it heard.
struct Waiter {
    store: Arc<dyn Store>,
    heard: Arc<Mutex<Vec<Wake>>>,
    /// Ends the subscription when it goes.
    _stores: RedisStores,
}

impl Waiter {
    fn on(server: &Redis, timeout: Duration) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let settings = Settings {
            timeout,
            ..settings(server)
        };
        let hear = Arc::clone(&heard);
        let wake = Arc::new(move |wake| hear.lock().unwrap().push(wake));
        let stores = RedisStores::new(&settings, wake).unwrap();
        Self {
            store: stores.handle(),
            heard,
            _stores: stores,
        }
    }

    fn times(&self, wake: Wake) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|heard| **heard == wake).count()
    }

    async fn hears(&self, wake: Wake) {
        in_time("it hears", async || self.times(wake) > 0).await;
    }
}

/// How many connections the server counts for this key's channel.
fn subscribers(server: &Redis, number: u8) -> i64 {
    let channel = format!("test:wake:{}", key(number));
    let Value::Array(said) = server.cli(&["PUBSUB", "NUMSUB", &channel]) else {
        panic!("NUMSUB answers a list");
    };
    let Some(Value::Int(count)) = said.last() else {
        panic!("it ends in a number");
    };
    *count
}

const PATIENT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_settle_wakes_the_waiters_of_another_process() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server, PATIENT);
    bench.says(1, claim('a')).await;
    bench.says(2, claim('a')).await;
    waiter.store.listen(key(1)).await.unwrap();
    assert_eq!(
        subscribers(&bench.server, 1),
        1,
        "it stands once it is said"
    );
    bench.says(2, settle('a', 1, completed())).await;
    bench.says(1, settle('a', 1, completed())).await;
    waiter.hears(Wake::Key(key(1))).await;
    assert_eq!(waiter.times(Wake::Key(key(2))), 0);
    assert_eq!(waiter.times(Wake::All), 0);

    // What frees a key wakes too.
    bench.says(3, claim('a')).await;
    waiter.store.listen(key(3)).await.unwrap();
    bench.says(3, abandon('a')).await;
    waiter.hears(Wake::Key(key(3))).await;
}

#[tokio::test]
async fn listeners_are_counted_and_leave_nothing_behind() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server, PATIENT);
    waiter.store.listen(key(1)).await.unwrap();
    waiter.store.listen(key(1)).await.unwrap();
    waiter.store.unlisten(key(1));
    // A later subscription is confirmed after the earlier change was looked at.
    waiter.store.listen(key(2)).await.unwrap();
    assert_eq!(subscribers(&bench.server, 1), 1);
    waiter.store.unlisten(key(1));
    waiter.store.unlisten(key(2));
    in_time("nothing is left", async || {
        subscribers(&bench.server, 1) + subscribers(&bench.server, 2) == 0
    })
    .await;
    waiter.store.unlisten(key(1));
    waiter.store.listen(key(1)).await.unwrap();
    assert_eq!(subscribers(&bench.server, 1), 1);
}

#[tokio::test]
async fn a_thousand_keys_share_one_connection() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server, PATIENT);
    let mut listening = JoinSet::new();
    for number in 0..1_000_u32 {
        let store = Arc::clone(&waiter.store);
        let mut octets = [0; 32];
        octets[..4].copy_from_slice(&number.to_be_bytes());
        let key = retrysafe::idempotency::RecordKey(octets);
        listening.spawn(async move { store.listen(key).await.unwrap() });
    }
    listening.join_all().await;
    assert_eq!(bench.server.info("pubsub_channels"), "1000");
    let Value::BulkString(clients) = bench.server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]) else {
        panic!("a list of clients");
    };
    assert_eq!(String::from_utf8(clients).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn after_a_lost_subscription_everybody_looks() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server, PATIENT);
    waiter.store.listen(key(1)).await.unwrap();
    bench.server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    waiter.hears(Wake::All).await;
    // It stands again, without anybody asking.
    assert_eq!(subscribers(&bench.server, 1), 1);
    bench.says(1, settle('a', 1, completed())).await;
    waiter.hears(Wake::Key(key(1))).await;

    bench.server.kill();
    bench.server.restart(&[]);
    in_time("a second time", async || waiter.times(Wake::All) == 2).await;
    assert_eq!(subscribers(&bench.server, 1), 1);
}

#[tokio::test]
async fn a_listen_that_failed_or_was_dropped_never_began() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server, Duration::from_millis(200));
    bench.server.kill();
    let error = waiter.store.listen(key(1)).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Timeout, Delivery::NotSent)
    );
    tokio::select! {
        biased;
        _ = waiter.store.listen(key(2)) => panic!("nobody is there"),
        () = std::future::ready(()) => {}
    }
    bench.server.restart(&[]);
    in_time("a subscription works", async || {
        waiter.store.listen(key(3)).await.is_ok()
    })
    .await;
    assert_eq!(subscribers(&bench.server, 3), 1);
    assert_eq!(subscribers(&bench.server, 1), 0);
    assert_eq!(subscribers(&bench.server, 2), 0);
}
