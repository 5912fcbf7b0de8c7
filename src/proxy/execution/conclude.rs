//! Settles the record and answers the client, in that order (R20).

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header;

use super::Protection;
use super::capture::{Captured, Kept, Passing, location};
use super::deliver::{Owed, Recipient, mark};
use super::exchange::{Ended, Exchange};
use super::retries::confirm;
use crate::idempotency::grpc::Said;
use crate::idempotency::headers::retain;
use crate::idempotency::record::{HeldProblem, State, UnknownWhy};
use crate::idempotency::settlement::problem_of;
use crate::idempotency::transition::Held;
use crate::idempotency::{Exchange as Happened, RecordKey, Settlement, settle};
use crate::proxy::Proxy;
use crate::proxy::body::Body;
use crate::proxy::problem::{Code, Problem, UpstreamOutcome};
use crate::proxy::replay;
use crate::proxy::waiting::View;
use crate::store::lease::{Settled, Settling};
use crate::telemetry::metrics::Label;

impl Exchange {
    pub(super) async fn conclude(self, ended: Ended) {
        if self.protection == Protection::None {
            return self.unprotected(ended).await;
        }
        match ended {
            Ended::NotSent(problem) => {
                let problem = self.not_sent(problem);
                let (state, ttl) = self.job.unsent();
                self.settle(state, ttl, Owed::Unsent(problem)).await;
            }
            Ended::ClientGone => {
                let (state, ttl) = self.job.unsent();
                self.settle(state, ttl, Owed::Nothing).await;
            }
            Ended::Stopped => self.stopped().await,
            Ended::Unknown(why) => self.unresolved(why, problem_of(why)).await,
            Ended::Answered(captured) => self.answered(*captured).await,
        }
    }

    /// This try was not sent; one it took over, or one the store could not tell of, may have been
    /// carried out.
    fn not_sent(&self, problem: Problem) -> Problem {
        if self.job.from.is_none() && self.protection == Protection::Full {
            return problem;
        }
        problem.outcome_of_key(UpstreamOutcome::Unknown)
    }

    async fn unresolved(self, why: UnknownWhy, problem: HeldProblem) {
        let labels = Label([("why", why.name())]);
        self.job
            .proxy
            .shared
            .metrics
            .unresolved
            .get_or_create(&labels)
            .inc();
        tracing::error!(
            event = "unresolved",
            route = %self.job.route.name,
            key = %self.job.key.short(),
            attempt = self.keeper.lease.attempt(),
            why = why.name(),
        );
        self.job.proxy.shared.left_unresolved(why);
        let policy = &self.job.route.policy;
        // Only what somebody was told is told again.
        let now = (!self.keeper.client_is_gone()).then_some(problem);
        let told = self.keeper.told.or(now);
        let fingerprint = self.job.claim.fingerprint.clone();
        let state = State::Unresolved {
            fingerprint,
            why,
            problem: told,
        };
        let retries = policy.on_unknown.retries(&self.job.prepared.head.method);
        let ttl = policy.unresolved_ttl;
        let problem = Problem::unknown(problem, retries);
        self.settle(state, ttl, Owed::Problem(problem)).await;
    }

    async fn answered(self, captured: Captured) {
        let policy = &self.job.route.policy;
        let completed_at = self.job.proxy.shared.clock.unix_millis();
        let Said {
            status,
            retry_after,
        } = captured.said;
        let happened = Happened::Answered {
            status,
            retry_after,
            kept: matches!(captured.body, Kept::Whole(..)),
        };
        let (state, ttl) = self.state_of(settle(happened, policy), &captured, completed_at);
        let announces = policy.replay.announce_expiry && matches!(state, State::Completed { .. });
        let mut owed = owed(captured);
        if let (true, Owed::Answer(response)) = (announces, &mut owed) {
            replay::announce_expiry(response.headers_mut(), completed_at, ttl);
        }
        self.settle(state, ttl, owed).await;
    }

    fn state_of(
        &self,
        settlement: Settlement,
        captured: &Captured,
        completed_at: u64,
    ) -> (State, Duration) {
        let policy = &self.job.route.policy;
        let fingerprint = self.job.claim.fingerprint.clone();
        let head = &captured.head;
        match (settlement, &captured.body) {
            (Settlement::Fail(why), _) => self.job.not_carried_out(why),
            (Settlement::Unresolve(why, problem), _) => {
                let problem = Some(problem);
                (
                    State::Unresolved {
                        fingerprint,
                        why,
                        problem,
                    },
                    policy.unresolved_ttl,
                )
            }
            (_, Kept::Whole(body, _)) => {
                let answer = replay::keep(head, body.clone(), captured.trailers.as_ref());
                (
                    State::Completed {
                        fingerprint,
                        answer,
                        completed_at,
                    },
                    self.job.ttl,
                )
            }
            (_, Kept::Digest(digest)) => {
                let status = head.status.as_u16();
                let (location, digest) = (location(head), Some(*digest));
                let state = State::NotKept {
                    fingerprint,
                    status,
                    location,
                    digest,
                    completed_at,
                };
                (state, self.job.ttl)
            }
        }
    }

