//! The master that sentinels name, and another one after it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::store::{Delivery, OpenError, RedisStores, Settings, StoreErrorKind, Wake};
use tokio::time::Instant;

use super::{Certificates, apply, key, stores};
use crate::store_contract::operations::*;
use crate::support::authority::Authority;
use crate::support::in_time;
use crate::support::redis::{least_rights, next_addr, settings_at};
use crate::support::redis_groups::{MASTER, Sentineled};

const TIMEOUT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn after_the_loss_of_the_master_the_new_one_is_found() {
    let Some(mut group) = Sentineled::start(None) else {
        return;
    };
    let store = stores(group.url(), 0, TIMEOUT).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    in_time("the replica has it", async || {
        group.servers[1].cli(&["DBSIZE"]) == redis::Value::Int(1)
    })
    .await;
    group.servers[0].kill();
    let began = Instant::now();
    let mut refused = 0;
    in_time("a claim gets through", async || {
        match apply(&store, 2, claim('a')).await {
            Ok(said) => said == "acquired 1",
            Err(error) => {
                refused += 1;
                let kinds = [StoreErrorKind::Unavailable, StoreErrorKind::Timeout];
                assert!(kinds.contains(&error.kind), "{error}");
                // The connection's loss may be met by one under way; after it nothing is sent.
                assert!(
                    refused == 1 || error.delivery == Delivery::NotSent,
                    "{error}"
                );
                false
            }
        }
    })
    .await;
    assert!(refused > 0);
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    let held = apply(&store, 1, claim('b')).await.unwrap();
    assert_eq!(held, "held in_flight a1");
    assert_eq!(group.servers[1].info("role"), "master");
}

#[tokio::test]
async fn a_master_that_was_demoted_behind_our_back_is_left() {
    let Some(group) = Sentineled::start(None) else {
        return;
    };
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&heard);
    let wake = Arc::new(move |wake| hear.lock().unwrap().push(wake));
    let settings = Settings {
        timeout: TIMEOUT,
        ..settings_at(group.url())
    };
    let waiting = RedisStores::new(&settings, wake).unwrap();
    let store = waiting.handle();
    store.listen(key(7)).await.unwrap();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    let new = group.servers[1].addr();
    group.fail_over();
    in_time("the sentinels name another", async || {
        group.named().iter().all(|named| *named == new)
    })
    .await;
    in_time("it is followed", async || {
        let claimed = apply(&store, 2, claim('a')).await;
        claimed.is_ok() && group.servers[1].records_of("test").len() == 2
    })
    .await;
    // Whoever listens hears what is settled there, or was told to look again.
    let other = stores(group.url(), 0, TIMEOUT).handle();
    in_time("the waiter is woken", async || {
        let settled = settle('a', 1, completed());
        let stored = apply(&other, 7, settled).await;
        stored.is_ok() && heard.lock().unwrap().contains(&Wake::Key(key(7)))
    })
    .await;
}

#[tokio::test]
async fn sentinels_that_are_gone_or_know_nothing_are_no_obstacle() {
    let Some(mut group) = Sentineled::start(None) else {
        return;
    };
    group.kill_sentinel();
    let store = stores(group.url(), 0, TIMEOUT).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    let with_nobody = group.url().replace("//", &format!("//{},", next_addr()));
    let store = stores(with_nobody, 0, TIMEOUT).handle();
    let held = apply(&store, 1, claim('b')).await.unwrap();
    assert_eq!(held, "held in_flight a1");

    let another = group.url().replace(&format!("/{MASTER}"), "/other");
    let another = stores(another, 0, TIMEOUT);
    let error = apply(&another.handle(), 1, claim('a')).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent);
    let Err(OpenError::Unreachable(message)) = another.check().await else {
        panic!("no such master");
    };
    assert!(
        message.contains("knows no master by the name other"),
        "{message}"
    );
}

#[tokio::test]
async fn a_password_is_for_servers_and_for_sentinels_that_demand_it() {
    let Some(group) = Sentineled::start(Some("correct-horse")) else {
        return;
    };
    let let_in = stores(group.url(), 0, TIMEOUT);
    let store = let_in.handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    assert_eq!(let_in.check().await.unwrap(), Vec::<String>::new());
    assert!(!format!("{let_in:?}").contains("correct-horse"));
    let wrong = stores(group.url().replace("correct-horse", "battery"), 0, TIMEOUT);
    let Err(OpenError::Unreachable(message)) = wrong.check().await else {
        panic!("a wrong password opens nothing");
    };
    assert!(message.contains("WRONGPASS"), "{message}");
    assert!(!message.contains("battery"), "{message}");
}

#[tokio::test]
async fn a_user_of_the_sentinels_needs_no_more_rights_than_documented() {
    let Some(group) = Sentineled::start(Some("correct-horse")) else {
        return;
    };
    least_rights(&group.servers[0], "+role");
    let url = group.url().replace(":correct-horse@", "sidecar:pw@");
    let stores = stores(url, 0, TIMEOUT);
    let store = stores.handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    in_time("it listens for news", async || {
        group.listeners("sidecar") > 0
    })
    .await;
}

#[tokio::test]
async fn over_tls_sentinels_and_servers_are_trusted_alike() {
    let certificates = Certificates::new();
    let Some(mut group) = Sentineled::start_tls(&certificates.lines()) else {
        return;
    };
    let mut settings = settings_at(group.url());
    settings.timeout = TIMEOUT;
    let ca = certificates.ca();
    settings.tls.ca_file = Some(ca.clone());
    let trusting = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
    let store = trusting.handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    assert_eq!(trusting.check().await.unwrap(), Vec::<String>::new());
    std::fs::write(&ca, Authority::new("other").certificate()).unwrap();
    let distrusting = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
    let Err(OpenError::Unreachable(message)) = distrusting.check().await else {
        panic!("nobody vouches for it");
    };
    assert!(message.contains("UnknownIssuer"), "{message}");
    group.servers[0].kill();
    in_time("the new master is found over TLS", async || {
        apply(&store, 2, claim('a')).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_would_evict_is_not_fit_to_be_promoted() {
    let Some(group) = Sentineled::start(None) else {
        return;
    };
    let store = stores(group.url(), 2, TIMEOUT);
    let warnings = store.check().await.unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("has 1 replicas and store.wait_replicas is 2"));
    group.servers[1].cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let Err(OpenError::Unfit(message)) = store.check().await else {
        panic!("it would evict");
    };
    let addr = group.servers[1].addr();
    assert!(
        message.starts_with(&format!("Redis at redis://{addr} evicts")),
        "{message}"
    );
}
