//! Claims and judges until there is an answer (R11, R13, R18, R24).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Proxy;
use super::covered::{Keyed, overloaded};
use super::execution::{Earlier, Job, Reply, start};
use super::handle::{Spent, Verdict};
use super::phase::Phase;
use super::problem::{Code, NO_NEW_KEY, Problem, UpstreamOutcome};
use super::replay;
use super::waiting::{View, Waiter};
use crate::idempotency::record::{HeldProblem, Owner, State};
use crate::idempotency::transition::{Claim, Held};
use crate::idempotency::{Decision, Operation, Outcome, judge};
use crate::routes::Route;
use crate::store::{StoreError, StoreErrorKind};

/// Races lost in a row before the client is told to come again.
const RACES: usize = 3;

/// What a request went through so far.
#[derive(Default)]
struct Course {
    waited: bool,
    spent: Spent,
    /// The true answer of an execution that lost its lease.
    own: Option<Box<Verdict>>,
}

impl Course {
    fn verdict(&mut self, reply: Reply, route: &Route) -> Verdict {
        match reply {
            Reply::Answer {
                response,
                outcome,
                attempt,
                upstream,
            } => {
                self.spent.attempt = attempt;
                self.spent.elsewhere += upstream;
                Verdict::new(response, outcome)
            }
            Reply::Problem {
                problem,
                attempt,
                upstream,
            } => {
                self.spent.attempt = attempt;
                self.spent.elsewhere += upstream;
                Verdict::problem(problem, route)
            }
            Reply::StoreDown(error) => Verdict::problem(not_stored(&error), route),
            // Not the end of a request.
            Reply::Held(_) | Reply::Absent | Reply::Superseded { .. } => {
                Verdict::problem(in_progress(0), route)
            }
        }
    }
}

/// What the next step is.
enum Next {
    Done(Box<Verdict>),
    Claim,
    TakeOver(Earlier),
    Wait,
}

impl Proxy {
    pub(super) async fn resolve(self: &Arc<Self>, keyed: Keyed) -> Verdict {
        let mut course = Course::default();
        let verdict = self.follow(&keyed, &mut course).await;
        Verdict {
            record: Some(keyed.key),
            spent: course.spent,
            ..verdict
        }
    }

    async fn follow(self: &Arc<Self>, keyed: &Keyed, course: &mut Course) -> Verdict {
        let mut from = None;
        let mut deadline = None;
        let mut races = 0;
        loop {
            if races > RACES {
                return Verdict::problem(in_progress(0), &keyed.route);
            }
            races += 1;
            let mut next = match self.execute(keyed, from.take(), course).await {
                Ok(held) => self.judge(keyed, held.as_ref(), course.waited),
                Err(verdict) => return *verdict,
            };
            if matches!(next, Next::Wait) {
                let began = Instant::now();
                next = self.wait(keyed, &mut deadline).await;
                course.spent.elsewhere += began.elapsed();
                course.waited = true;
                races = 0;
            }
            match (next, course.own.take()) {
                (Next::Done(verdict), _) => return *verdict,
                // R29: it was sent once, and its client did not ask for more.
                (_, Some(own)) => return *own,
                (Next::Claim, None) => {}
                (Next::TakeOver(earlier), None) => from = Some(earlier),
                (Next::Wait, None) => return Verdict::problem(in_progress(0), &keyed.route),
            }
        }
    }

    /// Starts a task that claims and, if it gets the lease, executes. `Ok`: something is in the
    /// way.
    async fn execute(
        self: &Arc<Self>,
        keyed: &Keyed,
        from: Option<Earlier>,
        course: &mut Course,
    ) -> Result<Option<Held>, Box<Verdict>> {
        let fail = |problem| Err(Box::new(Verdict::problem(problem, &keyed.route)));
        let Some(permit) = self.shared.exchanges.permit() else {
            return fail(overloaded());
        };
        let mut owner = [0; 16];
        if getrandom::fill(&mut owner).is_err() {
            return fail(store_down());
        }
        let policy = &keyed.route.policy;
        let give_up_after = self.shared.settings.upstream.give_up_after;
        let claim = Claim {
            owner: Owner(owner),
            fingerprint: keyed.fingerprint.clone(),
            lease: policy.lease,
            // R22.
            retention: policy.unresolved_ttl.max(give_up_after + policy.lease * 2),
            waited: course.waited,
        };
        let reply = start(Job {
            proxy: self.clone(),
            route: keyed.route.clone(),
            prepared: keyed.prepared.clone(),
            key: keyed.key,
            claim,
            from,
            ttl: keyed.ttl,
            _permit: permit,
        });
        match reply.await {
            Ok(Reply::Held(held)) => Ok(Some(held)),
            Ok(Reply::Absent) => Ok(None),
            Ok(Reply::Superseded { held, own }) => {
                course.own = Some(Box::new(course.verdict(*own, &keyed.route)));
                Ok(Some(held))
            }
            Ok(reply) => Err(Box::new(course.verdict(reply, &keyed.route))),
            // The task is gone without a word: a fault of ours, after which nothing is known.
            Err(_) => fail(Problem::unknown(HeldProblem::OutcomeUnknown, false)),
        }
    }

