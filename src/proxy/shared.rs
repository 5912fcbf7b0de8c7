//! What all threads share, and what each has for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

use super::Settings;
use super::budget::{Budget, Exchanges};
use super::phase::{Phase, Phases};
use super::rewrite::imf_fixdate;
use super::upstream::{Pool, connect};
use super::waiting::WaitingRoom;
use crate::clock::Clock;
use crate::idempotency::Identity;
use crate::idempotency::record::UnknownWhy;
use crate::routes::Routes;
use crate::store::Store;
use crate::store::guarded::Breaker;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;
use crate::tls::Connector;

/// One per process.
#[derive(Debug)]
pub struct Shared {
    /// Limits and addresses.
    pub settings: Settings,
    /// R8.
    pub identity: Identity,
    /// R2.
    pub routes: Routes,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
    /// R13.
    pub waiting: Arc<WaitingRoom>,
    /// R31.
    pub phases: Phases,
    pub(super) budget: Arc<Budget>,
    pub(super) exchanges: Arc<Exchanges>,
    left: AtomicU64,
    /// For an `https://` upstream.
    connector: Option<Connector>,
}

/// One per runtime thread.
#[derive(Debug)]
pub struct Proxy {
    /// The process.
    pub shared: Arc<Shared>,
    /// This thread's store handle, behind deadline and breaker.
    pub store: Arc<dyn Store>,
    /// The breaker in front of it.
    pub breaker: Arc<Breaker>,
    pub(super) upstream: Arc<Pool>,
}

impl Shared {
    /// Puts the process's parts together.
    pub fn new(
        settings: Settings,
        identity: Identity,
        routes: Routes,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
        connector: Option<Connector>,
    ) -> Arc<Self> {
        // A series that appears with its first event has no increase to alert on.
        for why in UnknownWhy::ALL {
            drop(
                metrics
                    .unresolved
                    .get_or_create(&Label([("why", why.name())])),
            );
        }
        for result in connect::RESULTS {
            let labels = Label([("result", result)]);
            drop(metrics.upstream_connects.get_or_create(&labels));
        }
        for reason in ["size", "budget"] {
            drop(metrics.not_kept.get_or_create(&Label([("reason", reason)])));
        }
        Arc::new(Self {
            identity,
            routes,
            clock,
            waiting: WaitingRoom::new(metrics.clone()),
            phases: Phases::default(),
            budget: Budget::new(settings.buffer_budget, metrics.clone()),
            exchanges: Exchanges::new(settings.upstream.max_exchanges, metrics.clone()),
            left: AtomicU64::new(0),
            connector,
            metrics,
            settings,
        })
    }

    /// `Date` for an answer that has none.
    pub(super) fn date(&self) -> HeaderValue {
        let now = imf_fixdate(self.clock.unix_millis());
        now.unwrap_or_else(|| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
    }

    /// R31: returns once no exchange runs.
    pub async fn exchanges_done(&self) {
        self.exchanges.all_done().await;
    }

    /// Exchanges that still run.
    pub fn exchanges_running(&self) -> usize {
        self.exchanges.running()
    }

    /// R31: records this process could not settle, or cut at its end; they decide the exit code.
    pub fn left_behind(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    pub(super) fn left_unresolved(&self, why: UnknownWhy) {
        // Whatever broke while the process was ending is its to answer for.
        if why == UnknownWhy::Drained || self.phases.now() >= Phase::Draining {
            self.left.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn left_unsettled(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
    }
}

impl Proxy {
    /// One thread's proxy over its own store handle.
    pub fn new(shared: Arc<Shared>, store: Arc<dyn Store>, breaker: Arc<Breaker>) -> Arc<Self> {
        let connector = shared.connector.clone();
        let upstream = Pool::new(&shared.settings, connector, shared.metrics.clone());
        Arc::new(Self {
            shared,
            store,
            breaker,
            upstream,
        })
    }

    /// Closes upstream connections that have been idle for too long.
    pub fn prune(&self) {
        self.upstream.prune();
    }
}
