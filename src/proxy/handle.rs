//! From a request to its answer: the straight path, and its one log event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Proxy;
use super::body::Body;
use super::call;
use super::intake::Intake;
use super::passthrough::Asks;
use super::problem::Problem;
use super::request::{self, Target};
use super::rewrite;
use crate::idempotency::RecordKey;
use crate::idempotency::key::from_headers;
use crate::idempotency::policy::{Grpc, Mode};
use crate::idempotency::record::Attempt;
use crate::routes::Route;
use crate::telemetry::metrics::{RequestLabels, method_label};

/// What became of a request, for metrics and log.
#[derive(Debug)]
pub(super) struct Verdict {
    /// For the client.
    pub(super) response: Response<Body>,
    /// `executed`, `replayed`, `passed`, `unprotected`, or a problem's code.
    pub(super) outcome: &'static str,
    /// The record it was about.
    pub(super) record: Option<RecordKey>,
    /// What the response says, where it is our own.
    pub(super) problem: Option<Problem>,
    /// What it cost elsewhere.
    pub(super) spent: Spent,
}

/// What a request cost that is not the proxy's own time.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// Which execution answered; 0 where none ran.
    pub(super) attempt: Attempt,
    /// At the upstream, or waiting for somebody else's answer.
    pub(super) elsewhere: Duration,
}

impl Verdict {
    pub(super) fn new(response: Response<Body>, outcome: &'static str) -> Self {
        Self {
            response,
            outcome,
            record: None,
            problem: None,
            spent: Spent::default(),
        }
    }

    pub(super) fn problem(problem: Problem, route: &Route) -> Self {
        let outcome = problem.code.name();
        let response = problem
            .clone()
            .into_response(route.policy.docs_url.as_deref());
        Self {
            problem: Some(problem),
            ..Self::new(response, outcome)
        }
    }

    /// R32: the same for a gRPC call.
    fn into_call(mut self) -> Self {
        if let Some(problem) = self.problem.take() {
            self.response = call::trailers_only(&problem, self.response);
        }
        self
    }
}

/// A request whose head was looked at.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) head: Parts,
    pub(super) target: Target,
    pub(super) peer: SocketAddr,
    pub(super) route: Arc<Route>,
}

