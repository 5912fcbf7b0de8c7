//! From `[store]` to a store: which one, a handle for each thread, and the duties that exist once.
//!
//! Invariant: opening contacts nobody. Whether a Redis is there and fit is `check`'s question, so
//! that a program can start before its Redis does.
//!
//! Deliberately absent: what deadline, breaker and metrics around each call do (`guarded`).

use std::sync::Arc;
use std::time::Duration;

use super::guarded::{Breaker, Guarded};
use super::loss::Loss;
use super::tier::{self, Guarantee};
use super::vault::Vault;
use super::{
    FileStore, MemoryStore, OpenError, PostgresStores, RedisStores, Settings, Store, StoreError,
    StoreUrl, TieredStores, WakeFn,
};
use crate::clock::Clock;
use crate::telemetry::Metrics;
use crate::tls::{Certificates, ClientSettings};

/// An open store of whichever kind.
#[derive(Debug)]
pub enum Stores {
    /// `memory:`
    Memory(Arc<MemoryStore>),
    /// `file:PATH`
    File(Arc<FileStore>),
    /// `redis://`
    Redis(RedisStores),
    /// `postgres://`
    Postgres(PostgresStores),
    /// `postgres://` with a cache.
    Tiered(TieredStores),
}

impl Stores {
    /// Opens what the settings name. `wake` is called when another process settles a key that a
    /// handle listens to.
    pub fn open(
        settings: &Settings,
        clock: Arc<dyn Clock>,
        wake: WakeFn,
    ) -> Result<Self, OpenError> {
        Ok(match &settings.url {
            StoreUrl::Memory => Self::Memory(Arc::new(MemoryStore::new(settings.max_records))),
            StoreUrl::File(path) => Self::File(Arc::new(FileStore::open(
                path,
                settings.max_records,
                Vault::new(settings.vault.clone()),
                clock,
            )?)),
            StoreUrl::Redis(_) => Self::Redis(RedisStores::new(settings, wake)?),
            StoreUrl::Postgres(address) => {
                let decides = PostgresStores::new(settings, address, wake)?;
                match &settings.cache {
                    None => Self::Postgres(decides),
                    Some(cache) => Self::Tiered(TieredStores::new(decides, cache, settings)?),
                }
            }
        })
    }

    /// A handle; each runtime thread takes its own.
    pub fn handle(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::File(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Redis(stores) => stores.handle(),
            Self::Postgres(stores) => stores.handle(),
            Self::Tiered(stores) => stores.handle(),
        }
    }

    /// A handle of what decides, behind deadline and breaker.
    pub fn deciding(&self, breaker: &Arc<Breaker>) -> Arc<Guarded> {
        let decides = match self {
            Self::Tiered(stores) => stores.decides().handle(),
            _ => self.handle(),
        };
        Guarded::new(decides, Arc::clone(breaker))
    }

    /// The same with a cache before it, where there is one.
    pub fn guarded(&self, breaker: &Arc<Breaker>, metrics: &Arc<Metrics>) -> Arc<dyn Store> {
        let decides = self.deciding(breaker);
        match self {
            Self::Tiered(stores) => stores.before(decides, Some(Arc::clone(metrics))),
            _ => decides,
        }
    }

    /// Asks whether the store is there and fit to be trusted; answers warnings. At start, and then
    /// every minute.
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        match self {
            Self::Memory(_) | Self::File(_) => Ok(Vec::new()),
            Self::Redis(stores) => stores.check().await,
            Self::Postgres(stores) => stores.check().await,
            Self::Tiered(stores) => stores.check().await,
        }
    }

    /// How far the store can be trusted, from what it says now; `None`: it is out of reach.
    pub async fn guarantee(&self) -> Option<Guarantee> {
        match self {
            Self::Memory(_) => Some(tier::of_memory()),
            Self::File(_) => Some(tier::of_file()),
            Self::Redis(stores) => stores.guarantee().await.ok(),
            Self::Postgres(stores) => stores.guarantee().await.ok(),
            Self::Tiered(stores) => stores.decides().guarantee().await.ok(),
        }
    }

    /// What is known of losses of its memory.
    pub fn loss(&self) -> Arc<Loss> {
        match self {
            Self::Redis(stores) => stores.loss(),
            Self::Postgres(stores) => stores.loss(),
            Self::Tiered(stores) => stores.decides().loss(),
            Self::Memory(_) | Self::File(_) => Loss::new(Duration::ZERO),
        }
    }

    /// Each second: whether it is still the store it was. What this process keeps itself cannot lose
    /// its memory unseen.
    pub async fn look(&self) {
        match self {
            Self::Memory(_) | Self::File(_) => {}
            Self::Redis(stores) => stores.look().await,
            Self::Postgres(stores) => stores.look().await,
            Self::Tiered(stores) => stores.decides().look().await,
        }
    }

    /// Removes at most `limit` expired records and says how many. A file takes 1,000 at once at
    /// most, and so does PostgreSQL; call again at once while it answers as many, and else now and
    /// then. Redis expires by itself.
    pub async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.sweep(limit)),
            Self::File(store) => store.sweep(limit).await,
            Self::Redis(_) => Ok(0),
            Self::Postgres(stores) => stores.sweep(limit).await,
            Self::Tiered(stores) => stores.decides().sweep(limit).await,
        }
    }

    /// Once: the certificates of a store over TLS, to be renewed while it is used.
    pub fn take_certificates(&mut self) -> Vec<Certificates<ClientSettings>> {
        match self {
            Self::Memory(_) | Self::File(_) => Vec::new(),
            Self::Redis(stores) => stores.take_certificates().into_iter().collect(),
            Self::Postgres(stores) => stores.take_certificates().into_iter().collect(),
            Self::Tiered(stores) => stores.take_certificates(),
        }
    }

    /// Whether it protects one process only.
    pub fn one_replica_only(&self) -> bool {
        match self {
            Self::Memory(_) | Self::File(_) => true,
            Self::Redis(_) | Self::Postgres(_) | Self::Tiered(_) => false,
        }
    }

    /// The PostgreSQL, where there is one.
    pub fn postgres(&self) -> Option<&PostgresStores> {
        match self {
            Self::Memory(_) | Self::File(_) | Self::Redis(_) => None,
            Self::Postgres(stores) => Some(stores),
            Self::Tiered(stores) => Some(stores.decides()),
        }
    }

    /// For the first log line. Holds no secret.
    pub fn describe(&self) -> String {
        match self {
            Self::Memory(_) => "memory: (gone at restart)".to_owned(),
            // A relative path is relative to where the program was started.
            Self::File(store) => {
                let path = std::path::absolute(store.path());
                let path = path.unwrap_or_else(|_| store.path().to_owned());
                format!("file:{}", path.display())
            }
            Self::Redis(stores) => stores.address().to_owned(),
            Self::Postgres(stores) => stores.address().to_owned(),
            Self::Tiered(stores) => stores.describe(),
        }
    }
}
