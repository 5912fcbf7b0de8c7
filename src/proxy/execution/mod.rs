//! R15: the detached task that owns a key, from before the claim until the settle is confirmed.
//!
//! The client's handler only waits on it: it can vanish at any moment without touching the key.
//! Shutdown counts the task through its permit. A panic in it leaves the record in flight, which
//! becomes unresolved when the lease lapses, and is counted.
//!
//! ```text
//! claim ─ held ──────────────────────────────► Reply::Held, the handler judges
//!   └ acquired ─ checkout ─ lease checked ─ send ─ capture ─ settle ─► Reply::Answer
//! ```
//!
//! Read next: `exchange.rs` (dispatch), `keeper.rs` (lease and deadlines), `capture.rs`,
//! `conclude.rs` (settle, R20).

mod capture;
mod conclude;
mod deliver;
mod exchange;
mod keeper;
mod retries;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Proxy;
use super::body::Body;
use super::budget::{Permit, Reservation};
use super::problem::Problem;
use super::rewrite::ATTEMPT;
use crate::idempotency::policy::OnStoreError;
use crate::idempotency::record::{
    Attempt, FailedWhy, HeldProblem, Record, Seen, State, UnknownWhy,
};
use crate::idempotency::transition::{Claim, Held};
use crate::idempotency::{Operation, RecordKey};
use crate::routes::Route;
use crate::store::lease::{Claimed, Lease, claim};
use crate::store::{Delivery, StoreError, StoreErrorKind};
use exchange::Exchange;

/// A covered request, read whole and ready to go upstream.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Rewritten for the upstream.
    pub head: Parts,
    /// All of it.
    pub body: Bytes,
    /// R17: whether it is a gRPC call, judged by its gRPC status.
    pub unary: bool,
    /// What the body takes from the budget.
    pub _held: Reservation,
}

/// Everything an execution needs.
#[derive(Debug)]
pub(super) struct Job {
    /// The thread's proxy.
    pub proxy: Arc<Proxy>,
    /// Whose policy applies.
    pub route: Arc<Route>,
    /// The request.
    pub prepared: Arc<Prepared>,
    /// Its record.
    pub key: RecordKey,
    /// The lease wanted.
    pub claim: Claim,
    /// Take this over instead of claiming.
    pub from: Option<Earlier>,
    /// How long a completed record is kept.
    pub ttl: Duration,
    /// Counts the task.
    pub _permit: Permit,
}

/// An execution whose outcome was lost, and which this one takes over (R18).
#[derive(Debug, Clone, Copy)]
pub(super) struct Earlier {
    seen: Seen,
    why: UnknownWhy,
    problem: Option<HeldProblem>,
}

impl Earlier {
    pub(super) fn of(record: &Record) -> Self {
        let (why, problem) = match record.state {
            State::Unresolved { why, problem, .. } => (why, problem),
            _ => (UnknownWhy::LeaseLapsed, None),
        };
        Self {
            seen: record.seen(),
            why,
            problem,
        }
    }
}

/// What the handler gets.
#[derive(Debug)]
pub(super) enum Reply {
    /// A record is in the way.
    Held(Held),
    /// The record to be taken over is gone, or the lease was, before anything was sent.
    Absent,
    /// The lease was lost after dispatch (R20): what is there now, and what this execution came to.
    Superseded {
        /// Somebody else's record.
        held: Held,
        /// The true answer.
        own: Box<Self>,
    },
    /// The upstream's answer.
    Answer {
        /// For the client.
        response: Response<Body>,
        /// For metrics and log.
        outcome: &'static str,
        /// Which execution it was.
        attempt: Attempt,
        /// From dispatch to the answer's end, or to its first part where it is passed on.
        upstream: Duration,
    },
    /// An answer of our own.
    Problem {
        /// What the client is told.
        problem: Problem,
        /// Which execution it is about.
        attempt: Attempt,
        /// As in `Answer`.
        upstream: Duration,
    },
    /// R24: the store did not answer before dispatch.
    StoreDown(StoreError),
}

/// How far the record protects this execution (R24).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protection {
    /// The claim is confirmed.
    Full,
    /// The claim may have arrived; the true result is settled.
    Unconfirmed,
    /// The store was not reached.
    None,
}

/// Starts the task.
pub(super) fn start(job: Job) -> oneshot::Receiver<Reply> {
    let (reply, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let fault = FaultGuard(job.proxy.clone());
        run(job, reply).await;
        drop(fault);
    });
    receiver
}