impl Proxy {
    /// Answers one request.
    pub async fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<Body> {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let method = head.method.clone();
        let is_call = call::is_grpc(&head);
        let mut intake = Intake::new(&head, body);
        let (route, mut verdict) = match self.arrive(head, peer) {
            Ok(arrival) => {
                let route = arrival.route.clone();
                (route, self.route(arrival, &mut intake).await)
            }
            Err((route, problem)) => {
                let verdict = Verdict::problem(problem, &route);
                (route, verdict)
            }
        };
        if is_call {
            verdict = verdict.into_call();
        }
        self.report(&route, &method, &verdict, started);
        if !intake.settle().await {
            let headers = verdict.response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        verdict.response
    }

    /// Counts every request; one event per covered one. Never a body, a credential or a raw key.
    fn report(&self, route: &Route, method: &Method, verdict: &Verdict, started: Instant) {
        let metrics = &self.shared.metrics;
        let labels = RequestLabels {
            route: route.name.clone(),
            method: method_label(method.as_str()),
            outcome: verdict.outcome,
        };
        metrics.requests.get_or_create(&labels).inc();
        if !route.covers(method) {
            return;
        }
        let took = started.elapsed();
        if verdict.record.is_some() {
            let own = took.saturating_sub(verdict.spent.elsewhere);
            metrics.overhead.observe(own.as_secs_f64());
        }
        let key = verdict.record.map(|record| record.short());
        tracing::info!(
            event = "request",
            route = %route.name,
            method = %method,
            status = verdict.response.status().as_u16(),
            outcome = verdict.outcome,
            key = key.as_deref(),
            attempt = verdict.spent.attempt,
            duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        );
    }

    /// R1, R2, R26, R27: everything the head alone decides.
    fn arrive(&self, mut head: Parts, peer: SocketAddr) -> Result<Arrival, (Arc<Route>, Problem)> {
        let routes = &self.shared.routes;
        if head.version == Version::HTTP_2 {
            request::join_cookies(&mut head.headers);
        }
        let target = request::inspect(&head).map_err(|problem| {
            (
                routes.find("", head.uri.path(), &head.method).route,
                problem,
            )
        })?;
        let matched = routes.find(target.host(), head.uri.path(), &head.method);
        let route = matched.route.clone();
        let refuse = |problem| Err((route.clone(), problem));
        let covered = route.covers(&head.method);
        let differs = matched.ambiguous.as_ref();
        if differs.is_some_and(|other| covered || other.covers(&head.method))
            || (covered && matched.suspicious)
        {
            return refuse(Problem::malformed(
                "The path is spelled in a way that upstreams may read differently: send it without \
                 dot segments, repeated slashes, encoded slashes or needlessly encoded letters.",
            ));
        }
        // R1, for methods that only this route covers.
        let is_on = route.policy.mode == Mode::Enforce;
        if is_on && let Err(problem) = request::method(&head.method, &route.policy.methods) {
            return refuse(problem);
        }
        if let Err(problem) = request::nominations(&head.headers, &route.policy) {
            return refuse(problem);
        }
        let overridden = request::no_method_override(&head.headers);
        if !covered
            && let Err(problem) = overridden
            && routes.path_is_covered(target.host(), head.uri.path())
        {
            return refuse(problem);
        }
        Ok(Arrival {
            head,
            target,
            peer,
            route,
        })
    }

    async fn route(self: &Arc<Self>, mut arrival: Arrival, intake: &mut Intake) -> Verdict {
        if arrival.route.covers(&arrival.head.method) && !self.call_passes(&arrival) {
            if call::is_refused(&arrival.head, &arrival.route.policy) {
                return Verdict::problem(call::refused(), &arrival.route);
            }
            return self.covered(arrival, intake).await;
        }
        if let Some(response) = answer_here(&mut arrival.head) {
            return Verdict::new(response, "passed");
        }
        self.pass_on(arrival, self.streamed(intake)).await
    }

    /// R1: calls without a key pass, where the upstream can take them.
    fn call_passes(&self, arrival: &Arrival) -> bool {
        let (head, policy) = (&arrival.head, &arrival.route.policy);
        policy.grpc == Grpc::Pass
            && call::is_grpc(head)
            && matches!(from_headers(&head.headers, &policy.key), Ok(None))
            && self.shared.settings.upstream.url.may_speak_http2()
    }

    /// The body as it comes.
    pub(super) fn streamed(&self, intake: &mut Intake) -> Body {
        let version = intake.version();
        match intake.take() {
            Some(body) => Body::stream(body, version, self.shared.settings.body_timeout, None),
            None => Body::empty(),
        }
    }

    /// Uncovered, or covered and unprotected by the route's own rule (R6 `pass`).
    pub(super) async fn pass_on(&self, mut arrival: Arrival, body: Body) -> Verdict {
        let multiplexed = arrival.head.version == Version::HTTP_2;
        let covers = arrival.route.covers(&arrival.head.method);
        // R28: a covered request switches to nothing.
        let upgrades = &self.shared.settings.upgrades;
        let upgrades: &[String] = if covers { &[] } else { upgrades };
        let asks = Asks::of(&mut arrival.head, upgrades);
        self.rewrite(&mut arrival);
        if multiplexed && body.is_end_stream() {
            rewrite::length_of_nothing(&mut arrival.head);
        }
        match self.pass(arrival.head, body, asks).await {
            Ok(response) => Verdict::new(response, "passed"),
            Err(problem) => Verdict::problem(problem, &arrival.route),
        }
    }

    pub(super) fn rewrite(&self, arrival: &mut Arrival) {
        let settings = &self.shared.settings;
        let upstream_host = settings.upstream.url.authority();
        let Arrival {
            head, target, peer, ..
        } = arrival;
        rewrite::to_upstream(head, target, *peer, settings, &upstream_host);
    }
}

/// R27: Max-Forwards on OPTIONS and TRACE. 0 is answered here, else it counts down.
fn answer_here(head: &mut Parts) -> Option<Response<Body>> {
    if head.method != Method::OPTIONS && head.method != Method::TRACE {
        return None;
    }
    let value = head.headers.get(header::MAX_FORWARDS)?;
    let left: u32 = value.to_str().ok()?.trim().parse().ok()?;
    let Some(less) = left.checked_sub(1) else {
        let mut response = Response::new(Body::empty());
        let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        response.headers_mut().insert(header::ALLOW, methods);
        return Some(response);
    };
    head.headers.insert(header::MAX_FORWARDS, less.into());
    None
}
