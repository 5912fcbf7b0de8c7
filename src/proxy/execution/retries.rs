//! Operations the store has not confirmed: tried again until it does (R20, R22, R24, R30).
//!
//! Each waits in the task that owns it, so their number is bounded by `upstream.max_exchanges` and
//! their bodies by `server.buffer_budget`. A settle is never given up while its record can live.

use std::sync::Arc;
use std::time::Duration;

use http::header;

use crate::idempotency::RecordKey;
use crate::idempotency::record::State;
use crate::proxy::Proxy;
use crate::proxy::budget::Reservation;
use crate::proxy::phase::{Phase, PhaseWatch};
use crate::store::guarded::Pending;
use crate::store::lease::{Settled, Settling};
use crate::store::{StoreError, StoreErrorKind};
use crate::telemetry::metrics::Label;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Goes on settling in the background until the store confirms (R20, R22). `known_lost`: a renewal
/// said already that the lease is lost, and it was counted.
pub(super) async fn confirm(
    proxy: &Arc<Proxy>,
    key: RecordKey,
    mut settling: Settling,
    mut error: StoreError,
    known_lost: bool,
) {
    let mut retries = Retries::new(proxy);
    let held = give_up_body(proxy, &mut settling);
    loop {
        if settling.is_too_old() {
            tracing::error!(event = "settle_given_up", key = %key.short());
            return proxy.shared.left_unsettled();
        }
        if retries.wait(&error).await.is_err() {
            return proxy.shared.left_unsettled();
        }
        // The store answers, but this does not get in.
        let is_refused = matches!(
            error.kind,
            StoreErrorKind::Full | StoreErrorKind::Refused | StoreErrorKind::Unconfirmed
        );
        if is_refused {
            settling.renew().await;
        }
        match settling.attempt().await {
            Ok(Settled::Stored { reasserted }) => {
                proxy.note_reasserted(reasserted);
                drop(held);
                return proxy.tell_waiters(key, &settling);
            }
            Ok(Settled::LeaseLost) => {
                let newly = u64::from(!known_lost);
                proxy.shared.metrics.leases_lost.inc_by(newly);
                return;
            }
            Err(again) => error = again,
        }
    }
}

/// R30: the body of a settle that waits is counted; where there is no room it is given up, the
/// fact never.
fn give_up_body(proxy: &Arc<Proxy>, settling: &mut Settling) -> Option<Reservation> {
    let State::Completed {
        fingerprint,
        answer,
        completed_at,
    } = &settling.record().state
    else {
        return None;
    };
    let mut held = proxy.shared.budget.reservation();
    if held.grow(answer.body.len()) {
        return Some(held);
    }
    let location = answer
        .fields
        .iter()
        .find(|(name, _)| name.as_ref() == header::LOCATION.as_str().as_bytes())
        .map(|(_, value)| value.clone());
    let state = State::NotKept {
        fingerprint: fingerprint.clone(),
        status: answer.status,
        location,
        digest: None,
        completed_at: *completed_at,
    };
    settling.replace_state(state);
    proxy
        .shared
        .metrics
        .not_kept
        .get_or_create(&Label([("reason", "budget")]))
        .inc();
    None
}

/// Back-off between tries of an operation the store has not confirmed.
pub(super) struct Retries {
    proxy: Arc<Proxy>,
    delay: Duration,
    phase: PhaseWatch,
    pending: Option<Pending>,
}

impl Retries {
    pub(super) fn new(proxy: &Arc<Proxy>) -> Self {
        proxy.shared.metrics.unconfirmed.inc();
        let phase = proxy.shared.phases.watch();
        let delay = FIRST;
        Self {
            proxy: proxy.clone(),
            delay,
            phase,
            pending: None,
        }
    }

    /// Waits before the next try; `Err` when the process ends.
    pub(super) async fn wait(&mut self, error: &StoreError) -> Result<(), ()> {
        let breaker = &self.proxy.breaker;
        // Dropped only after the next wait began: until then claims give way (R24).
        let waited_before = self.pending.take();
        let delay = self.delay;
        let wait = async {
            if breaker.is_open() {
                return Some(breaker.closed(LONGEST).await);
            }
            tokio::time::sleep(delay).await;
            None
        };
        if error.kind != StoreErrorKind::BreakerOpen {
            self.delay = (self.delay * 2).min(LONGEST);
        }
        tokio::select! {
            pending = wait => {
                drop(waited_before);
                self.pending = pending;
                Ok(())
            }
            () = self.phase.reached(Phase::Cut) => Err(()),
        }
    }
}

impl Drop for Retries {
    fn drop(&mut self) {
        self.proxy.shared.metrics.unconfirmed.dec();
    }
}