    fn judge(&self, keyed: &Keyed, held: Option<&Held>, waited: bool) -> Next {
        let Some(held) = held else { return Next::Claim };
        let policy = &keyed.route.policy;
        let method = &keyed.prepared.head.method;
        let done = |problem| Next::Done(Box::new(Verdict::problem(problem, &keyed.route)));
        match judge(held, &keyed.fingerprint, method, policy, waited) {
            Decision::Replay { answer } => {
                let mut kept = self.shared.budget.reservation();
                if !kept.grow(answer.body.len()) {
                    return done(overloaded());
                }
                let Some(mut response) = replay::replay(&answer, &policy.replay, Some(kept)) else {
                    return done(store_down());
                };
                if policy.replay.announce_expiry
                    && let State::Completed { completed_at, .. } = held.record.state
                {
                    let headers = response.headers_mut();
                    replay::announce_expiry(headers, completed_at, held.record.retention);
                }
                Next::Done(Box::new(Verdict::new(response, "replayed")))
            }
            Decision::NotKept {
                status,
                location,
                digest,
            } => done(not_kept(status, location.as_deref(), digest)),
            Decision::Mismatch(parts) => done(reused(&parts)),
            Decision::OtherCredentials => done(other_credentials()),
            Decision::Unresolved(problem) => done(Problem::unknown(problem, false)),
            Decision::ReleasedByStatus { retry_after } => done(in_progress(retry_after)),
            Decision::InFlight => Next::Wait,
            Decision::TakeOver(_) => Next::TakeOver(Earlier::of(&held.record)),
            Decision::Claim => Next::Claim,
        }
    }

    /// R13: subscribes, then reads again, then waits.
    async fn wait(&self, keyed: &Keyed, deadline: &mut Option<Instant>) -> Next {
        let policy = &keyed.route.policy;
        let limit = policy
            .in_flight_wait
            .min(keyed.preferred_wait.unwrap_or(Duration::MAX));
        let conflict = || Next::Done(Box::new(Verdict::problem(in_progress(0), &keyed.route)));
        if limit.is_zero() || self.shared.phases.now() >= Phase::Draining {
            return conflict();
        }
        let Some(mut waiter) = self.shared.waiting.enter(&self.store, keyed.key, policy) else {
            return conflict();
        };
        // However often the key changes hands meanwhile.
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
        waiter.listen().await;
        let next = match self.look(keyed).await {
            Ok(Next::Wait) | Err(_) => self.until(keyed, &mut waiter, deadline).await,
            Ok(next) => return next,
        };
        if matches!(next, Next::Wait) {
            // Once more before a 409.
            return match self.look(keyed).await {
                Ok(Next::Wait) => conflict(),
                Ok(next) => next,
                Err(error) => {
                    Next::Done(Box::new(Verdict::problem(not_stored(&error), &keyed.route)))
                }
            };
        }
        next
    }

    async fn until(&self, keyed: &Keyed, waiter: &mut Waiter, deadline: Instant) -> Next {
        let mut phase = self.shared.phases.watch();
        loop {
            let view = tokio::select! {
                view = timeout_at(deadline, waiter.told()) => match view {
                    Ok(view) => view,
                    Err(_) => return Next::Wait,
                },
                () = phase.reached(Phase::Draining) => return Next::Wait,
            };
            let next = match view {
                View::Held(held) => self.judge(keyed, Some(&held), true),
                View::Absent => Next::Claim,
            };
            if !matches!(next, Next::Wait) {
                return next;
            }
        }
    }

    async fn look(&self, keyed: &Keyed) -> Result<Next, StoreError> {
        match self.store.apply(keyed.key, Operation::Read).await? {
            Outcome::Held(held) => Ok(self.judge(keyed, Some(&held), true)),
            _ => Ok(Next::Claim),
        }
    }
}

fn in_progress(retry_after: u32) -> Problem {
    Problem::new(
        Code::InProgress,
        "A request with this key is being processed. Retry with the same key.",
    )
    .outcome_of_key(UpstreamOutcome::Pending)
    .retry_after(retry_after)
}

fn reused(parts: &[String]) -> Problem {
    Problem::new(
        Code::KeyReused,
        format!(
            "This key was used for another request; these parts differ: {}. Use a new key for a new \
             operation, or send the same request.",
            parts.join(", ")
        ),
    )
}

fn other_credentials() -> Problem {
    let detail = format!("This key belongs to other credentials.{NO_NEW_KEY}");
    Problem::new(Code::OtherCredentials, detail)
}

fn not_kept(status: u16, location: Option<&[u8]>, digest: Option<[u8; 32]>) -> Problem {
    let detail = "The operation was carried out; its answer was too large to keep. Do not send it \
                  again under a new key: look its result up instead.";
    let mut problem = Problem::new(Code::NotKept, detail)
        .outcome(UpstreamOutcome::Executed)
        .member("original_status", status);
    if let Some(location) = location {
        let location = String::from_utf8_lossy(location).into_owned();
        problem = problem.member("original_location", location);
    }
    if let Some(digest) = digest {
        let digest = digest.iter().fold(String::from("sha-256:"), |text, octet| {
            format!("{text}{octet:02x}")
        });
        problem = problem.member("original_digest", digest);
    }
    problem
}

fn not_stored(error: &StoreError) -> Problem {
    if error.kind == StoreErrorKind::Unreadable {
        tracing::error!(event = "unreadable_record", error = %error);
    }
    store_down()
}

/// This request was not passed on; of one before it, or of the one it waited for, nobody here knows.
fn store_down() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The record of this key is out of reach, so this request was not passed on; whether an \
         earlier one with this key was carried out cannot be told. Retry with the same key.",
    )
    .outcome_of_key(UpstreamOutcome::Unknown)
    .retry_after(1)
}
