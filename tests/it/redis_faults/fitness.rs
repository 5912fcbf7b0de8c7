//! Whether a server may be trusted with records, asked at start and every minute.

use std::sync::Arc;

use retrysafe::clock::SystemClock;
use retrysafe::store::{OpenError, RedisStores, Settings, Stores};

use super::{Bench, with_url};
use crate::support::redis::{Redis, settings};

#[tokio::test]
async fn a_server_that_evicts_is_refused_with_the_command_that_mends_it() {
    let Some(bench) = Bench::start(&["--maxmemory-policy", "allkeys-lru"]).await else {
        return;
    };
    let addr = bench.server.addr();
    // The password in the URL is nowhere in the message.
    let url = format!("redis://default:secret@{addr}/0");
    bench
        .server
        .cli(&["CONFIG", "SET", "requirepass", "secret"]);
    let stores = RedisStores::new(&with_url(&bench.server, url.clone()), Arc::new(|_| {})).unwrap();
    let Err(OpenError::Unfit(message)) = stores.check().await else {
        panic!("it must be refused");
    };
    let expected = format!(
        "Redis at redis://{addr}/0 evicts records when its memory is full \
         (maxmemory-policy allkeys-lru), and a request whose record is gone runs twice. Mend it \
         with\n    redis-cli -u redis://{addr}/0 CONFIG SET maxmemory-policy noeviction\n\
         and in the server's own configuration, or accept it with store.allow_eviction = true"
    );
    assert_eq!(message, expected);

    let accepted = Settings {
        allow_eviction: true,
        ..with_url(&bench.server, url)
    };
    let accepted = RedisStores::new(&accepted, Arc::new(|_| {})).unwrap();
    let warnings = accepted.check().await.unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("RUNS TWICE"), "{warnings:?}");
}

#[tokio::test]
async fn a_policy_changed_later_is_found_by_the_next_check() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.stores.check().await.unwrap(), Vec::<String>::new());
    bench.config("maxmemory-policy", "volatile-ttl");
    let found = bench.stores.check().await;
    assert!(matches!(found, Err(OpenError::Unfit(_))), "{found:?}");
    bench.config("maxmemory-policy", "noeviction");
    assert_eq!(bench.stores.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn opening_contacts_nobody_and_checking_does() {
    let Some(mut server) = Redis::start(&[]) else {
        return;
    };
    server.kill();
    let stores = Stores::open(&settings(&server), Arc::new(SystemClock), Arc::new(|_| {})).unwrap();
    let Err(OpenError::Unreachable(message)) = stores.check().await else {
        panic!("nobody is there");
    };
    assert!(message.contains(&stores.describe()), "{message}");
    assert!(!stores.one_replica_only());
    server.restart(&[]);
    assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    stores.handle().ping().await.unwrap();
    assert_eq!(stores.sweep(100).await, Ok(0));
}
