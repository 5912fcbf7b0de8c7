//! One exchange with the upstream: connection, lease, request, answer.

use http::{Request, StatusCode};
use tokio::sync::oneshot;

use super::capture::Captured;
use super::keeper::{Keeper, Stop};
use super::{Job, Protection, Reply};
use crate::idempotency::record::UnknownWhy;
use crate::proxy::body::Body;
use crate::proxy::problem::{Code, Problem, UpstreamOutcome};
use crate::proxy::request::only_chunked;
use crate::proxy::upstream::{
    ConnectError, Connection, HANDOVERS, Needs, SendError, is_bad_answer,
};

/// An execution under way.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) job: Job,
    pub(super) keeper: Keeper,
    pub(super) protection: Protection,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// R16: provably not sent; what the client is told.
    NotSent(Problem),
    /// Nobody waits any more and nothing was sent (R15).
    ClientGone,
    /// Nothing was sent: the lease was lost, or the process ends.
    Stopped,
    /// R18.
    Unknown(UnknownWhy),
    /// R17.
    Answered(Box<Captured>),
}

impl Exchange {
    pub(super) fn new(
        job: Job,
        lease: crate::store::lease::Lease,
        protection: Protection,
        reply: oneshot::Sender<Reply>,
    ) -> Self {
        let shared = &job.proxy.shared;
        let renews = protection != Protection::None;
        let phase = shared.phases.watch();
        let losses = job.proxy.breaker.losses();
        let keeper = Keeper::new(lease, reply, renews, phase, losses, shared.metrics.clone());
        Self {
            job,
            keeper,
            protection,
        }
    }

    pub(super) async fn run(mut self) {
        let ended = self.exchange().await;
        if matches!(ended, Ended::Answered(_)) {
            let took = self.keeper.upstream_time();
            self.job
                .proxy
                .shared
                .metrics
                .upstream
                .observe(took.as_secs_f64());
        }
        self.conclude(ended).await;
    }

    async fn exchange(&mut self) -> Ended {
        let mut request = self.job.request(self.keeper.lease.attempt());
        for tries in 1..=HANDOVERS {
            let connection = match self.connect(tries).await {
                Ok(connection) => connection,
                Err(ended) => return ended,
            };
            match self.send(connection, request).await {
                Ok(ended) => return ended,
                Err(Some(unsent)) => request = *unsent,
                // The peer did nothing about it: the same request again, as the same attempt.
                Err(None) => request = self.job.request(self.keeper.lease.attempt()),
            }
        }
        Ended::NotSent(unreachable("connection_terminated"))
    }

    /// A connection, and a lease that is young enough.
    async fn connect(&mut self, tries: usize) -> Result<Connection, Ended> {
        let pool = self.job.proxy.upstream.clone();
        let needs = if self.job.prepared.unary {
            Needs::Http2
        } else {
            Needs::Any
        };
        let connection = match self.keeper.drive(pool.checkout(needs, tries)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(Ended::NotSent(not_connected(&error))),
            Err(stop) => return Err(stopped(stop)),
        };
        match self.ready().await {
            Ok(()) => Ok(connection),
            Err(stop) => {
                connection.give_back();
                Err(stopped(stop))
            }
        }
    }

    async fn ready(&mut self) -> Result<(), Stop> {
        if self.protection == Protection::Full {
            return self.keeper.ready_to_dispatch().await;
        }
        if self.keeper.client_is_gone() {
            Err(Stop::ClientGone)
        } else {
            Ok(())
        }
    }

    /// Between the check of the lease and the hand-over there is no await.
    async fn send(
        &mut self,
        mut connection: Connection,
        request: Request<Body>,
    ) -> Result<Ended, Option<Box<Request<Body>>>> {
        let settings = &self.job.proxy.shared.settings.upstream;
        let (answer_within, give_up_after) = (settings.answer_within, settings.give_up_after);
        let answer = connection.send(request);
        self.keeper.dispatched(answer_within, give_up_after);
        let response = match self.keeper.drive(answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(SendError::NotSent(request))) => {
                self.keeper.undispatched();
                return Err(request);
            }
            Ok(Err(SendError::MaybeSent(error))) => {
                tracing::debug!(event = "exchange_broke", error = %error);
                return Ok(Ended::Unknown(why_broken(&error)));
            }
            Err(stop) => {
                // R31: the upstream first, then the record.
                connection.close();
                return Ok(Ended::Unknown(why_stopped(stop)));
            }
        };
        // R28: Upgrade was never sent. Nor was TE: what is coded so could not be replayed.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS || !only_chunked(response.headers())
        {
            connection.close();
            return Ok(Ended::Unknown(UnknownWhy::BadAnswer));
        }
        Ok(self.capture(connection, response).await)
    }
}

pub(super) fn why_stopped(stop: Stop) -> UnknownWhy {
    match stop {
        Stop::GaveUp => UnknownWhy::GaveUp,
        Stop::Cut => UnknownWhy::Drained,
        Stop::ClientGone | Stop::LeaseLost => UnknownWhy::Fault,
    }
}

pub(super) fn why_broken(error: &hyper::Error) -> UnknownWhy {
    if is_bad_answer(error) {
        UnknownWhy::BadAnswer
    } else {
        UnknownWhy::ConnectionLost
    }
}

fn stopped(stop: Stop) -> Ended {
    match stop {
        Stop::ClientGone => Ended::ClientGone,
        Stop::Cut | Stop::LeaseLost | Stop::GaveUp => Ended::Stopped,
    }
}

fn not_connected(error: &ConnectError) -> Problem {
    tracing::warn!(event = "upstream_unreachable", error = %error);
    unreachable(error.proxy_status())
}

/// R16.
fn unreachable(proxy_status: &'static str) -> Problem {
    Problem::new(
        Code::Unreachable,
        "The upstream could not be reached; the request was not sent. Retry with the same key.",
    )
    .outcome(UpstreamOutcome::NotExecuted)
    .retry_after(1)
    .proxy_status(proxy_status)
}
