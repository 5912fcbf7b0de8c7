//! The store contract, in prose and as a trait.
//!
//! A store keeps at most one record per record key and applies [`Operation`]s to it. The contract
//! is one sentence: **every `apply` answers what [`transition`](crate::idempotency::transition())
//! answers, atomically, at some store time between call and return.** What follows from it:
//!
//! - An error leaves open whether the operation was applied, unless it says
//!   [`Delivery::NotSent`]. Every operation may be sent again.
//! - `Ok` is an acknowledgement: a record that was acknowledged is there for the next caller.
//! - A record past its end is absent, swept or not.
//! - A record that cannot be read is an error (R25), never "absent".
//! - A full store refuses claims and never evicts.
//! - One exception, so that a replay costs Redis one command: the age of a completed (or not kept)
//!   record that a claim meets may be given as zero. Nothing is decided by it.
//!
//! Deliberately absent: policy (who may take over is `judge`'s), HTTP, retries (`guarded.rs` and
//! the lease's owner do those).
//!
//! Read next: `idempotency/transition.rs`, then `memory.rs`, the shortest implementation.

mod background;
pub mod file;
pub mod guarded;
pub mod lease;
pub mod loss;
pub mod memory;
mod open;
pub mod postgres;
pub mod redis;
pub mod tier;
pub mod tiered;
pub mod vault;

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::idempotency::{Identity, Operation, Outcome, RecordKey, Secret};
use crate::tls::ClientSettings;

use self::redis::without_user;
pub use self::redis::{REDIS_SCHEMES, RedisStores, WrongUrl, check_redis_url, host_and_port};
pub use file::FileStore;
pub use memory::MemoryStore;
pub use open::Stores;
pub use postgres::{PostgresAddress, PostgresPlace, PostgresStores};
pub use tiered::TieredStores;
use vault::VaultSettings;

/// A boxed answer of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Where records are kept. See the module's contract.
pub trait Store: Send + Sync + fmt::Debug {
    /// Applies one operation to the record of `key`.
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome>;

    /// Asks the store for a sign of life.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// Asks for wake-ups when another process settles `key`; returns once the subscription
    /// stands. Counted: two calls need two `unlisten`. After an error, or if the future is dropped
    /// before it answered, nothing was begun. A store that only one process can use has nothing to
    /// do here.
    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()>;

    /// Ends what one `listen` began.
    fn unlisten(&self, key: RecordKey);
}

/// What a store says to the waiters of this process (R13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Another process settled this key.
    Key(RecordKey),
    /// The subscription was interrupted: signs may have been missed, look at every key.
    All,
}

/// Where a store delivers its wake-ups. Must not block.
pub type WakeFn = Arc<dyn Fn(Wake) + Send + Sync>;

/// Whether a request can have reached the other side: the axis that retry safety turns on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Provably not.
    NotSent,
    /// Nobody knows.
    MaybeSent,
}

/// A store that did not answer as asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind}: {message}")]
pub struct StoreError {
    /// What went wrong, for metrics and for the breaker.
    pub kind: StoreErrorKind,
    /// Whether the operation may have been applied.
    pub delivery: Delivery,
    /// For logs. Never holds a password or a key.
    pub message: String,
}

/// The kinds of store errors. `Display` gives the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum StoreErrorKind {
    /// No connection, or it broke.
    #[error("unavailable")]
    Unavailable,
    /// No answer within `store.timeout`.
    #[error("timeout")]
    Timeout,
    /// Not asked: the breaker is open (R24).
    #[error("breaker_open")]
    BreakerOpen,
    /// The server answered that it cannot just now: LOADING, READONLY, MISCONF, NOREPLICAS, BUSY.
    #[error("refused")]
    Refused,
    /// No room: a full memory or file store, Redis with OOM.
    #[error("full")]
    Full,
    /// Done, and not confirmed by as many replicas as `store.wait_replicas` asks for.
    #[error("unconfirmed")]
    Unconfirmed,
    /// R25: there is a record and it cannot be read.
    #[error("unreadable")]
    Unreadable,
    /// Anything else; a fault to be looked at.
    #[error("internal")]
    Internal,
}

