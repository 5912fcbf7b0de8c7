//! Every call to a store passes here: deadline, breaker, metrics (R24).
//!
//! The breaker opens when a call failed or timed out and none succeeded within `store.timeout`
//! before that. While it is open calls fail at once and one probe ([`Guarded::probe`]) runs every
//! 100 ms, doubling to 1 s. The first success closes it; settles, renewals and withdrawn claims
//! that waited for it go before new claims.
//!
//! A refusal or a full store is an answer: the server lives, and the breaker stays closed.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::loss::{Loss, Noticed, held_off};
use super::{Store, StoreError, StoreErrorKind, StoreFuture};
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;

const FIRST_PROBE: Duration = Duration::from_millis(100);
const LAST_PROBE: Duration = Duration::from_secs(1);

/// The labels of store calls.
const OPERATIONS: [&str; 8] = [
    "read", "claim", "renew", "settle", "abandon", "operate", "ping", "listen",
];
const KINDS: [StoreErrorKind; 8] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Timeout,
    StoreErrorKind::BreakerOpen,
    StoreErrorKind::Refused,
    StoreErrorKind::Full,
    StoreErrorKind::Unconfirmed,
    StoreErrorKind::Unreadable,
    StoreErrorKind::Internal,
];

/// The breaker's state, shared by all threads.
#[derive(Debug)]
pub struct Breaker {
    timeout: Duration,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    open: watch::Sender<bool>,
    /// Settles and renewals that wait for the store, to be let through before claims.
    pending: AtomicUsize,
    /// The store was found unfit to keep records (an evicting policy): claims only read.
    unfit: AtomicBool,
    loss: Arc<Loss>,
}

#[derive(Debug)]
struct State {
    last_success: Option<Instant>,
    /// Claims pass again from then on, or as soon as nothing is pending.
    claims_from: Option<Instant>,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(timeout: Duration, metrics: Arc<Metrics>, loss: Arc<Loss>) -> Arc<Self> {
        metrics.store_up.set(1);
        // A series that appears with its first event has no increase to alert on.
        for operation in OPERATIONS {
            for kind in KINDS {
                let labels = Label([("operation", operation), ("kind", kind_label(kind))]);
                drop(metrics.store_errors.get_or_create(&labels));
            }
        }
        let state = State {
            last_success: None,
            claims_from: None,
        };
        Arc::new(Self {
            timeout,
            metrics,
            state: Mutex::new(state),
            open: watch::Sender::new(false),
            pending: AtomicUsize::new(0),
            unfit: AtomicBool::new(false),
            loss,
        })
    }

    /// While the store cannot be trusted to keep records nothing new is claimed; replays go on.
    pub fn set_unfit(&self, unfit: bool) {
        self.unfit.store(unfit, Ordering::Release);
        self.metrics
            .store_up
            .set(i64::from(!unfit && !self.is_open()));
    }

    /// To be told when the store lost its memory.
    pub fn losses(&self) -> watch::Receiver<Noticed> {
        self.loss.subscribe()
    }

    /// Whether calls fail at once just now.
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the store answers again, at most `at_most`. Counts as pending meanwhile and
    /// until the returned guard is dropped.
    pub async fn closed(self: &Arc<Self>, at_most: Duration) -> Pending {
        let pending = Pending::new(self.clone());
        let mut open = self.open.subscribe();
        // Whether it closed or the time is up, the caller tries again.
        let _elapsed = tokio::time::timeout(at_most, open.wait_for(|open| !*open))
            .await
            .is_err();
        pending
    }

    /// Whether this call may go out now.
    fn admit(&self, is_claim: bool, now: Instant) -> bool {
        if self.is_open() {
            return false;
        }
        let mut state = self.lock();
        match state.claims_from {
            Some(from) if is_claim && now < from && self.pending.load(Ordering::Relaxed) > 0 => {
                false
            }
            Some(_) if is_claim => {
                state.claims_from = None;
                true
            }
            _ => true,
        }
    }

    fn succeeded(&self, now: Instant) {
        let mut state = self.lock();
        state.last_success = Some(now);
        if self.is_open() {
            state.claims_from = Some(now + self.timeout);
            self.open.send_replace(false);
            drop(state);
            self.metrics
                .store_up
                .set(i64::from(!self.unfit.load(Ordering::Acquire)));
            tracing::info!(event = "store_up", "the store answers again");
        }
    }

