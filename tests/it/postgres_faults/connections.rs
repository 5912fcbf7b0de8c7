//! Sessions that are not there, break, stall, or are not let in.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{Delivery, StoreErrorKind};
use tokio::task::JoinSet;

use super::{Bench, SESSIONS, TERMINATE, apply, key};
use crate::store_contract::operations::*;
use crate::support::in_time;
use crate::support::postgres::{Postgres, stores};

#[tokio::test]
async fn terminated_sessions_are_made_again() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=5 {
        bench.server.sql(TERMINATE).await;
        // The loss may be met by a statement under way; every operation may be sent again.
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
async fn an_idle_session_that_was_closed_costs_nobody_an_error() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=5 {
        assert!(format!("{:?}", bench.stores).contains("Running"));
        bench.server.sql(TERMINATE).await;
        in_time("the loss is known", async || {
            format!("{:?}", bench.stores).contains("Ended")
        })
        .await;
        assert_eq!(bench.says(number, claim('a')).await, "acquired 1");
    }
}

#[tokio::test]
async fn a_crash_loses_nothing_that_was_acknowledged() {
    if let Some(bench) = Bench::start(&["fsync=on"]).await {
        loses_nothing_acknowledged(bench, Postgres::crash).await;
    }
}

/// What was answered before the server ends is there after it.
pub(super) async fn loses_nothing_acknowledged(mut bench: Bench, end: fn(&mut Postgres)) {
    let mut claims = JoinSet::new();
    for number in 1..=200 {
        let store = Arc::clone(&bench.store);
        claims.spawn(async move { (number, apply(&store, number, claim('a')).await) });
    }
    let mut acknowledged = Vec::new();
    for _ in 0..100 {
        let (number, said) = claims.join_next().await.unwrap().unwrap();
        assert_eq!(said.unwrap(), "acquired 1");
        acknowledged.push(number);
    }
    end(&mut bench.server);
    for (number, said) in claims.join_all().await {
        match said {
            Ok(said) => {
                assert_eq!(said, "acquired 1");
                acknowledged.push(number);
            }
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}"),
        }
    }
    let error = bench.error(250, claim('a')).await;
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Unavailable, Delivery::NotSent),
        "{error}"
    );
    bench.server.restart(&[]);
    for number in acknowledged {
        let said = bench.says(number, claim('b')).await;
        assert_eq!(said, "held in_flight a1", "{number}");
    }
}

#[tokio::test]
async fn a_session_lost_under_a_statement_leaves_it_open() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    let claimed = {
        let store = Arc::clone(&bench.store);
        tokio::spawn(async move { store.apply(key(1), claim('a')).await })
    };
    waits_for_a_lock(&bench.server, 1).await;
    bench.server.sql(TERMINATE).await;
    let error = claimed.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert_eq!(error.delivery, Delivery::MaybeSent, "{error}");
}

/// Until so many statements of the store stand at the server.
async fn waits_for_a_lock(server: &Postgres, count: usize) {
    let waiting = format!("{SESSIONS} AND wait_event_type = 'Lock'");
    in_time("a statement waits for the lock", async || {
        server.sql(&waiting).await == [count.to_string()]
    })
    .await;
}

#[tokio::test]
async fn a_statement_that_was_given_up_is_cancelled_and_its_session_used_no_more() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let stores = bench.impatient(Duration::from_secs(10), 2);
    let store = stores.handle();
    store.ping().await.unwrap();
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    for _ in 0..5 {
        let mut given_up = JoinSet::new();
        for number in 1..=2 {
            let store = Arc::clone(&store);
            given_up.spawn(async move { drop(apply(&store, number, claim('a')).await) });
        }
        waits_for_a_lock(&bench.server, 2).await;
        given_up.shutdown().await;
        // Never more than its sessions, one beside them being the first store's.
        waits_for_a_lock(&bench.server, 0).await;
        let sessions: u32 = bench.server.sql(SESSIONS).await[0].parse().unwrap();
        assert!(sessions <= 3, "{sessions} sessions");
    }
    locked.batch_execute("COMMIT").await.unwrap();
    // None of them was carried out, none of their answers is taken for another's.
    for number in 1..=2 {
        assert_eq!(apply(&store, number, read()).await.unwrap(), "absent");
        assert_eq!(
            apply(&store, number, claim('b')).await.unwrap(),
            "acquired 1"
        );
    }
}

#[tokio::test]
async fn callers_share_the_sessions_they_may_have() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let stores = bench.impatient(Duration::from_secs(10), 3);
    let store = stores.handle();
    let mut claims = JoinSet::new();
    for number in 1..=100 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await.unwrap() });
    }
    assert_eq!(claims.join_all().await.len(), 100);
    // One more is the first store's.
    let sessions: u32 = bench.server.sql(SESSIONS).await[0].parse().unwrap();
    assert!((2..=4).contains(&sessions), "{sessions} sessions");
}

#[tokio::test]
async fn who_waits_takes_whichever_session_is_free_first() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let store = bench.stores.handle();
    store.ping().await.unwrap();
    // No further session can be begun: logging in waits for the table of roles.
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE pg_authid IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    let mut claims = JoinSet::new();
    for number in 1..=50 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await.unwrap() });
    }
    assert_eq!(claims.join_all().await.len(), 50);
    locked.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_server_without_room_for_a_session_was_sent_nothing() {
    let Some(bench) =
        Bench::start(&["max_connections=6", "superuser_reserved_connections=3"]).await
    else {
        return;
    };
    let setup = "CREATE ROLE other LOGIN; GRANT ALL ON retrysafe_records TO other";
    bench.server.sql(setup).await;
    let others: Vec<_> = futures_of(&bench.server, 2).await;
    let url = bench.server.url().replace("app@", "other@");
    let crowded = stores(&url).handle();
    let error = crowded.apply(key(1), claim('a')).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Unavailable, Delivery::NotSent),
        "{error}"
    );
    assert!(error.message.contains("53300"), "{error}");
    drop(others);
    in_time("there is room again", async || {
        crowded.apply(key(1), claim('a')).await.is_ok()
    })
    .await;
}

async fn futures_of(server: &Postgres, count: usize) -> Vec<tokio_postgres::Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(server.client().await);
    }
    clients
}

#[tokio::test]
async fn a_caller_that_leaves_does_not_undo_the_attempt() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let stores = bench.impatient(Duration::from_secs(10), 2);
    let store = stores.handle();
    {
        let first = store.ping();
        tokio::select! {
            biased;
            _ = first => panic!("it cannot be connected at once"),
            () = std::future::ready(()) => {}
        }
    }
    in_time("the session waits for somebody", async || {
        format!("{stores:?}").contains("Running")
    })
    .await;
    store.ping().await.unwrap();
    assert_eq!(
        bench.server.sql(SESSIONS).await,
        ["2"],
        "one, and the first store's"
    );
}
