//! A server that answers, and not what was hoped: nothing was done, and that is said.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{Delivery, OpenError, StoreError, StoreErrorKind};

use tokio::task::JoinSet;

use super::{Bench, SESSIONS, TERMINATE, apply};
use crate::store_contract::operations::*;
use crate::support::in_time;
use crate::support::postgres::{Postgres, stores};

#[track_caller]
fn assert_refused(error: &StoreError, word: &str) {
    assert_eq!(error.kind, StoreErrorKind::Refused, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent, "{error}");
    assert!(error.message.contains(word), "{error}");
}

#[tokio::test]
async fn a_role_that_may_not_write_is_refused_and_its_session_is_left() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let (off, on) = (
        "ALTER ROLE app SET default_transaction_read_only = on",
        "ALTER ROLE app RESET default_transaction_read_only",
    );
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    bench.server.sql(off).await;
    bench.server.sql(TERMINATE).await;
    in_time("the loss is known", async || {
        bench.store.ping().await.is_ok()
    })
    .await;
    assert_refused(&bench.error(2, claim('a')).await, "25006");
    let Err(OpenError::Unreachable(text)) = bench.stores.check().await else {
        panic!("it takes no records");
    };
    assert!(text.contains("read-only"), "{text}");
    let undo = format!("SET transaction_read_only = off; {on}");
    bench.server.sql(&undo).await;
    // Behind a name the primary may be somebody else by now: each time another session.
    assert_refused(&bench.error(2, claim('a')).await, "25006");
    assert_eq!(bench.says(2, claim('a')).await, "acquired 1");
}

#[tokio::test]
async fn a_standby_takes_no_records() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    bench.server.crash();
    let signal = bench.server.data().join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    bench.server.restart(&[]);
    in_time("the loss is known", async || {
        bench.store.ping().await.is_ok()
    })
    .await;
    assert_refused(&bench.error(2, claim('a')).await, "25006");
    let Err(OpenError::Unreachable(text)) = bench.stores.check().await else {
        panic!("a standby is not the store");
    };
    assert!(text.contains("standby"), "{text}");
    bench.server.sql("SELECT pg_promote()").await;
    in_time("it takes writes", async || {
        bench.apply(2, claim('a')).await.is_ok()
    })
    .await;
    assert_eq!(bench.says(1, claim('b')).await, "held in_flight a1");
}

#[tokio::test]
async fn the_servers_own_timeout_is_a_refusal() {
    let Some(bench) = Bench::start(&["statement_timeout=200"]).await else {
        return;
    };
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    assert_refused(&bench.error(1, claim('a')).await, "57014");
    locked.batch_execute("COMMIT").await.unwrap();
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    assert_eq!(
        bench.server.sql(SESSIONS).await,
        ["1"],
        "its session goes on"
    );
}

#[tokio::test]
async fn without_rights_the_error_says_what_is_missing() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    bench.server.sql("CREATE ROLE other LOGIN").await;
    let stores = stores(&bench.server.url().replace("app@", "other@"));
    let error = apply(&stores.handle(), 1, claim('a')).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Unavailable, Delivery::NotSent),
        "{error}"
    );
    assert!(error.message.contains("store init --print"), "{error}");
    let Err(OpenError::Unfit(text)) = stores.check().await else {
        panic!("it can do nothing");
    };
    assert!(text.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO other"));
}

#[tokio::test]
async fn a_missing_table_is_created_or_asked_for() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    server.sql("CREATE ROLE other LOGIN").await;
    // From 15 on nobody but the owner creates in `public`; before, everybody does.
    server
        .sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        .await;
    let less = stores(&server.url().replace("app@", "other@"));
    let error = apply(&less.handle(), 1, claim('a')).await.unwrap_err();
    assert_refused(&error, "retrysafe store init");
    let Err(OpenError::Unfit(text)) = less.check().await else {
        panic!("it has no table");
    };
    assert!(text.contains("retrysafe store init"), "{text}");

    // The first call creates it, also where many come at once.
    let one = stores(&server.url());
    let store = one.handle();
    let mut claims = JoinSet::new();
    for number in 1..=20 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await.unwrap() });
    }
    assert!(
        claims
            .join_all()
            .await
            .iter()
            .all(|said| said == "acquired 1")
    );
    assert_eq!(one.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_table_that_is_gone_is_not_replaced_by_an_empty_one() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    bench.server.sql("DROP TABLE retrysafe_records").await;
    assert_refused(&bench.error(1, claim('b')).await, "is gone");
    assert!(matches!(
        bench.stores.check().await,
        Err(OpenError::Unfit(_))
    ));
    assert_refused(&bench.error(1, claim('b')).await, "is gone");
    // Whoever knows better says so.
    bench.stores.init().await.unwrap();
    assert_eq!(bench.says(1, claim('b')).await, "acquired 1");
}

#[tokio::test]
async fn duties_end_where_the_server_gives_no_answer() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let stores = bench.impatient(Duration::from_millis(200), 2);
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    let error = stores.sweep(10).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    locked.batch_execute("COMMIT").await.unwrap();
    assert_eq!(stores.sweep(10).await, Ok(0));
}

#[tokio::test]
async fn a_deadline_before_a_session_was_had_says_that_nothing_was_sent() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let stores = bench.impatient(Duration::from_millis(200), 2);
    let store = stores.handle();
    store.ping().await.unwrap();
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    // Two stand at the lock; the third has no session to send anything over.
    let mut claims = JoinSet::new();
    for number in 1..=3 {
        let store = Arc::clone(&store);
        claims.spawn(async move { apply(&store, number, claim('a')).await });
    }
    let error = claims.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent, "{error}");
    assert_eq!(claims.len(), 2);
}