    fn failed(&self, started: Instant, now: Instant, error: &StoreError) {
        let state = self.lock();
        let alive = state
            .last_success
            .is_some_and(|at| at >= started || now - at < self.timeout);
        if alive || self.is_open() {
            return;
        }
        self.open.send_replace(true);
        drop(state);
        self.metrics.store_up.set(0);
        tracing::error!(event = "store_down", error = %error, "the store does not answer");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// An operation that waits for the store; claims give way to it.
#[derive(Debug)]
pub struct Pending(Arc<Breaker>);

impl Pending {
    fn new(breaker: Arc<Breaker>) -> Self {
        breaker.pending.fetch_add(1, Ordering::Relaxed);
        Self(breaker)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A store behind deadline and breaker.
#[derive(Debug)]
pub struct Guarded {
    inner: Arc<dyn Store>,
    breaker: Arc<Breaker>,
}

impl Guarded {
    /// Wraps one thread's handle.
    pub fn new(inner: Arc<dyn Store>, breaker: Arc<Breaker>) -> Arc<Self> {
        Arc::new(Self { inner, breaker })
    }

    /// Asks an absent store for a sign of life until it gives one. Runs once per process, for ever.
    pub async fn probe(self: Arc<Self>) {
        let mut open = self.breaker.open.subscribe();
        while open.wait_for(|open| *open).await.is_ok() {
            let mut delay = FIRST_PROBE;
            while self.breaker.is_open() {
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(LAST_PROBE);
                let asked = tokio::time::timeout(self.breaker.timeout, self.inner.ping()).await;
                if matches!(asked, Ok(Ok(()))) {
                    self.breaker.succeeded(Instant::now());
                }
            }
        }
    }

    /// What is recorded is still replayed; nothing new is claimed, for the reason `refused`.
    async fn read_only(&self, key: RecordKey, refused: StoreError) -> Result<Outcome, StoreError> {
        match self
            .call("read", self.inner.apply(key, Operation::Read))
            .await?
        {
            Outcome::Held(held) => Ok(Outcome::Held(held)),
            _ => Err(refused),
        }
    }

    async fn call<T>(&self, name: &'static str, call: StoreFuture<'_, T>) -> Result<T, StoreError> {
        let started = Instant::now();
        if !self.breaker.admit(name == "claim", started) {
            self.breaker
                .metrics
                .store_call(name, "breaker_open", true, Duration::ZERO);
            return Err(StoreError::not_sent(
                StoreErrorKind::BreakerOpen,
                "the store did not answer lately",
            ));
        }
        let result = match tokio::time::timeout(self.breaker.timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::maybe_sent(
                StoreErrorKind::Timeout,
                "no answer in time",
            )),
        };
        let now = Instant::now();
        match &result {
            Ok(_) => {
                self.breaker.succeeded(now);
                self.breaker
                    .metrics
                    .store_call(name, "ok", false, now - started);
            }
            Err(error) => {
                match error.kind {
                    // Subscriptions have a connection of their own, and a server may refuse them
                    // alone (R13: the sweep is the safety net).
                    _ if name == "listen" => {}
                    StoreErrorKind::Unavailable | StoreErrorKind::Timeout => {
                        self.breaker.failed(started, now, error);
                    }
                    StoreErrorKind::Refused
                    | StoreErrorKind::Full
                    | StoreErrorKind::Unconfirmed
                    | StoreErrorKind::Unreadable => {
                        self.breaker.succeeded(now);
                    }
                    StoreErrorKind::BreakerOpen | StoreErrorKind::Internal => {}
                }
                self.breaker
                    .metrics
                    .store_call(name, kind_label(error.kind), true, now - started);
                tracing::debug!(event = "store_error", operation = name, error = %error);
            }
        }
        result
    }
}

impl Store for Guarded {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        let name = operation_label(&operation);
        if name == "claim" && self.breaker.unfit.load(Ordering::Acquire) {
            let message = "the store is not fit to keep records: nothing new is claimed";
            let refused = StoreError::not_sent(StoreErrorKind::Refused, message);
            return Box::pin(self.read_only(key, refused));
        }
        if name == "claim" && self.breaker.loss.left().is_some() {
            return Box::pin(self.read_only(key, held_off()));
        }
        Box::pin(async move { self.call(name, self.inner.apply(key, operation)).await })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.call("ping", self.inner.ping()).await })
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.call("listen", self.inner.listen(key)).await })
    }

    fn unlisten(&self, key: RecordKey) {
        self.inner.unlisten(key);
    }
}

fn operation_label(operation: &Operation) -> &'static str {
    match operation {
        Operation::Read => "read",
        Operation::Claim(_) | Operation::TakeOver { .. } => "claim",
        Operation::Renew { .. } => "renew",
        Operation::Settle { .. } => "settle",
        Operation::Abandon { .. } => "abandon",
        Operation::Operate { .. } => "operate",
    }
}

fn kind_label(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unavailable => "unavailable",
        StoreErrorKind::Timeout => "timeout",
        StoreErrorKind::BreakerOpen => "breaker_open",
        StoreErrorKind::Refused => "refused",
        StoreErrorKind::Full => "full",
        StoreErrorKind::Unconfirmed => "unconfirmed",
        StoreErrorKind::Unreadable => "unreadable",
        StoreErrorKind::Internal => "internal",
    }
}

#[cfg(test)]
mod tests;
