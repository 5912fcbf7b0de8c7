//! Connections that are not there, break, stall, or are not let in.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{Delivery, OpenError, RedisStores, StoreErrorKind};
use tokio::task::JoinSet;

use super::{Bench, apply, assert_refused, in_time, key, with_url};
use crate::store_contract::operations::*;
use crate::support::redis::{Redis, least_rights, settings, stores};

#[tokio::test]
async fn killed_connections_are_made_again() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=5 {
        bench.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        // The loss may be met by a command under way; every operation may be sent again.
        in_time("a claim gets through", async || {
            match bench.apply(number, claim('a')).await {
                Ok(said) => said == "acquired 1",
                Err(error) => {
                    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
                    false
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_nobody_an_error() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=5 {
        bench.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        in_time("the loss is known", async || {
            format!("{:?}", bench.store).contains("Ended")
        })
        .await;
        assert_eq!(bench.says(number, claim('a')).await, "acquired 1");
    }
}

#[tokio::test]
async fn behind_a_name_the_primary_may_be_somebody_else_by_now() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    bench.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let store = bench.stores.handle();
    let error = async || apply(&store, 1, claim('a')).await.unwrap_err();
    let before = received(&bench.server);
    // A young connection is kept, or every call would connect.
    for _ in 0..3 {
        assert_refused(&error().await, "READONLY");
    }
    assert_eq!(received(&bench.server) - before, 2, "one, and the question");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    assert_refused(&error().await, "READONLY");
    assert_refused(&error().await, "READONLY");
    assert_eq!(received(&bench.server) - before, 4);
}

#[tokio::test]
async fn without_a_server_nothing_was_sent() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    bench.server.kill();
    in_time("the loss is noticed", async || {
        bench.error(1, claim('a')).await.delivery == Delivery::NotSent
    })
    .await;
    let error = bench.error(1, claim('a')).await;
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent);
    bench.server.restart(&[]);
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
}

#[tokio::test]
async fn a_connection_lost_under_a_command_leaves_it_open() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    bench.server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let claimed = {
        let store = Arc::clone(&bench.store);
        tokio::spawn(async move { store.apply(key(1), claim('a')).await })
    };
    in_time("the server holds the command", async || {
        bench.server.clients().contains("cmd=set ")
    })
    .await;
    bench.server.kill();
    let error = claimed.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert_eq!(error.delivery, Delivery::MaybeSent, "{error}");
}

#[tokio::test]
async fn a_reply_that_comes_too_late_leaves_it_open() {
    let Some(bench) = Bench::start(&["--enable-debug-command", "local"]).await else {
        return;
    };
    let store = bench.impatient(Duration::from_millis(200));
    store.ping().await.unwrap();
    let _sleeping = bench.server.send(&["DEBUG", "SLEEP", "1"]);
    in_time("the server sleeps", async || store.ping().await.is_err()).await;
    let error = apply(&store, 1, claim('a')).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    assert_eq!(error.delivery, Delivery::MaybeSent);
    // It was written, so the server carries it out once it wakes; its owner gets it all the same.
    in_time(
        "the claim is there",
        async || matches!(apply(&store, 1, read()).await, Ok(said) if said == "held in_flight a1"),
    )
    .await;
    let again = apply(&store, 1, claim('a')).await.unwrap();
    assert_eq!(again, "acquired 1");
}

#[tokio::test]
async fn a_server_that_stands_still_is_left_and_found_again() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let store = bench.impatient(Duration::from_millis(50));
    store.ping().await.unwrap();
    bench.server.pause();
    for _ in 0..3 {
        let error = store.ping().await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
        assert_eq!(error.delivery, Delivery::MaybeSent);
    }
    // Given up: from here on nothing is sent into the void any more.
    let error = store.ping().await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Timeout, Delivery::NotSent),
        "{error}"
    );
    bench.server.resume();
    in_time("it is found again", async || store.ping().await.is_ok()).await;
}