async fn run(job: Job, reply: oneshot::Sender<Reply>) {
    let sent_at = Instant::now();
    let from = job.from.map(|earlier| earlier.seen);
    let lease = match claim(&job.proxy.store, job.key, job.claim.clone(), from).await {
        Ok(Claimed::Acquired(lease)) => lease,
        Ok(Claimed::Held(held)) => return answer(reply, Reply::Held(held)),
        Ok(Claimed::Absent) => return answer(reply, Reply::Absent),
        Err(error) => return unclaimed(job, error, reply, sent_at).await,
    };
    Exchange::new(job, lease, Protection::Full, reply)
        .run()
        .await;
}

/// R24: the claim was not confirmed.
async fn unclaimed(job: Job, error: StoreError, reply: oneshot::Sender<Reply>, sent_at: Instant) {
    let may_pass = job.route.policy.on_store_error == OnStoreError::Pass
        // R25: a record that is there and cannot be read is never "absent".
        && error.kind != StoreErrorKind::Unreadable;
    let maybe_claimed = error.delivery == Delivery::MaybeSent;
    if may_pass {
        job.proxy.shared.metrics.unprotected.inc();
        let store = job.proxy.store.clone();
        let lease = Lease::new(store, job.key, &job.claim, 1, sent_at);
        let protection = if maybe_claimed {
            Protection::Unconfirmed
        } else {
            Protection::None
        };
        return Exchange::new(job, lease, protection, reply).run().await;
    }
    answer(reply, Reply::StoreDown(error));
    if maybe_claimed {
        withdraw(&job).await;
    }
}

/// Law 2: a claim whose reply never came is taken back, however long the store is away.
async fn withdraw(job: &Job) {
    let limit = crate::idempotency::transition::ABANDONED_RETENTION;
    let started = Instant::now();
    let mut retries = retries::Retries::new(&job.proxy);
    loop {
        match job.proxy.store.apply(job.key, job.withdrawal()).await {
            Ok(_) => return withdraw_again(job),
            Err(_) if started.elapsed() > limit => return,
            Err(error) => {
                if retries.wait(&error).await.is_err() {
                    // Nothing was sent upstream: the claim lapses into an unresolved record.
                    job.proxy.shared.left_unsettled();
                    return;
                }
            }
        }
    }
}

/// A failed record remembers one withdrawn claim. Where two contenders' claims are both overtaken by
/// their withdrawals, the second withdrawal displaces the first, whose claim would then get the key for
/// nobody. So each looks once more, when no claim can be under way any longer.
fn withdraw_again(job: &Job) {
    if job.from.is_some() {
        return;
    }
    let (store, key, owner) = (job.proxy.store.clone(), job.key, job.claim.owner);
    let later = job.claim.lease;
    tokio::spawn(async move {
        tokio::time::sleep(later).await;
        let again = store.apply(key, Operation::Abandon { owner }).await;
        if let Err(error) = again {
            tracing::debug!(event = "withdrawal_not_repeated", error = %error);
        }
    });
}

impl Job {
    /// What the record becomes if nothing is sent.
    fn unsent(&self) -> (State, Duration) {
        self.not_carried_out(FailedWhy::NotSent)
    }

    /// What the record becomes if this try changed nothing. An earlier outcome stays as open as it
    /// was: failed would let another payload run under the key (R11).
    fn not_carried_out(&self, why: FailedWhy) -> (State, Duration) {
        let policy = &self.route.policy;
        match self.from {
            None => (State::Failed { why }, policy.failed_ttl),
            Some(Earlier { why, problem, .. }) => {
                let fingerprint = self.claim.fingerprint.clone();
                let state = State::Unresolved {
                    fingerprint,
                    why,
                    problem,
                };
                (state, policy.unresolved_ttl)
            }
        }
    }

    /// Takes back a claim that may have arrived. A takeover that arrives even later lapses, which
    /// is what it found.
    fn withdrawal(&self) -> Operation {
        let owner = self.claim.owner;
        let Some(Earlier { seen, .. }) = self.from else {
            return Operation::Abandon { owner };
        };
        let (state, retention) = self.unsent();
        let attempt = seen.attempt.saturating_add(1);
        let record = Record {
            owner,
            attempt,
            retention,
            state,
        };
        Operation::Settle { record }
    }

    fn request(&self, attempt: Attempt) -> Request<Body> {
        let mut head = self.prepared.head.clone();
        head.headers.insert(ATTEMPT, attempt.into());
        Request::from_parts(head, Body::whole(self.prepared.body.clone()))
    }
}

/// The client may be gone; then nobody needs the answer.
fn answer(reply: oneshot::Sender<Reply>, with: Reply) {
    let _gone = reply.send(with).is_err();
}

/// Counts a task that panics.
#[derive(Debug)]
struct FaultGuard(Arc<Proxy>);

impl Drop for FaultGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shared.metrics.faults.inc();
            tracing::error!(
                event = "fault",
                "an exchange ended in a fault; its record stays held"
            );
        }
    }
}
