//! Through PgBouncer, which gives each transaction whichever session is free.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{Delivery, Wake};
use tokio::task::JoinSet;

use super::wakeups::Waiter;
use super::{Bench, apply, key};
use crate::store_contract::operations::*;
use crate::support::in_time;
use crate::support::pgbouncer::Pooler;
use crate::support::postgres::stores;

#[tokio::test]
async fn every_operation_goes_through_a_pooler() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let Some(pooler) = Pooler::start(&bench.server) else {
        return;
    };
    let stores = stores(&pooler.url());
    assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    let store = stores.handle();
    let mut plays = JoinSet::new();
    for number in 1..=50 {
        let store = Arc::clone(&store);
        plays.spawn(async move {
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
                assert_eq!(apply(&store, number, operation).await.unwrap(), expected);
            }
        });
    }
    assert_eq!(plays.join_all().await.len(), 50);
    assert_eq!(stores.sweep(100).await, Ok(0));
}

#[tokio::test]
async fn where_notices_do_not_come_back_nobody_waits_for_them() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let Some(pooler) = Pooler::start(&bench.server) else {
        return;
    };
    let waiter = Waiter::on(&pooler.url(), Duration::from_secs(10));
    waiter.store.listen(key(1)).await.unwrap();
    // Known by now, and at once for the next.
    let again = tokio::time::timeout(Duration::from_secs(1), waiter.store.listen(key(1)));
    again.await.unwrap().unwrap();
    bench.says(1, settle('a', 1, completed())).await;
    assert_eq!(waiter.times(Wake::Key(key(1))), 0);
    // Nothing of ours is left on the sessions that others use.
    let other = Waiter::on(&pooler.url(), Duration::from_secs(10));
    assert_eq!(
        apply(&other.store, 1, read()).await.unwrap(),
        "held completed a1"
    );
}

#[tokio::test]
async fn a_pooler_that_ends_is_met_as_a_lost_session() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let Some(pooler) = Pooler::start(&bench.server) else {
        return;
    };
    let store = stores(&pooler.url()).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    drop(pooler);
    in_time("nothing can be sent", async || {
        let error = apply(&store, 2, claim('a')).await.unwrap_err();
        error.delivery == Delivery::NotSent
    })
    .await;
    assert_eq!(bench.says(2, read()).await, "absent");
}
