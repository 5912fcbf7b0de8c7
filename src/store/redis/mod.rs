//! `redis://` and its like: records that several replicas share. Redis 6.2 and later, Valkey 8 and
//! later; one server, the master that sentinels name, or a cluster.
//!
//! Owns one key for each record, `{namespace}:{record key in hexadecimal}`, whose value is the
//! codec's form and whose expiry is the record's end, and one channel for each key that somebody
//! waits for. Invariant: every operation is one atomic step of the server on that one key, and only
//! the server's clock decides.
//!
//! Each thread has a handle with connections of its own (`node.rs`); what is known of sentinels or a
//! cluster, and the subscription, are shared by the process.
//!
//! Deliberately absent: the deadline around an operation and the breaker, repeating what failed.
//!
//! Read next: `operations.rs` (what is sent), `exchange.rs` (where to), `connection.rs`,
//! `confirmed.rs` (`store.wait_replicas`).

mod address;
mod cache;
mod check;
mod cluster;
mod confirmed;
mod connection;
mod errors;
mod exchange;
mod facts;
mod info;
mod link;
mod mark;
mod node;
mod operations;
mod route;
mod scripts;
mod sentinel;
mod subscription;
mod wanted;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::loss::Loss;
use super::vault::Vault;
use super::{OpenError, Settings, Store, StoreFuture, StoreUrl, WakeFn};
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::tls::{Certificates, ClientSettings};
use address::Way;
pub(in crate::store) use address::without_user;
pub use address::{REDIS_SCHEMES, WrongUrl, check_redis_url, host_and_port};
pub(super) use cache::{CacheHandle, Look, RedisCache};
use cluster::Cluster;
use confirmed::Replicas;
use link::{Access, End, Finder, Target};
use mark::{Mark, Seen, Watch};
use route::Route;
use scripts::Scripts;
use sentinel::Sentinels;
use subscription::Subscription;

/// Records in a Redis, for one process. See the module.
#[derive(Debug)]
pub struct RedisStores {
    shared: Arc<Shared>,
    allow_eviction: bool,
    /// `store.wait_replicas`
    replicas: Option<Replicas>,
    /// As many as any server ever had.
    most_replicas: AtomicU32,
    certificates: Option<Box<Certificates<ClientSettings>>>,
    /// Looks whether it is still the same store.
    watcher: Route,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    loss: Arc<Loss>,
    namespace: String,
    vault: Arc<Vault>,
    modern: Scripts,
    legacy: Scripts,
    subscription: Subscription,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Finder::Sentinels(sentinels) = &self.target.finder {
            sentinels.stop();
        }
    }
}

impl Shared {
    /// In the form that such a server understands.
    fn scripts(&self, modern: bool) -> &Scripts {
        if modern { &self.modern } else { &self.legacy }
    }

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
        let loss = Loss::new(settings.hold_off);
        let mark = Mark::new(&settings.namespace, "", Arc::clone(&loss));
        let (access, certificates) = Access::new(&address, shown, settings.timeout, &settings.tls)?;
        let access = Arc::new(access);
        let finder = match address.way {
            Way::Server(place) => Finder::Fixed(End::Server(place)),
            Way::Socket(path) => Finder::Fixed(End::Socket(path)),
            Way::Sentinels { places, master } => {
                Finder::Sentinels(Sentinels::new(Arc::clone(&access), places, master))
            }
            Way::Cluster(seeds) => Finder::AnyNode(Cluster::new(
                Arc::clone(&access),
                seeds,
                &settings.namespace,
                Arc::clone(&loss),
            )),
        };
        let target = Arc::new(Target {
            access,
            watch: match mark {
                Some(mark) if !matches!(finder, Finder::AnyNode(_)) => Watch::Store(mark),
                _ => Watch::Nobody,
            },
            finder,
        });
        let prefix = prefix(&settings.namespace).into();
        Ok(Self {
            allow_eviction: settings.allow_eviction,
            replicas: (settings.wait_replicas > 0)
                .then(|| Replicas::new(settings.wait_replicas, settings.timeout)),
            most_replicas: AtomicU32::new(0),
            certificates: certificates.map(Box::new),
            watcher: Route::new(&target, None),
            shared: Arc::new(Shared {
                loss,
                namespace: settings.namespace.clone(),
                vault: Vault::new(settings.vault.clone()),
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
            route: Route::new(&self.shared.target, self.replicas.as_ref()),
            confirms: self.replicas.is_some(),
            shared: Arc::clone(&self.shared),
        })
    }

    /// What is known of losses of its memory.
    pub fn loss(&self) -> Arc<Loss> {
        Arc::clone(&self.shared.loss)
    }

    /// Whether it is still the store it was; asked each second.
    pub async fn look(&self) {
        let seen = self.watcher.look().await;
        self.shared
            .loss
            .takes_writes(matches!(seen, Ok(Seen::Open)));
        if let Err(error) = seen {
            tracing::debug!("no look at the mark: {error}");
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

/// A server, and over TLS the files by which it is trusted.
type Single = (Target, Option<Certificates<ClientSettings>>);

/// A single server. `None`: the URL names another kind.
fn single(
    store: &StoreUrl,
    timeout: Duration,
    tls: &ClientSettings,
) -> Result<Option<Single>, OpenError> {
    let StoreUrl::Redis(url) = store else {
        return Ok(None);
    };
    let Ok(address) = address::parse(url) else {
        return Ok(None);
    };
    let end = match &address.way {
        Way::Server(place) => End::Server(place.clone()),
        Way::Socket(path) => End::Socket(path.clone()),
        Way::Sentinels { .. } | Way::Cluster(_) => return Ok(None),
    };
    let (access, certificates) = Access::new(&address, store.to_string(), timeout, tls)?;
    let target = Target {
        access: Arc::new(access),
        finder: Finder::Fixed(end),
        watch: Watch::Nobody,
    };
    Ok(Some((target, certificates)))
}

/// One thread's handle.
#[derive(Debug)]
struct RedisStore {
    shared: Arc<Shared>,
    route: Route,
    /// Whether replicas are asked.
    confirms: bool,
}

impl Store for RedisStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(self.run(key, operation))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.route.ping())
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(self.shared.subscription.listen(key))
    }

    fn unlisten(&self, key: RecordKey) {
        self.shared.subscription.unlisten(key);
    }
}
