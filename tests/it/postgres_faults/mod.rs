//! What the PostgreSQL store does when PostgreSQL does not do as asked: each fault on a real
//! server, seen by the caller of the store.

mod cached;
mod connections;
mod fitness;
mod losses;
mod pooler;
mod proxy;
mod records;
mod refusals;
mod releases;
mod security;
mod sweeps;
mod tiered;
mod wakeups;

use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Operation, RecordKey};
use retrysafe::store::{PostgresStores, Settings, Store, StoreError};

use crate::store_contract::bench::comparable;
use crate::store_contract::operations::words;
use crate::support::postgres::{Postgres, settings, stores, stores_with};
use crate::support::postgres_releases::Release;

/// A server and a handle that has talked to it.
struct Bench {
    server: Postgres,
    stores: PostgresStores,
    store: Arc<dyn Store>,
}

impl Bench {
    /// `None` where no server is installed.
    async fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_release(Release::Installed, arguments).await
    }

    async fn start_release(release: Release, arguments: &[&str]) -> Option<Self> {
        let server = Postgres::start_release(release, arguments)?;
        let stores = stores(&server.url());
        // It creates the table; what it warns of is not the matter here.
        drop(stores.check().await.unwrap());
        Some(Self {
            store: stores.handle(),
            server,
            stores,
        })
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

    /// The same server through a store that waits for `timeout` only, with so many sessions.
    fn impatient(&self, timeout: Duration, connections: usize) -> PostgresStores {
        let settings = Settings {
            timeout,
            connections,
            ..settings(&self.server.url())
        };
        stores_with(&settings, Arc::new(|_| {}))
    }
}

async fn apply(
    store: &Arc<dyn Store>,
    number: u8,
    operation: Operation,
) -> Result<String, StoreError> {
    let outcome = store.apply(key(number), operation).await?;
    Ok(words(&comparable(outcome)))
}

fn key(number: u8) -> RecordKey {
    RecordKey([number; 32])
}

/// Sessions of the store under test, as the server counts them.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'retrysafe'";
/// Ends all of them.
const TERMINATE: &str = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                         WHERE application_name = 'retrysafe'";
