//! Two stores as one: one that decides, and a cache that answers replays.
//!
//! Invariant: the cache is asked before a claim only, and only for a record that is final: completed,
//! or completed and not kept. With whatever else it says, or with nothing, the claim goes to the
//! store that decides. So a cache can at most repeat an answer that was recorded; it lets nothing
//! run. A copy is made of what the deciding store answered to a claim, never of what this process
//! asked it to record: it may have recorded something else (law 1).
//!
//! An operator's action strikes the key out of the cache first, and is not carried out where that
//! cannot be done: else an answer that was taken back would go on being repeated. A cache that
//! forgets this too (a failover) repeats the old answer until the copy ends, `store.cache_ttl`
//! later at most; R34 leaves a failed record for twice that.
//!
//! Deliberately absent: writing to the cache from a settle; waiting for it.

use std::sync::Arc;
use std::time::Duration;

use super::redis::{CacheHandle, Look, RedisCache};
use super::{OpenError, PostgresStores, Settings, Store, StoreError, StoreFuture};
use crate::idempotency::record::State;
use crate::idempotency::transition::Held;
use crate::idempotency::{Operation, Outcome, Record, RecordKey, codec};

/// Copies are made of records up to this size.
const LARGEST: usize = 1 << 20;

/// PostgreSQL with a Redis before it, for one process.
#[derive(Debug)]
pub struct TieredStores {
    decides: PostgresStores,
    cache: RedisCache,
    control: CacheHandle,
}

impl TieredStores {
    /// Contacts nobody yet.
    pub fn new(
        decides: PostgresStores,
        cache: &super::Cache,
        settings: &Settings,
    ) -> Result<Self, OpenError> {
        let namespace = &settings.namespace;
        let cache = RedisCache::new(&cache.url, namespace, cache.ttl, settings.timeout)?;
        Ok(Self {
            control: cache.handle(),
            decides,
            cache,
        })
    }

    /// A handle for one thread.
    pub fn handle(&self) -> Arc<dyn Store> {
        Arc::new(TieredStore {
            decides: self.decides.handle(),
            cache: self.cache.handle(),
        })
    }

    /// The store that decides.
    pub fn decides(&self) -> &PostgresStores {
        &self.decides
    }

    /// The same, to be changed.
    pub fn decides_mut(&mut self) -> &mut PostgresStores {
        &mut self.decides
    }

    /// What the deciding store's check says. A cache that is not there is a warning.
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        let mut warnings = self.decides.check().await?;
        if let Err(error) = self.control.ping().await {
            warnings.push(format!(
                "the cache at {} does not answer ({}): replays are read from PostgreSQL meanwhile",
                self.cache.address(),
                error.message
            ));
        }
        Ok(warnings)
    }

    /// Both places, without user and password.
    pub fn describe(&self) -> String {
        let (decides, cache) = (self.decides.address(), self.cache.address());
        format!("{decides} with the cache {cache}")
    }
}

/// One thread's handle.
#[derive(Debug)]
struct TieredStore {
    decides: Arc<dyn Store>,
    cache: CacheHandle,
}

impl TieredStore {
    async fn claim(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        let missed = match self.cache.look(key).await {
            Look::Copy(copy) => match codec::decode(&copy) {
                Ok(record) if is_final(&record) => {
                    // The exception of the contract: nothing is decided by its age.
                    let age = Duration::ZERO;
                    return Ok(Outcome::Held(Held { record, age }));
                }
                // What it is worth the deciding store knows.
                _ => None,
            },
            Look::Missed(missed) => Some(missed),
            Look::Unusable => None,
        };
        let outcome = self.decides.apply(key, operation).await?;
        if let (Outcome::Held(held), Some(missed)) = (&outcome, missed)
            && is_final(&held.record)
        {
            let copy = codec::encode(&held.record);
            if copy.len() <= LARGEST {
                let remaining = held.remaining();
                self.cache.leave(key, missed, &copy, remaining).await;
            }
        }
        Ok(outcome)
    }

    async fn operate(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        if let Err(error) = self.cache.strike(key).await {
            let message = format!(
                "the cache could not be told, so nothing was changed: {}",
                error.message
            );
            return Err(StoreError::not_sent(error.kind, message));
        }
        self.decides.apply(key, operation).await
    }
}

/// Whether a record stays as it is until it ends, unless an operator acts.
fn is_final(record: &Record) -> bool {
    matches!(
        record.state,
        State::Completed { .. } | State::NotKept { .. }
    )
}

impl Store for TieredStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        match operation {
            Operation::Claim(_) => Box::pin(self.claim(key, operation)),
            Operation::Operate { .. } => Box::pin(self.operate(key, operation)),
            _ => self.decides.apply(key, operation),
        }
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.decides.ping()
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        self.decides.listen(key)
    }

    fn unlisten(&self, key: RecordKey) {
        self.decides.unlisten(key);
    }
}
