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
//! Cluster and Sentinel.
//!
//! Read next: `operations.rs` (what is sent), `scripts.rs`, `connection.rs`.

mod address;
mod connection;
mod errors;
mod info;
mod link;
mod operations;
mod scripts;
mod subscription;
mod wanted;

use std::sync::Arc;

use super::{OpenError, Settings, Store, StoreError, StoreFuture, StoreUrl, WakeFn};
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::tls::{Certificates, ClientSettings};
use address::Way;
pub(in crate::store) use address::without_user;
pub use address::{REDIS_SCHEMES, WrongUrl, check_redis_url, host_and_port};
use connection::Slot;
use info::Info;
use link::{Access, End, Target};
use scripts::Scripts;
use subscription::Subscription;

/// Records in a Redis, for one process. See the module.
#[derive(Debug)]
pub struct RedisStores {
    shared: Arc<Shared>,
    /// For `check` alone.
    control: Slot,
    allow_eviction: bool,
    certificates: Option<Box<Certificates<ClientSettings>>>,
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
        let StoreUrl::Redis(url) = &settings.url else {
            return Err(OpenError::Unfit("store.url is no Redis".to_owned()));
        };
        let address = address::parse(url).map_err(|found| {
            let WrongUrl { message, help } = found;
            OpenError::Unfit(format!("store.url {message}: {help}"))
        })?;
        let shown = settings.url.to_string();
        let (access, certificates) = Access::new(&address, shown, settings.timeout, &settings.tls)?;
        let access = Arc::new(access);
        let end = match address.way {
            Way::Server(place) => End::Server(place),
            Way::Socket(path) => End::Socket(path),
            Way::Sentinels { .. } | Way::Cluster(_) => {
                let text = "store.url names sentinels or a cluster, which is not available yet";
                return Err(OpenError::Unfit(text.to_owned()));
            }
        };
        let target = Arc::new(Target { access, end });
        let prefix = prefix(&settings.namespace).into();
        Ok(Self {
            control: Slot::new(Arc::clone(&target)),
            allow_eviction: settings.allow_eviction,
            certificates: certificates.map(Box::new),
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
        let address = &self.shared.target.access.url;
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
        &self.shared.target.access.url
    }

    /// Once: the certificates, to be renewed while connections are made with them.
    pub fn take_certificates(&mut self) -> Option<Certificates<ClientSettings>> {
        self.certificates.take().map(|files| *files)
    }
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