impl StoreError {
    /// An error after which the operation may or may not have been applied.
    pub fn maybe_sent(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            delivery: Delivery::MaybeSent,
            message: message.into(),
        }
    }

    /// An error that proves that nothing was applied *by this call*. If the same operation was sent
    /// before and its reply lost, that earlier call is as open as it was.
    pub fn not_sent(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            delivery: Delivery::NotSent,
            message: message.into(),
        }
    }
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Which store.
    pub url: StoreUrl,
    /// R8: part of every record key; prefix of every Redis key.
    pub namespace: String,
    /// R24: the deadline of one store call.
    pub timeout: Duration,
    /// Redis: replicas that must have a claim or settle before it counts.
    pub wait_replicas: u32,
    /// `memory:` and `file:` under Kubernetes need this.
    pub single_replica: bool,
    /// How long absent keys are not given out after the store lost its memory; zero: nobody looks.
    pub hold_off: Duration,
    /// Start although Redis may evict records. Loud.
    pub allow_eviction: bool,
    /// `memory:` and `file:`: records at most; beyond it claims are refused.
    pub max_records: u64,
    /// Weaker stores are refused.
    pub require_tier: tier::Tier,
    /// R8: what hashes are keyed with.
    pub secret: Option<Secret>,
    /// How records are stored.
    pub vault: VaultSettings,
    /// `postgres://`: sessions of this process at most, beside the one for wake-ups.
    pub connections: usize,
    /// `postgres://`: a Redis that answers replays.
    pub cache: Option<Cache>,
    /// `[store.tls]`, for a store that is reached over TLS.
    pub tls: ClientSettings,
}

/// A cache before the store that decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Which Redis.
    pub url: StoreUrl,
    /// How long a copy is used at most.
    pub ttl: Duration,
    /// `[store.cache_tls]`, for a cache that is reached over TLS.
    pub tls: ClientSettings,
}

impl fmt::Display for Settings {
    /// Where records are, without user info.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.url, f)?;
        match &self.cache {
            Some(cache) => write!(f, " with the cache {}", cache.url),
            None => Ok(()),
        }
    }
}

impl Settings {
    /// R8: what makes a key one key.
    pub fn identity(&self) -> Identity {
        Identity {
            namespace: self.namespace.clone(),
            secret: self.secret.clone(),
        }
    }

    /// R34: how long a record that an operator deletes stays as a failed one, at least: as long as
    /// somebody may still act on it, or a cache repeat it.
    pub fn deleted_for(&self, lease: Duration) -> Duration {
        let cached = self
            .cache
            .as_ref()
            .map_or(Duration::ZERO, |cache| cache.ttl);
        let acted_on = (lease * 2).max(Duration::from_mins(2));
        acted_on.max(cached.saturating_mul(2))
    }
}

/// A store's address.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`
    Memory,
    /// `file:PATH`
    File(PathBuf),
    /// `redis://[user[:password]@]host[:port][/db]` and its other forms (`redis/address.rs`), as
    /// given. Holds the password.
    Redis(String),
    /// `postgres://user[:password]@host[:port]/database`. Holds the password.
    Postgres(Box<PostgresAddress>),
}

impl StoreUrl {
    /// Whether it is reached over TLS.
    pub fn is_tls(&self) -> bool {
        match self {
            Self::Memory | Self::File(_) => false,
            Self::Redis(url) => url.starts_with("rediss"),
            Self::Postgres(address) => address.tls,
        }
    }
}

impl fmt::Display for StoreUrl {
    /// Without user info.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Redis(url) => f.write_str(&without_user(url)),
            Self::Postgres(address) => fmt::Display::fmt(address, f),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A store that cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A configuration that must be changed first (exit 78). The text says how.
    #[error("{0}")]
    Unfit(String),
    /// Another process holds the file (exit 1).
    #[error("{0}")]
    InUse(String),
    /// Not reachable; only an error where it must be (exit 69).
    #[error("{0}")]
    Unreachable(String),
}
