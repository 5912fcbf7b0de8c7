//! A Redis that keeps copies of final records for another store. It decides nothing, and may forget
//! everything at any moment.
//!
//! Owns one key for each copy, `{namespace}:cache:{record key in hexadecimal}`. Invariant: a copy
//! ends, by the server's own clock, no later than its record would have ended or `ttl` after the
//! look that missed it, whichever is first; and that look came before the record was read. So a
//! copy that arrives late, however late, is not older than that. A key that was struck out takes no
//! copy until every copy that may be on its way has ended.
//!
//! Deliberately absent: whatever the record says; who may use it (`tiered.rs`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::connection::Slot;
use super::link::Target;
use super::{OpenError, errors, single};
use crate::idempotency::RecordKey;
use crate::idempotency::transition::millis;
use crate::store::{Cache, StoreError, StoreErrorKind};
use crate::tls::{Certificates, ClientSettings};

/// A cache that did not answer is left alone for so long.
const REST: Duration = Duration::from_secs(1);
/// What stands for a copy that must not be used. No record is as short.
const STRUCK: &[u8] = b"-";

/// Copies in a Redis, for one process.
#[derive(Debug)]
pub(in crate::store) struct RedisCache {
    shared: Arc<Shared>,
    certificates: Option<Box<Certificates<ClientSettings>>>,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    namespace: String,
    ttl: Duration,
    /// Of one look or one copy, much less than a call to the store.
    patience: Duration,
    resting_until: Mutex<Option<Instant>>,
}

impl RedisCache {
    /// Contacts nobody yet. `timeout`: of a call to the store.
    pub(in crate::store) fn new(
        cache: &Cache,
        namespace: &str,
        timeout: Duration,
    ) -> Result<Self, OpenError> {
        let single = single(&cache.url, timeout, &cache.tls)?;
        let (target, certificates) = single.ok_or_else(|| {
            OpenError::Unfit("store.cache is no single Redis: redis://HOST".to_owned())
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                target: Arc::new(target),
                namespace: namespace.to_owned(),
                ttl: cache.ttl,
                patience: timeout / 5,
                resting_until: Mutex::new(None),
            }),
            certificates: certificates.map(Box::new),
        })
    }

    /// Once: the certificates, to be renewed while connections are made with them.
    pub(in crate::store) fn take_certificates(&mut self) -> Option<Certificates<ClientSettings>> {
        self.certificates.take().map(|files| *files)
    }

    /// A handle with a connection of its own. Each runtime thread takes one and keeps it there.
    pub(in crate::store) fn handle(&self) -> CacheHandle {
        CacheHandle {
            slot: Slot::new(Arc::clone(&self.shared.target)),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Where it is, without user and password.
    pub(in crate::store) fn address(&self) -> &str {
        &self.shared.target.access.url
    }
}

/// What a look found.
#[derive(Debug)]
pub(in crate::store) enum Look {
    /// A copy, as the codec wrote it.
    Copy(Bytes),
    /// None; with it one may be left.
    Missed(Missed),
    /// Not one to use, and none to be left: struck out, or the cache is not there.
    Unusable,
}

/// The cache's clock at a look that found nothing, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Missed(u64);

/// One thread's handle.
#[derive(Debug)]
pub(in crate::store) struct CacheHandle {
    shared: Arc<Shared>,
    slot: Slot,
}

impl CacheHandle {
    /// Looks for a copy. Never an error, and never long.
    pub(in crate::store) async fn look(&self, key: RecordKey) -> Look {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("TIME");
        pipeline.cmd("GET").arg(self.name(key));
        let Some(said) = self.briefly(&pipeline).await else {
            return Look::Unusable;
        };
        match said.as_slice() {
            [time, Value::Nil] => {
                clock(time).map_or(Look::Unusable, |now| Look::Missed(Missed(now)))
            }
            [_, Value::BulkString(copy)] if copy.as_slice() != STRUCK => {
                Look::Copy(Bytes::copy_from_slice(copy))
            }
            _ => Look::Unusable,
        }
    }

    /// Leaves a copy of a record that is kept for `remaining` from a moment after the look.
    pub(in crate::store) async fn leave(
        &self,
        key: RecordKey,
        missed: Missed,
        record: &Bytes,
        remaining: Duration,
    ) {
        let ends_at = missed
            .0
            .saturating_add(millis(remaining.min(self.shared.ttl)));
        let mut pipeline = Pipeline::with_capacity(1);
        let set = pipeline.cmd("SET").arg(self.name(key)).arg(record.as_ref());
        set.arg("NX").arg("PXAT").arg(ends_at);
        drop(self.briefly(&pipeline).await);
    }

    /// Strikes a key out: what is there is used no more, and nothing is left there until every
    /// copy that may be on its way has ended.
    pub(in crate::store) async fn strike(&self, key: RecordKey) -> Result<(), StoreError> {
        let mut set = redis::cmd("SET");
        let until = millis(self.shared.ttl.saturating_mul(2)).max(1);
        set.arg(self.name(key)).arg(STRUCK).arg("PX").arg(until);
        let live = self.slot.live().await?;
        match self.slot.command(&live, &set).await {
            Ok(Value::Okay) => Ok(()),
            Ok(_) => Err(errors::odd("SET")),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Whether it answers.
    pub(in crate::store) async fn ping(&self) -> Result<(), StoreError> {
        let live = self.slot.live().await?;
        self.slot.command(&live, &redis::cmd("PING")).await?;
        Ok(())
    }

    /// `None`: no answer, or an error in it; then it is left alone for a moment.
    async fn briefly(&self, pipeline: &Pipeline) -> Option<Vec<Value>> {
        if self.is_resting() {
            return None;
        }
        let asked = async {
            let live = self.slot.live().await?;
            Ok::<_, StoreError>(self.slot.pipeline(&live, pipeline).await?)
        };
        let answer = match tokio::time::timeout(self.shared.patience, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(StoreError::maybe_sent(
                StoreErrorKind::Timeout,
                "the cache did not answer in time",
            )),
        };
        let refused = |said: &Vec<Value>| {
            said.iter()
                .any(|part| matches!(part, Value::ServerError(_)))
        };
        match answer {
            Ok(said) if !refused(&said) => Some(said),
            Ok(said) => {
                tracing::debug!(event = "cache_error", error = ?said);
                self.rest();
                None
            }
            Err(error) => {
                tracing::debug!(event = "cache_error", error = %error);
                self.rest();
                None
            }
        }
    }

    fn is_resting(&self) -> bool {
        let until = self.shared.resting_until.lock();
        let until = until.unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        let until = self.shared.resting_until.lock();
        *until.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + REST);
    }

    fn name(&self, key: RecordKey) -> String {
        format!("{}:cache:{key}", self.shared.namespace)
    }
}

/// Milliseconds of `TIME`'s answer: seconds and microseconds.
fn clock(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match parts.as_slice() {
        [seconds, micros] => {
            let seconds = number(seconds)?.checked_mul(1_000)?;
            seconds.checked_add(number(micros)? / 1_000)
        }
        _ => None,
    }
}
