//! Waiters in one process hear of what another process settles, across lost sessions too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::store::{Delivery, PostgresStores, Settings, Store, StoreErrorKind, Wake};

use super::{Bench, key};
use crate::store_contract::operations::*;
use crate::support::in_time;
use crate::support::postgres::{settings, stores_with};

/// Another process: a store of its own, and what it heard.
pub(super) struct Waiter {
    pub(super) store: Arc<dyn Store>,
    heard: Arc<Mutex<Vec<Wake>>>,
    /// Ends the subscription when it goes.
    _stores: PostgresStores,
}

impl Waiter {
    pub(super) fn on(url: &str, timeout: Duration) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let settings = Settings {
            timeout,
            ..settings(url)
        };
        let hear = Arc::clone(&heard);
        let wake = Arc::new(move |wake| hear.lock().unwrap().push(wake));
        let stores = stores_with(&settings, wake);
        Self {
            store: stores.handle(),
            heard,
            _stores: stores,
        }
    }

    pub(super) fn times(&self, wake: Wake) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|heard| **heard == wake).count()
    }

    async fn hears(&self, wake: Wake) {
        in_time("it hears", async || self.times(wake) > 0).await;
    }
}

const PATIENT: Duration = Duration::from_secs(10);
/// Ends the sessions that listen.
const DEAFEN: &str = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                      WHERE application_name = 'retrysafe' AND query IN ('SELECT 1', \
                      'LISTEN retrysafe_records')";

/// A test for each release: `releases.rs`.
pub(super) async fn wakes_another_process(bench: Bench) {
    let waiter = Waiter::on(&bench.server.url(), PATIENT);
    bench.says(1, claim('a')).await;
    bench.says(2, claim('a')).await;
    waiter.store.listen(key(1)).await.unwrap();
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
async fn listeners_are_counted() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server.url(), PATIENT);
    waiter.store.listen(key(1)).await.unwrap();
    waiter.store.listen(key(1)).await.unwrap();
    waiter.store.listen(key(2)).await.unwrap();
    waiter.store.unlisten(key(1));
    bench.says(1, claim('a')).await;
    bench.says(1, settle('a', 1, unresolved())).await;
    waiter.hears(Wake::Key(key(1))).await;
    waiter.store.unlisten(key(1));
    bench.says(1, settle('a', 1, completed())).await;
    // Notices come in order.
    bench.says(2, settle('a', 1, completed())).await;
    waiter.hears(Wake::Key(key(2))).await;
    assert_eq!(waiter.times(Wake::Key(key(1))), 1);
}

#[tokio::test]
async fn after_a_lost_subscription_everybody_looks() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server.url(), PATIENT);
    waiter.store.listen(key(1)).await.unwrap();
    let ended = bench.server.sql(DEAFEN).await;
    assert_eq!(ended, ["t"], "one listens");
    waiter.hears(Wake::All).await;
    // It stands again, without anybody asking.
    bench.says(1, settle('a', 1, completed())).await;
    waiter.hears(Wake::Key(key(1))).await;

    bench.server.crash();
    bench.server.restart(&[]);
    in_time("a second time", async || waiter.times(Wake::All) == 2).await;
    in_time("it is heard", async || {
        drop(bench.apply(1, settle('a', 1, completed())).await);
        waiter.times(Wake::Key(key(1))) > 1
    })
    .await;
}

#[tokio::test]
async fn a_listen_that_failed_never_began() {
    let Some(mut bench) = Bench::start(&[]).await else {
        return;
    };
    let waiter = Waiter::on(&bench.server.url(), Duration::from_millis(200));
    bench.server.crash();
    let error = waiter.store.listen(key(1)).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Timeout, Delivery::NotSent)
    );
    bench.server.restart(&[]);
    in_time("a subscription works", async || {
        waiter.store.listen(key(3)).await.is_ok()
    })
    .await;
    bench.says(1, settle('a', 1, completed())).await;
    bench.says(3, settle('a', 1, completed())).await;
    waiter.hears(Wake::Key(key(3))).await;
    assert_eq!(waiter.times(Wake::Key(key(1))), 0);
}
