//! Health and metrics over HTTP, on a listener of their own.
//!
//! `/livez` asks nothing but the process, so that a store that is down never kills pods. `/readyz`
//! is about this replica; the store counts only where `health.ready_requires_store` says so, since
//! it would take every replica out at once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

use crate::telemetry::Metrics;
use crate::telemetry::metrics::Format;

/// `[health]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `/livez`, `/startupz`, `/readyz`, `/metrics`.
    pub listen: SocketAddr,
    /// Whether `/readyz` asks for the store.
    pub ready_requires_store: bool,
}

/// What the health listener answers from.
#[derive(Debug)]
pub struct Health {
    metrics: Arc<Metrics>,
    ready_requires_store: bool,
    started: AtomicBool,
    draining: AtomicBool,
    /// How far the store can be trusted, once that is known.
    guarantee: Mutex<Option<String>>,
    /// How long absent keys are still not given out.
    hold_off: Mutex<Option<Duration>>,
}

impl Health {
    /// Not started yet.
    pub fn new(metrics: Arc<Metrics>, ready_requires_store: bool) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            ready_requires_store,
            started: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            guarantee: Mutex::default(),
            hold_off: Mutex::default(),
        })
    }

    /// The listeners are bound.
    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// R31: not ready at once.
    pub fn draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// What the store guarantees, in one line.
    pub fn guarantee(&self, text: String) {
        *self
            .guarantee
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// The store lost its memory: absent keys are not given out for that long.
    pub fn hold_off(&self, left: Option<Duration>) {
        *self.hold_off.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }

    /// Answers one request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into());
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "ok\n".into()),
            "/startupz" => {
                let started = self.started.load(Ordering::Acquire);
                check(started, "starting\n".into())
            }
            "/readyz" => self.ready(request.uri().query() == Some("verbose")),
            "/metrics" => self.metrics(request.headers()),
            _ => text(
                StatusCode::NOT_FOUND,
                "/livez /startupz /readyz /metrics\n".into(),
            ),
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = Format::accepted(accept.unwrap_or_default());
        let mut response = text(StatusCode::OK, self.metrics.render(format));
        let kind = HeaderValue::from_static(format.content_type());
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn ready(&self, verbose: bool) -> Response<Full<Bytes>> {
        let started = self.started.load(Ordering::Acquire);
        let draining = self.draining.load(Ordering::Acquire);
        let store_up = self.metrics.store_up.get() == 1;
        let ready = started && !draining && (store_up || !self.ready_requires_store);
        let store = match (store_up, self.ready_requires_store) {
            (true, _) => "ok",
            (false, true) => "down",
            (false, false) => "degraded",
        };
        let guarantee = self
            .guarantee
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let guarantee = guarantee.as_deref().unwrap_or("not known yet").to_owned();
        let hold_off = *self.hold_off.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match hold_off {
            Some(left) => format!(
                "{store}, holding off for {} s: it lost its memory",
                left.as_secs()
            ),
            None => store.to_owned(),
        };
        let lines = format!(
            "listeners: {}\ndrain: {}\nstore: {store}\nguarantee: {guarantee}\n",
            if started { "ok" } else { "starting" },
            if draining { "draining" } else { "ok" },
        );
        if verbose {
            let status = if ready {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            return text(status, lines);
        }
        check(ready, lines)
    }
}

fn check(ok: bool, otherwise: String) -> Response<Full<Bytes>> {
    if ok {
        text(StatusCode::OK, "ok\n".into())
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, otherwise)
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(health: &Health, path: &str) -> u16 {
        health
            .answer(&Request::get(path).body(()).unwrap())
            .status()
            .as_u16()
    }

    #[test]
    fn liveness_asks_nothing_but_the_process() {
        let health = Health::new(Arc::new(Metrics::new()), true);
        assert_eq!(status(&health, "/livez"), 200);
        assert_eq!(status(&health, "/startupz"), 503);
        assert_eq!(status(&health, "/readyz"), 503);
        assert_eq!(status(&health, "/nowhere"), 404);
    }

    #[test]
    fn readiness_follows_listeners_drain_and_only_if_asked_the_store() {
        let metrics = Arc::new(Metrics::new());
        let without = Health::new(metrics.clone(), false);
        let with = Health::new(metrics.clone(), true);
        without.started();
        with.started();
        assert_eq!(
            (status(&without, "/readyz"), status(&with, "/readyz")),
            (200, 503)
        );
        assert_eq!(status(&without, "/readyz?verbose"), 200);
        metrics.store_up.set(1);
        assert_eq!(
            (status(&without, "/readyz"), status(&with, "/readyz")),
            (200, 200)
        );
        without.draining();
        assert_eq!(
            (status(&without, "/readyz"), status(&without, "/livez")),
            (503, 200)
        );
    }

    #[test]
    fn only_get_is_answered() {
        let health = Health::new(Arc::new(Metrics::new()), false);
        let request = Request::post("/livez").body(()).unwrap();
        assert_eq!(health.answer(&request).status(), 405);
    }
}
