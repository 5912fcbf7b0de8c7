//! R30: what bounds memory and work. Bytes held for covered requests, exchanges under way.
//!
//! Both are process-wide counters; a reservation gives back what it took when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::telemetry::Metrics;

/// `server.buffer_budget`.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: AtomicU64,
    metrics: Arc<Metrics>,
}

/// Bytes taken from the budget.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// An empty budget of `limit` bytes.
    pub(super) fn new(limit: u64, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            metrics,
        })
    }

    /// An empty reservation, to be grown.
    pub(super) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation {
            budget: self.clone(),
            bytes: 0,
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_ok() {
            self.metrics.buffered_bytes.inc_by(bytes);
        }
        taken.is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.metrics.buffered_bytes.dec_by(bytes);
    }
}

impl Reservation {
    /// Takes more; `false` (and nothing taken) where the budget is used up.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.bytes);
        }
    }
}

/// `upstream.max_exchanges`, and what shutdown waits for.
#[derive(Debug)]
pub(super) struct Exchanges {
    limit: usize,
    running: AtomicUsize,
    idle: Notify,
    metrics: Arc<Metrics>,
}

/// The right to run one exchange.
#[derive(Debug)]
pub(super) struct Permit(Arc<Exchanges>);

impl Exchanges {
    /// None running.
    pub(super) fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            metrics,
        })
    }

    /// A permit, unless too many run.
    pub(super) fn permit(self: &Arc<Self>) -> Option<Permit> {
        let fits = |running: usize| (running < self.limit).then_some(running + 1);
        self.running
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
            .ok()?;
        self.metrics.in_flight.inc();
        Some(Permit(self.clone()))
    }

    /// How many run.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Returns once none runs.
    pub(super) async fn all_done(&self) {
        loop {
            let idle = self.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.metrics.in_flight.dec();
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_refused_beyond_the_limit_and_given_back() {
        let budget = Budget::new(10, Arc::new(Metrics::new()));
        let mut one = budget.reservation();
        let mut two = budget.reservation();
        assert!(one.grow(6) && two.grow(4));
        assert!(!two.grow(1));
        drop(one);
        assert!(two.grow(6) && !two.grow(1));
        assert_eq!(budget.metrics.buffered_bytes.get(), 10);
        drop(two);
        assert_eq!(budget.metrics.buffered_bytes.get(), 0);
    }

    #[tokio::test]
    async fn exchanges_are_counted_until_the_last_permit_is_gone() {
        let exchanges = Exchanges::new(2, Arc::new(Metrics::new()));
        let one = exchanges.permit().unwrap();
        let two = exchanges.permit().unwrap();
        assert!(exchanges.permit().is_none());
        let waiter = tokio::spawn({
            let exchanges = exchanges.clone();
            async move { exchanges.all_done().await }
        });
        drop(one);
        assert!(exchanges.permit().is_some());
        drop(two);
        waiter.await.unwrap();
        assert_eq!(exchanges.running(), 0);
    }
}
