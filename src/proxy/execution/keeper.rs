//! Keeps a lease alive and watches every deadline while something is awaited.
//!
//! One timer per exchange: it is set to the next thing due (renewal, the client's 504, give-up).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep};

use super::Reply;
use crate::idempotency::Outcome;
use crate::idempotency::record::HeldProblem;
use crate::proxy::phase::{Phase, PhaseWatch};
use crate::proxy::problem::{Code, Problem, UpstreamOutcome};
use crate::store::StoreError;
use crate::store::lease::{Lease, Settled};
use crate::store::loss::Noticed;
use crate::telemetry::Metrics;

/// Renewals in a row before a dispatch is given up.
const RENEWALS: u32 = 3;

/// Why waiting ended before the thing waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// `give_up_after` passed.
    GaveUp,
    /// The drain is over (R31).
    Cut,
    /// Before dispatch: nobody waits for the answer any more.
    ClientGone,
    /// Before dispatch: the lease is somebody else's.
    LeaseLost,
}

type Renewal = Pin<Box<dyn Future<Output = (Instant, Result<Outcome, StoreError>)> + Send>>;

/// The lease and the clocks of one exchange.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) lease: Lease,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    pub(super) lease_lost: bool,
    /// What the first client was told while the exchange ran on (R15, R18).
    pub(super) told: Option<HeldProblem>,
    renewal: RenewalSlot,
    /// Whether the renewal under way says that the request was dispatched.
    renews_dispatched: bool,
    renew_at: Option<Instant>,
    answer_by: Option<Instant>,
    give_up_at: Option<Instant>,
    dispatched_at: Option<Instant>,
    phase: PhaseWatch,
    losses: watch::Receiver<Noticed>,
    sleep: Pin<Box<Sleep>>,
    metrics: Arc<Metrics>,
}

struct RenewalSlot(Option<Renewal>);

impl std::fmt::Debug for RenewalSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RenewalSlot(under way: {})", self.0.is_some())
    }
}

impl Keeper {
    pub(super) fn new(
        lease: Lease,
        reply: oneshot::Sender<Reply>,
        renews: bool,
        phase: PhaseWatch,
        losses: watch::Receiver<Noticed>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let renew_at = renews.then(|| lease.renew_at());
        Self {
            lease,
            reply: Some(reply),
            lease_lost: false,
            told: None,
            renewal: RenewalSlot(None),
            renews_dispatched: false,
            renew_at,
            answer_by: None,
            give_up_at: None,
            dispatched_at: None,
            phase,
            losses,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            metrics,
        }
    }

    /// From here on the client's disconnect cancels nothing (R15).
    pub(super) fn dispatched(&mut self, answer_within: Duration, give_up_after: Duration) {
        let now = Instant::now();
        self.lease.dispatched();
        self.dispatched_at = Some(now);
        self.answer_by = Some(now + answer_within);
        self.give_up_at = Some(now + give_up_after);
    }

    /// The request came back unsent.
    pub(super) fn undispatched(&mut self) {
        self.lease.undispatched();
        self.dispatched_at = None;
        self.answer_by = None;
        self.give_up_at = None;
    }

    /// The client was answered, or is being answered: no 504 any more.
    pub(super) fn answering(&mut self) {
        self.answer_by = None;
    }

    /// A piece came: the next one has `give_up_after` again.
    pub(super) fn piece_came(&mut self, give_up_after: Duration) {
        self.give_up_at = Some(Instant::now() + give_up_after);
    }

