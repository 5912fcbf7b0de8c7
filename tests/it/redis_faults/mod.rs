//! What the Redis store does when Redis does not do as asked: each fault on a real server, seen by
//! the caller of the store.

mod connections;
mod dialects;
mod fitness;
mod records;
mod refusals;
mod secured;
mod wakeups;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Operation, Outcome, RecordKey};
use retrysafe::store::{RedisStores, Settings, Store, StoreError, StoreErrorKind, StoreUrl};

use crate::store_contract::operations::words;
use crate::support::in_time;
use crate::support::redis::{Flavour, Redis, settings, stores};

/// A server and a handle that has talked to it.
struct Bench {
    server: Redis,
    stores: RedisStores,
    store: Arc<dyn Store>,
}

impl Bench {
    /// `None` where no server is installed.
    async fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_flavour(Flavour::Installed, arguments).await
    }

    async fn start_flavour(flavour: Flavour, arguments: &[&str]) -> Option<Self> {
        let server = Redis::start_flavour(flavour, arguments)?;
        let stores = stores(&server);
        let store = stores.handle();
        store.ping().await.unwrap();
        Some(Self {
            server,
            stores,
            store,
        })
    }

    /// The same server through a store that waits for `timeout` only.
    fn impatient(&self, timeout: Duration) -> Arc<dyn Store> {
        let settings = Settings {
            timeout,
            ..settings(&self.server)
        };
        RedisStores::new(&settings, Arc::new(|_| {}))
            .unwrap()
            .handle()
    }

    /// Applies to key `number`, the outcome in words.
    async fn apply(&self, number: u8, operation: Operation) -> Result<String, StoreError> {
        apply(&self.store, number, operation).await
    }

    /// The outcome of an operation that must succeed.
    async fn says(&self, number: u8, operation: Operation) -> String {
        self.apply(number, operation).await.unwrap()
    }

    /// The error of an operation that must fail.
    async fn error(&self, number: u8, operation: Operation) -> StoreError {
        self.apply(number, operation).await.unwrap_err()
    }

    fn config(&self, name: &str, value: &str) {
        let said = self.server.cli(&["CONFIG", "SET", name, value]);
        assert_eq!(said, redis::Value::Okay, "{name} {value}");
    }
}

async fn apply(
    store: &Arc<dyn Store>,
    number: u8,
    operation: Operation,
) -> Result<String, StoreError> {
    let outcome = store.apply(key(number), operation).await?;
    Ok(words(&whole_grains(outcome)))
}

/// Milliseconds of a real server's clock are nothing to these tests.
fn whole_grains(outcome: Outcome) -> Outcome {
    crate::store_contract::bench::comparable(outcome)
}

fn key(number: u8) -> RecordKey {
    RecordKey([number; 32])
}

/// The server's own name for it.
fn name(number: u8) -> String {
    format!("test:{}", key(number))
}

fn with_url(server: &Redis, url: String) -> Settings {
    Settings {
        url: StoreUrl::Redis(url),
        ..settings(server)
    }
}

#[track_caller]
fn assert_refused(error: &StoreError, code: &str) {
    assert_eq!(error.kind, StoreErrorKind::Refused, "{error}");
    assert!(error.message.contains(code), "{error}");
}
