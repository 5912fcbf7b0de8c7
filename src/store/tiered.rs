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
//! The deadline and the breaker around calls are those of the deciding store alone, behind the cache:
//! while that store is out of reach the cache goes on answering replays, and its answers do not make
//! the store look alive.
//!
//! Deliberately absent: writing to the cache from a settle; waiting for it longer than a fifth of a
//! call.

use std::sync::Arc;
use std::time::Duration;

use super::redis::{CacheHandle, Look, RedisCache};
use super::vault::Vault;
use super::{OpenError, PostgresStores, Settings, Store, StoreError, StoreFuture};
use crate::idempotency::record::State;
use crate::idempotency::transition::Held;
use crate::idempotency::{Operation, Outcome, Record, RecordKey};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;
use crate::tls::{Certificates, ClientSettings};

/// Copies are made of records up to this size.
const LARGEST: usize = 1 << 20;

/// PostgreSQL with a Redis before it, for one process.
#[derive(Debug)]
pub struct TieredStores {
    decides: PostgresStores,
    cache: RedisCache,
    control: CacheHandle,
    vault: Arc<Vault>,
}

impl TieredStores {
    /// Contacts nobody yet.
    pub fn new(
        decides: PostgresStores,
        cache: &super::Cache,
        settings: &Settings,
    ) -> Result<Self, OpenError> {
        let cache = RedisCache::new(cache, &settings.namespace, settings.timeout)?;
        Ok(Self {
            control: cache.handle(),
            vault: Vault::new(settings.vault.clone()),
            decides,
            cache,
        })
    }

    /// A handle for one thread.
    pub fn handle(&self) -> Arc<dyn Store> {
        self.before(self.decides.handle(), None)
    }

    /// The same over a handle of the deciding store that somebody watches over: what the cache answers
    /// says nothing of that store. `metrics`: where looks are counted.
    pub fn before(&self, decides: Arc<dyn Store>, metrics: Option<Arc<Metrics>>) -> Arc<dyn Store> {
        Arc::new(TieredStore {
            decides,
            cache: self.cache.handle(),
            vault: Arc::clone(&self.vault),
            metrics,
        })
    }

    /// The store that decides.
    pub fn decides(&self) -> &PostgresStores {
        &self.decides
    }

    /// Once: the certificates of both, to be renewed while they are used.
    pub fn take_certificates(&mut self) -> Vec<Certificates<ClientSettings>> {
        let both = [
            self.decides.take_certificates(),
            self.cache.take_certificates(),
        ];
        both.into_iter().flatten().collect()
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
    vault: Arc<Vault>,
    metrics: Option<Arc<Metrics>>,
}

impl TieredStore {
    fn count(&self, result: &'static str) {
        if let Some(metrics) = &self.metrics {
            let labels = Label([("result", result)]);
            metrics.cache_lookups.get_or_create(&labels).inc();
        }
    }

    async fn claim(&self, key: RecordKey, operation: Operation) -> Result<Outcome, StoreError> {
        let missed = match self.cache.look(key).await {
            Look::Copy(copy) => match self.vault.decode(key, &copy) {
                Ok(record) if is_final(&record) => {
                    self.count("hit");
                    // The exception of the contract: nothing is decided by its age.
                    let age = Duration::ZERO;
                    return Ok(Outcome::Held(Held { record, age }));
                }
                // What it is worth the deciding store knows.
                _ => {
                    self.count("unusable");
                    None
                }
            },
            Look::Missed(missed) => {
                self.count("miss");
                Some(missed)
            }
            Look::Unusable => {
                self.count("unusable");
                None
            }
        };
        let outcome = self.decides.apply(key, operation).await?;
        if let (Outcome::Held(held), Some(missed)) = (&outcome, missed)
            && is_final(&held.record)
        {
            let copy = self.vault.encode(key, &held.record)?;
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