    /// Since dispatch; nothing where nothing was sent.
    pub(super) fn upstream_time(&self) -> Duration {
        self.dispatched_at.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Whether anybody still waits for an answer.
    pub(super) fn client_is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Awaits `future` while the lease is renewed and the deadlines are watched.
    pub(super) async fn drive<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Stop> {
        let mut future = pin!(future);
        loop {
            if let Some(next) = self.next_deadline()
                && self.sleep.deadline() != next
            {
                self.sleep.as_mut().reset(next);
            }
            let timed = self.next_deadline().is_some();
            let watches_client = self.dispatched_at.is_none();
            tokio::select! {
                biased;
                out = &mut future => return Ok(out),
                () = self.phase.reached(Phase::Cut) => return Err(Stop::Cut),
                () = closed(self.reply.as_mut()), if watches_client => {
                    return Err(Stop::ClientGone);
                }
                (sent_at, outcome) = renewed(&mut self.renewal.0), if self.renewal.0.is_some() => {
                    self.renewal.0 = None;
                    self.note_renewal(sent_at, outcome, self.renews_dispatched)?;
                }
                // What the store forgot is written again before anybody is given the key.
                Ok(()) = self.losses.changed(), if self.renew_at.is_some() => {
                    self.renew_at = Some(Instant::now());
                }
                () = self.sleep.as_mut(), if timed => self.on_timer()?,
            }
        }
    }

    /// Makes sure that the lease is young enough to dispatch.
    pub(super) async fn ready_to_dispatch(&mut self) -> Result<(), Stop> {
        if self.lease_lost {
            // While the request was out; it came back unsent (R29).
            return Err(Stop::LeaseLost);
        }
        let mut tries = 0;
        while !self.lease.may_dispatch() {
            tries += 1;
            if tries > RENEWALS {
                // The store is slower than half a lease: nothing can be sent safely.
                return Err(Stop::LeaseLost);
            }
            let renewal = self.lease.renewal();
            let (sent_at, outcome) = self.drive(renewal).await?;
            if outcome.is_err() {
                // Without a confirmed lease nothing is sent.
                return Err(Stop::LeaseLost);
            }
            self.note_renewal(sent_at, outcome, false)?;
        }
        if self.client_is_gone() {
            return Err(Stop::ClientGone);
        }
        if self.lease.is_too_old() {
            Err(Stop::LeaseLost)
        } else {
            Ok(())
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let renew_at = self.renew_at.filter(|_| self.renewal.0.is_none());
        [renew_at, self.answer_by, self.give_up_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timer(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        if self.answer_by.is_some_and(|at| at <= now) {
            self.answer_by = None;
            self.tell_pending();
        }
        if self.give_up_at.is_some_and(|at| at <= now) {
            return Err(Stop::GaveUp);
        }
        if self.renewal.0.is_none() && self.renew_at.is_some_and(|at| at <= now) {
            self.renews_dispatched = self.dispatched_at.is_some();
            self.renewal.0 = Some(Box::pin(self.lease.renewal()));
        }
        Ok(())
    }

    /// R15: the client gets 504, the exchange runs on.
    fn tell_pending(&mut self) {
        let Some(reply) = self.reply.take() else {
            return;
        };
        if !reply.is_closed() {
            self.told = Some(HeldProblem::Timeout);
        }
        let problem = Problem::new(
            Code::UpstreamTimeout,
            "The upstream has not answered yet; the request still runs. Retry with the same key: \
             it waits for the answer or replays it.",
        )
        .outcome_of_key(UpstreamOutcome::Pending)
        .retry_after(1)
        .proxy_status("http_response_timeout");
        let attempt = self.lease.attempt();
        let upstream = self.upstream_time();
        super::answer(
            reply,
            Reply::Problem {
                problem,
                attempt,
                upstream,
            },
        );
    }

    fn note_renewal(
        &mut self,
        sent_at: Instant,
        outcome: Result<Outcome, StoreError>,
        said_dispatched: bool,
    ) -> Result<(), Stop> {
        match self.lease.renewed(sent_at, outcome) {
            Ok(Settled::Stored { reasserted }) => {
                if reasserted {
                    self.metrics.reasserted.inc();
                    tracing::warn!(event = "reasserted", "the store had lost a running record");
                }
                self.renew_at = Some(self.lease.renew_at());
            }
            Ok(Settled::LeaseLost) if self.dispatched_at.is_some() && !said_dispatched => {
                // Asked before the dispatch, told after it: an absent record is written again by
                // whoever is dispatched (law 3), a foreign one says so once more.
                self.renew_at = Some(Instant::now());
            }
            Ok(Settled::LeaseLost) => {
                self.renew_at = None;
                self.lease_lost = true;
                self.metrics.leases_lost.inc();
                tracing::warn!(
                    event = "lease_lost",
                    dispatched = self.dispatched_at.is_some()
                );
                if self.dispatched_at.is_none() {
                    return Err(Stop::LeaseLost);
                }
            }
            Err(error) => {
                tracing::warn!(event = "renewal_failed", error = %error);
                let soon = self.lease.third().min(Duration::from_secs(1));
                self.renew_at = Some(Instant::now() + soon);
            }
        }
        Ok(())
    }
}

async fn closed(reply: Option<&mut oneshot::Sender<Reply>>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

async fn renewed(renewal: &mut Option<Renewal>) -> (Instant, Result<Outcome, StoreError>) {
    match renewal {
        Some(renewal) => renewal.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::record::Owner;
    use crate::idempotency::transition::Claim;
    use crate::idempotency::{Fingerprint, Operation, RecordKey};
    use crate::proxy::phase::Phases;
    use crate::store::{Store, StoreFuture};

    const LEASE: Duration = Duration::from_secs(30);
    const SLOW: Duration = Duration::from_millis(100);

    /// A store that lost its memory and answers slowly; `foreign`: somebody else has the key.
    #[derive(Debug)]
    struct Forgot {
        foreign: bool,
    }

    impl Store for Forgot {
        fn apply(&self, _key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
            Box::pin(async move {
                tokio::time::sleep(SLOW).await;
                Ok(match operation {
                    Operation::Renew { dispatched, .. } if dispatched && !self.foreign => {
                        Outcome::Stored { reasserted: true }
                    }
                    _ => Outcome::LeaseLost,
                })
            })
        }

        fn ping(&self) -> StoreFuture<'_, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn listen(&self, _key: RecordKey) -> StoreFuture<'_, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn unlisten(&self, _key: RecordKey) {}
    }

    fn keeper(foreign: bool) -> (Keeper, oneshot::Receiver<Reply>) {
        let fingerprint = Fingerprint {
            profile: 0,
            digest: [0; 32],
            parts: Vec::new().into(),
        };
        let claim = Claim {
            owner: Owner([1; 16]),
            fingerprint,
            lease: LEASE,
            retention: LEASE * 3,
            waited: false,
        };
        let store = Arc::new(Forgot { foreign });
        let lease = Lease::new(store, RecordKey([0; 32]), &claim, 1, Instant::now());
        let (reply, receiver) = oneshot::channel();
        let phase = Phases::default().watch();
        let metrics = Arc::new(Metrics::new());
        let losses = watch::Sender::default().subscribe();
        (
            Keeper::new(lease, reply, true, phase, losses, metrics),
            receiver,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_the_dispatch_overtook_is_sent_again_before_the_lease_is_lost() {
        for foreign in [false, true] {
            let (mut keeper, _handler) = keeper(foreign);
            let almost = tokio::time::sleep(LEASE / 3 + SLOW / 2);
            assert_eq!(keeper.drive(almost).await, Ok(()), "a renewal is under way");
            keeper.dispatched(LEASE, LEASE);
            let answer = tokio::time::sleep(SLOW * 3);
            assert_eq!(keeper.drive(answer).await, Ok(()));
            assert_eq!(keeper.lease_lost, foreign);
            assert_eq!(keeper.metrics.reasserted.get(), u64::from(!foreign));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_came_back_unsent_is_not_sent_again_without_the_lease() {
        let (mut keeper, _handler) = keeper(true);
        keeper.dispatched(LEASE, LEASE);
        let answer = tokio::time::sleep(LEASE / 3 + SLOW * 2);
        assert_eq!(keeper.drive(answer).await, Ok(()));
        keeper.undispatched();
        assert_eq!(keeper.ready_to_dispatch().await, Err(Stop::LeaseLost));
    }
}
