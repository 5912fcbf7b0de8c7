//! Several Redis servers that belong together, and the loss of one of them: what was acknowledged,
//! what is refused meanwhile and for how long, and that nothing runs twice.

mod cluster;
mod ledger;
mod replicas;
mod sentinel;

use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Operation, RecordKey};
use retrysafe::store::{RedisStores, Settings, Store, StoreError};

use crate::store_contract::bench::comparable;
use crate::store_contract::operations::words;
use crate::support::redis::settings_at;

/// A store at `url` whose writes `replicas` replicas must confirm.
fn stores(url: String, replicas: u32, timeout: Duration) -> RedisStores {
    let settings = Settings {
        wait_replicas: replicas,
        timeout,
        ..settings_at(url)
    };
    RedisStores::new(&settings, Arc::new(|_| {})).unwrap()
}

fn key(number: u32) -> RecordKey {
    let mut octets = [0x5a; 32];
    octets[..4].copy_from_slice(&number.to_be_bytes());
    RecordKey(octets)
}

/// The outcome in words.
async fn apply(
    store: &Arc<dyn Store>,
    number: u32,
    operation: Operation,
) -> Result<String, StoreError> {
    let outcome = store.apply(key(number), operation).await?;
    Ok(words(&comparable(outcome)))
}
