//! From `[store]` to a store: which one, a handle for each thread, and the duties that exist once.
//!
//! Invariant: opening contacts nobody. Whether a Redis is there and fit is `check`'s question, so
//! that a program can start before its Redis does.
//!
//! Deliberately absent: the deadline, the breaker and metrics around each call.

use std::sync::Arc;

use super::{FileStore, MemoryStore, OpenError, Settings, Store, StoreError, StoreUrl, WakeFn};
use crate::clock::Clock;

/// An open store of whichever kind.
#[derive(Debug)]
pub enum Stores {
    /// `memory:`
    Memory(Arc<MemoryStore>),
    /// `file:PATH`
    File(Arc<FileStore>),
}

impl Stores {
    /// Opens what the settings name. `wake` is called when another process settles a key that a
    /// handle listens to.
    pub fn open(
        settings: &Settings,
        clock: Arc<dyn Clock>,
        wake: WakeFn,
    ) -> Result<Self, OpenError> {
        drop(wake);
        Ok(match &settings.url {
            StoreUrl::Memory => Self::Memory(Arc::new(MemoryStore::new(settings.max_records))),
            StoreUrl::File(path) => Self::File(Arc::new(FileStore::open(
                path,
                settings.max_records,
                clock,
            )?)),
            StoreUrl::Redis(_) => return Err(OpenError::Unfit("not built".to_owned())),
        })
    }

    /// A handle; each runtime thread takes its own.
    pub fn handle(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::File(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }

    /// Asks whether the store is there and fit to be trusted; answers warnings. At start, and then
    /// every minute.
    #[expect(clippy::unused_async)]
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        Ok(Vec::new())
    }

    /// Removes at most `limit` expired records and says how many. Call again at once while it
    /// answers `limit`, and else now and then. Redis expires by itself.
    pub async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.sweep(limit)),
            Self::File(store) => store.sweep(limit).await,
        }
    }

    /// Whether it protects one process only.
    pub fn one_replica_only(&self) -> bool {
        match self {
            Self::Memory(_) | Self::File(_) => true,
        }
    }
}