    /// Nothing was sent: the lease is gone, or the process ends.
    async fn stopped(mut self) {
        let owed = Owed::Unsent(unconfirmed());
        if self.keeper.lease_lost {
            let recipient = self.recipient();
            return recipient.lost(&self.job.proxy, self.job.key, owed).await;
        }
        let (state, ttl) = self.job.unsent();
        self.settle(state, ttl, owed).await;
    }

    /// R20: records first, then releases what is owed; goes on until the record stands.
    async fn settle(mut self, state: State, ttl: Duration, owed: Owed) {
        let recipient = self.recipient();
        let proxy = self.job.proxy.clone();
        let is_protected = self.protection == Protection::Full;
        if self.keeper.lease.is_too_old() {
            // R22: somebody else may own the key by now.
            recipient.deliver(owed, Some("unrecorded")).await;
            proxy.shared.left_unsettled();
            return;
        }
        let Self { job, keeper, .. } = self;
        // A renewal may have said so before; one lease is lost once.
        let known_lost = keeper.lease_lost;
        let settling = keeper.lease.settle(state, ttl);
        match settling.attempt().await {
            Ok(Settled::Stored { reasserted }) => {
                proxy.note_reasserted(reasserted);
                let mark = (!is_protected).then_some("unprotected");
                recipient.deliver(owed, mark).await;
                proxy.tell_waiters(job.key, &settling);
            }
            Ok(Settled::LeaseLost) => {
                let newly = u64::from(!known_lost);
                proxy.shared.metrics.leases_lost.inc_by(newly);
                tracing::warn!(event = "lease_lost", key = %job.key.short());
                recipient.lost(&proxy, job.key, owed).await;
            }
            Err(error) => {
                tracing::warn!(event = "unrecorded", key = %job.key.short(), error = %error);
                let mark = if is_protected {
                    "unrecorded"
                } else {
                    "unprotected"
                };
                recipient.deliver(owed, Some(mark)).await;
                confirm(&proxy, job.key, settling, error, known_lost).await;
            }
        }
    }

    /// R24 `pass`, and the store was not reached: nothing to settle.
    async fn unprotected(mut self, ended: Ended) {
        let recipient = self.recipient();
        let owed = match ended {
            Ended::NotSent(problem) => Owed::Unsent(self.not_sent(problem)),
            Ended::Stopped => Owed::Unsent(unconfirmed()),
            Ended::Unknown(why) => {
                let problem = problem_of(why);
                Owed::Problem(Problem::unknown(problem, false))
            }
            Ended::Answered(captured) => owed(*captured),
            Ended::ClientGone => Owed::Nothing,
        };
        recipient.deliver(owed, Some("unprotected")).await;
    }

    fn recipient(&mut self) -> Recipient {
        Recipient {
            reply: self.keeper.reply.take(),
            outcome: self.executed(),
            attempt: self.keeper.lease.attempt(),
            upstream: self.keeper.upstream_time(),
        }
    }

    /// The outcome of an answer that came.
    pub(super) fn executed(&self) -> &'static str {
        if self.protection == Protection::Full {
            "executed"
        } else {
            "unprotected"
        }
    }

    pub(super) fn mark_protection(&self, response: &mut Response<Body>) {
        if self.protection != Protection::Full {
            mark(response, "unprotected");
        }
    }
}

/// What the client is owed of an answer that was read to its end.
fn owed(captured: Captured) -> Owed {
    let Captured {
        mut head,
        body,
        trailers,
        passing,
        said: _,
    } = captured;
    match (passing, body) {
        (Passing::On(feed), _) => Owed::Feed(feed),
        (Passing::Held, Kept::Whole(body, reserved)) => {
            // Framing is our own.
            retain(&mut head.headers, |name| *name != header::CONTENT_LENGTH);
            Owed::Answer(Response::from_parts(
                head,
                Body::held(body, trailers, Some(reserved)),
            ))
        }
        (Passing::Held | Passing::Over, _) => Owed::Nothing,
    }
}

/// The lease could not be confirmed, or the process ends.
fn unconfirmed() -> Problem {
    let detail = "The request was not sent: Retrysafe could not keep its key any longer. Retry with \
                  the same key.";
    Problem::new(Code::StoreUnavailable, detail)
        .outcome(UpstreamOutcome::NotExecuted)
        .retry_after(1)
}

impl Proxy {
    pub(super) fn note_reasserted(&self, reasserted: bool) {
        if reasserted {
            self.shared.metrics.reasserted.inc();
            tracing::warn!(
                event = "reasserted",
                "the store had lost a record and has it again"
            );
        }
    }

    /// The waiters of this process learn it here, the others from the store.
    pub(super) fn tell_waiters(&self, key: RecordKey, settling: &Settling) {
        let record = settling.record().clone();
        let held = Held {
            record,
            age: Duration::ZERO,
        };
        self.shared.waiting.tell(&key, View::Held(Arc::new(held)));
    }
}