#[tokio::test]
async fn many_callers_make_one_connection() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    let received = || -> u64 { server.info("total_connections_received").parse().unwrap() };
    let store = stores(&server).handle();
    let before = received();
    let mut claims = JoinSet::new();
    for number in 1..=100 {
        let store = Arc::clone(&store);
        claims.spawn(async move { store.apply(key(number), claim('a')).await.unwrap() });
    }
    assert_eq!(claims.join_all().await.len(), 100);
    // One is the store's, one is the question itself.
    assert_eq!(received() - before, 2);

    let large = settle('a', 1, completed_with(&vec![1; 70_000]));
    assert_eq!(apply(&store, 1, large).await.unwrap(), "stored");
    assert_eq!(received() - before, 4, "large values have their own");
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_undo_the_attempt() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let store = bench.stores.handle();
    {
        let first = store.ping();
        tokio::select! {
            biased;
            _ = first => panic!("it cannot be connected at once"),
            () = std::future::ready(()) => {}
        }
    }
    let before: u64 = received(&bench.server);
    store.ping().await.unwrap();
    // The first caller's attempt served the second: at most that one connection and the questions.
    assert!(received(&bench.server) - before <= 2);
}

fn received(server: &Redis) -> u64 {
    server.info("total_connections_received").parse().unwrap()
}

#[tokio::test]
async fn passwords_open_and_are_never_shown() {
    let Some(server) = Redis::start(&["--requirepass", "correct-horse"]) else {
        return;
    };
    let store = |user: &str| {
        let url = format!("redis://{user}{}", server.addr());
        RedisStores::new(&with_url(&server, url), Arc::new(|_| {})).unwrap()
    };
    let let_in = store(":correct-horse@").handle();
    assert_eq!(apply(&let_in, 1, claim('a')).await.unwrap(), "acquired 1");

    for (user, code) in [(":battery-staple@", "WRONGPASS"), ("", "NOAUTH")] {
        let stores = store(user);
        let error = apply(&stores.handle(), 1, claim('a')).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        assert_eq!(error.delivery, Delivery::NotSent, "{error}");
        assert!(error.message.contains(code), "{error}");
        assert!(error.message.contains("store.url"), "{error}");
        let Err(OpenError::Unreachable(message)) = stores.check().await else {
            panic!("a store that lets nobody in is not there");
        };
        for text in [&error.message, &message, &format!("{stores:?}")] {
            assert!(!text.contains("battery-staple"), "{text}");
        }
    }
    assert!(!format!("{:?}", store(":correct-horse@")).contains("correct-horse"));
}

#[tokio::test]
async fn a_user_with_the_documented_rights_can_do_everything() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    least_rights(&server, "");
    let url = format!("redis://sidecar:pw@{}", server.addr());
    let stores = RedisStores::new(&with_url(&server, url), Arc::new(|_| {})).unwrap();
    let store = stores.handle();
    let warnings = stores.check().await.unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    store.listen(key(1)).await.unwrap();
    for (operation, expected) in [
        (claim('a'), "acquired 1"),
        (claim('b'), "held in_flight a1"),
        (renew('a', 1, true), "stored"),
        (settle('a', 1, unresolved()), "stored"),
        (take_over('b', seen('a', 1)), "acquired 2"),
        (abandon('b'), "stored"),
        (claim('c'), "acquired 3"),
        (settle('c', 3, completed()), "stored"),
        (claim('d'), "held completed c3"),
    ] {
        assert_eq!(apply(&store, 1, operation).await.unwrap(), expected);
    }

    // Without the right to publish, waiters poll; the record is what counts.
    let less = server.cli(&["ACL", "SETUSER", "sidecar", "-publish"]);
    assert_eq!(less, redis::Value::Okay);
    let settled = settle('e', 1, completed());
    assert_eq!(apply(&store, 2, settled).await.unwrap(), "stored again");

    // Without the right to write, the error says what is missing.
    server.cli(&["ACL", "SETUSER", "sidecar", "-set"]);
    let error = apply(&store, 3, claim('a')).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(error.message.contains("NOPERM"), "{error}");
}

#[tokio::test]
async fn addresses_that_are_none_are_unfit() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    for url in ["redis://", "http://:pw@host", "redis+unix://:pw@", "::"] {
        let error = RedisStores::new(&with_url(&server, url.to_owned()), Arc::new(|_| {}));
        match error {
            Err(OpenError::Unfit(message)) => assert!(!message.contains("pw"), "{message}"),
            other => panic!("{url}: {other:?}"),
        }
    }
    assert!(settings(&server).url.to_string().starts_with("redis://"));
}
