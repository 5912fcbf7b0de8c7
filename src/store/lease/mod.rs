//! A lease as a value that must be spent: claimed, kept, settled once.
//!
//! The order of types is the order of life: [`Claimed::Acquired`] gives a [`Lease`], `settle`
//! consumes it and gives a [`Settling`], which may be tried until the store confirms. A lease that
//! is dropped (a fault of ours) leaves its record in flight: once it lapses it *is* unresolved.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Store, StoreError, StoreErrorKind};
use crate::idempotency::record::{Attempt, Record, Seen, State};
use crate::idempotency::transition::{Claim, Held};
use crate::idempotency::{Operation, Outcome, RecordKey};

/// What a claim gave.
#[derive(Debug)]
pub enum Claimed {
    /// The right to execute and to settle.
    Acquired(Lease),
    /// A record in the way.
    Held(Held),
    /// A takeover found nothing: claim instead.
    Absent,
}

/// The right to execute one key and to settle it. Not `Clone`.
#[derive(Debug)]
#[must_use = "a lease must be settled"]
pub struct Lease {
    store: Arc<dyn Store>,
    key: RecordKey,
    record: Record,
    length: Duration,
    confirmed_at: Instant,
    dispatched: bool,
}

/// Whether an owner's operation still applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Confirmed by the store.
    Stored {
        /// The record had been lost and was written again (law 3).
        reasserted: bool,
    },
    /// Somebody else owns the record.
    LeaseLost,
}

/// Claims `key`, or takes it over from the owner seen.
pub async fn claim(
    store: &Arc<dyn Store>,
    key: RecordKey,
    claim: Claim,
    from: Option<Seen>,
) -> Result<Claimed, StoreError> {
    let sent_at = Instant::now();
    let operation = match from {
        None => Operation::Claim(claim.clone()),
        Some(seen) => Operation::TakeOver {
            seen,
            claim: claim.clone(),
        },
    };
    match store.apply(key, operation).await? {
        Outcome::Acquired { attempt } => Ok(Claimed::Acquired(Lease::new(
            store.clone(),
            key,
            &claim,
            attempt,
            sent_at,
        ))),
        Outcome::Held(held) => Ok(Claimed::Held(held)),
        Outcome::Absent => Ok(Claimed::Absent),
        other => Err(unexpected(&other)),
    }
}

impl Lease {
    /// Also used for a claim that was never confirmed and is executed all the same (R24 `pass`).
    pub fn new(
        store: Arc<dyn Store>,
        key: RecordKey,
        claim: &Claim,
        attempt: Attempt,
        sent_at: Instant,
    ) -> Self {
        let record = claim.record(attempt);
        Self {
            store,
            key,
            record,
            length: claim.lease,
            confirmed_at: sent_at,
            dispatched: false,
        }
    }

    /// Which execution this is.
    pub fn attempt(&self) -> Attempt {
        self.record.attempt
    }

    /// Whether the claim, or its last renewal, is young enough to dispatch: half a lease since it
    /// was *sent*.
    pub fn may_dispatch(&self) -> bool {
        self.confirmed_at.elapsed() < self.length / 2
    }

    /// From here on the upstream may have the request.
    pub fn dispatched(&mut self) {
        self.dispatched = true;
    }

    /// The request came back unsent (R29).
    pub fn undispatched(&mut self) {
        self.dispatched = false;
    }

    /// R22: the last confirmation is too old to act on the record at all.
    pub fn is_too_old(&self) -> bool {
        too_old(self.confirmed_at, self.record.retention)
    }

    /// When the next renewal is due (R14: each third).
    pub fn renew_at(&self) -> Instant {
        self.confirmed_at + self.length / 3
    }

    /// A third of the lease.
    pub fn third(&self) -> Duration {
        self.length / 3
    }

    /// A renewal to be awaited beside the exchange. Tell its result to [`Lease::renewed`].
    pub fn renewal(
        &self,
    ) -> impl Future<Output = (Instant, Result<Outcome, StoreError>)> + Send + use<> {
        let store = self.store.clone();
        let key = self.key;
        let operation = Operation::Renew {
            record: self.record.clone(),
            dispatched: self.dispatched,
        };
        async move {
            let sent_at = Instant::now();
            (sent_at, store.apply(key, operation).await)
        }
    }

    /// Takes note of a renewal sent at `sent_at`.
    pub fn renewed(
        &mut self,
        sent_at: Instant,
        outcome: Result<Outcome, StoreError>,
    ) -> Result<Settled, StoreError> {
        match outcome? {
            Outcome::Stored { reasserted } => {
                self.confirmed_at = sent_at;
                Ok(Settled::Stored { reasserted })
            }
            Outcome::LeaseLost => Ok(Settled::LeaseLost),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the lease in `state`, to be kept for `retention`.
    pub fn settle(self, state: State, retention: Duration) -> Settling {
        let alive_for = self.record.retention;
        let record = Record {
            owner: self.record.owner,
            attempt: self.record.attempt,
            retention,
            state,
        };
        let Self {
            store,
            key,
            confirmed_at,
            ..
        } = self;
        Settling {
            store,
            key,
            record,
            in_flight: self.record,
            confirmed_at,
            alive_for,
        }
    }
}

/// A lease on its way out. Every try sends the same operation.
#[derive(Debug)]
#[must_use = "a settle must be confirmed"]
pub struct Settling {
    store: Arc<dyn Store>,
    key: RecordKey,
    record: Record,
    in_flight: Record,
    confirmed_at: Instant,
    alive_for: Duration,
}

impl Settling {
    /// Sends the settle once.
    pub async fn attempt(&self) -> Result<Settled, StoreError> {
        let operation = Operation::Settle {
            record: self.record.clone(),
        };
        match self.store.apply(self.key, operation).await? {
            Outcome::Stored { reasserted } => Ok(Settled::Stored { reasserted }),
            Outcome::LeaseLost => Ok(Settled::LeaseLost),
            other => Err(unexpected(&other)),
        }
    }

    /// Keeps the in-flight record alive while the settle is refused (R14).
    pub async fn renew(&mut self) {
        let sent_at = Instant::now();
        let record = self.in_flight.clone();
        let renewal = Operation::Renew {
            record,
            dispatched: true,
        };
        if let Ok(Outcome::Stored { .. }) = self.store.apply(self.key, renewal).await {
            self.confirmed_at = sent_at;
        }
    }

    /// R22: too late to settle.
    pub fn is_too_old(&self) -> bool {
        too_old(self.confirmed_at, self.alive_for)
    }

    /// The record to be.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// R30: gives up the body, never the fact.
    pub fn replace_state(&mut self, state: State) {
        self.record.state = state;
    }
}

fn too_old(confirmed_at: Instant, retention: Duration) -> bool {
    confirmed_at.elapsed() > retention.mul_f32(0.9)
}

fn unexpected(outcome: &Outcome) -> StoreError {
    let name = match outcome {
        Outcome::Acquired { .. } => "acquired",
        Outcome::Held(_) => "held",
        Outcome::Absent => "absent",
        Outcome::Stored { .. } => "stored",
        Outcome::LeaseLost => "lease lost",
        Outcome::Refused(_) => "refused",
    };
    let message = format!("the store gave an answer to another question: {name}");
    StoreError::maybe_sent(StoreErrorKind::Internal, message)
}

#[cfg(test)]
mod tests;
