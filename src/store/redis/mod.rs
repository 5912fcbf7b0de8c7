//! `redis://`: records that several replicas share. Redis 6.2 and later, Valkey 8 and later.
//!
//! Owns one key for each record, `{namespace}:{record key in hexadecimal}`, whose value is the
//! codec's form and whose expiry is the record's end, and one channel for each key that somebody
//! waits for. Invariant: every operation is one atomic step of the server on that one key, and only
//! the server's clock decides.
//!
//! Each thread has a handle with connections of its own, one for small values and one for large
//! ones; the subscription is shared by the process.
//!
//! Deliberately absent: the deadline around an operation and the breaker, repeating what failed,
//! Cluster and Sentinel, TLS.
//!
//! Read next: `operations.rs` (what is sent), `scripts.rs`, `connection.rs`.

mod cache;
mod connection;
mod errors;
mod info;
mod operations;
mod scripts;
mod subscription;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use redis::IntoConnectionInfo;

use super::{OpenError, Settings, Store, StoreError, StoreFuture, StoreUrl, WakeFn};
use crate::idempotency::{Operation, Outcome, RecordKey};
pub(super) use cache::{CacheHandle, Look, RedisCache};
use connection::{Slot, Target};
use info::Info;
use scripts::Scripts;
use subscription::Subscription;

/// Records in a Redis, for one process. See the module.
#[derive(Debug)]
pub struct RedisStores {
    shared: Arc<Shared>,
    /// For `check` alone.
    control: Slot,
    allow_eviction: bool,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    namespace: String,
    modern: Scripts,
    legacy: Scripts,
    subscription: Subscription,
}

impl Shared {
    fn channel(&self, key: RecordKey) -> String {
        format!("{}{key}", prefix(&self.namespace))
    }
}

fn prefix(namespace: &str) -> String {
    format!("{namespace}:wake:")
}

impl RedisStores {
    /// Contacts nobody yet. `wake` is called when another process settles a key that a handle
    /// listens to.
    pub fn new(settings: &Settings, wake: WakeFn) -> Result<Self, OpenError> {
        let target = target(&settings.url, settings.timeout).ok_or_else(|| {
            OpenError::Unfit(
                "store.url is no address of a Redis: \
                 redis://[user[:password]@]host[:port][/database]"
                    .to_owned(),
            )
        })?;
        let target = Arc::new(target);
        let prefix = prefix(&settings.namespace).into();
        Ok(Self {
            control: Slot::new(Arc::clone(&target)),
            allow_eviction: settings.allow_eviction,
            shared: Arc::new(Shared {
                namespace: settings.namespace.clone(),
                modern: Scripts::new(true),
                legacy: Scripts::new(false),
                subscription: Subscription::new(Arc::clone(&target), prefix, wake),
                target,
            }),
        })
    }

    /// A handle with connections of its own. Each runtime thread takes one and keeps it there.
    pub fn handle(&self) -> Arc<dyn Store> {
        Arc::new(RedisStore {
            small: Slot::new(Arc::clone(&self.shared.target)),
            large: Slot::new(Arc::clone(&self.shared.target)),
            shared: Arc::clone(&self.shared),
        })
    }

    /// Asks the server whether it is fit to hold records; answers warnings. At start, and then
    /// every minute.
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        let address = &self.shared.target.address;
        let said = async {
            let live = self.control.live().await?;
            let ask = redis::cmd("INFO").arg("memory").to_owned();
            let said = self.control.command(&live, &ask).await?;
            Ok::<_, StoreError>(Info {
                version: live.info.version,
                ..Info::read(&said)
            })
        };
        match said.await {
            Ok(info) => info.fit(address, self.allow_eviction),
            Err(error) => Err(OpenError::Unreachable(format!(
                "the store at {address} cannot be asked: {}",
                error.message
            ))),
        }
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> &str {
        &self.shared.target.address
    }
}

/// `None`: the URL is not for us.
fn target(store: &StoreUrl, timeout: Duration) -> Option<Target> {
    let StoreUrl::Redis(url) = store else {
        return None;
    };
    let info = url.as_str().into_connection_info().ok()?;
    Target::new(&info, store.to_string(), timeout)
}

/// One thread's handle.
#[derive(Debug)]
struct RedisStore {
    shared: Arc<Shared>,
    small: Slot,
    large: Slot,
}

impl Store for RedisStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(self.run(key, operation))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let live = self.small.live().await?;
            self.small.command(&live, &redis::cmd("PING")).await?;
            Ok(())
        })
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(self.shared.subscription.listen(key))
    }

    fn unlisten(&self, key: RecordKey) {
        self.shared.subscription.unlisten(key);
    }
}
