//! Every metric, with its labels. Names are prefixed `retrysafe_`; no label holds a key, a scope, a
//! path or a client.

mod labels;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use labels::{Label, RequestLabels, method_label};

/// Seconds, from 50 microseconds: what the proxy itself costs.
const OVERHEAD_BUCKETS: [f64; 11] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
];
/// Seconds, the bounds of OpenTelemetry's `http.server.request.duration`.
const REQUEST_BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Prometheus,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Format {
    /// What a scraper's `Accept` asks for.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests by route, method and outcome.
    pub requests: Family<RequestLabels, Counter>,
    /// Time in the proxy that is neither upstream nor waiting, covered requests.
    pub overhead: Histogram,
    /// Time from dispatch to the whole answer, covered requests.
    pub upstream: Histogram,
    /// Store calls by operation and result (`ok` or the error's kind).
    pub store_operations: Family<Label<2>, Histogram, fn() -> Histogram>,
    /// Store calls that failed, by operation and kind.
    pub store_errors: Family<Label<2>, Counter>,
    /// 1 while the store answers.
    pub store_up: Gauge,
    /// The guarantee tier of the store, 0 to 5.
    pub store_tier: Gauge,
    /// Looks into the cache, by result (`hit`, `miss`, `unusable`).
    pub cache_lookups: Family<Label<1>, Counter>,
    /// Exchanges under way, detached ones included.
    pub in_flight: Gauge,
    /// Duplicates that wait for a first answer.
    pub waiting: Gauge,
    /// Open client connections.
    pub connections: Gauge,
    /// TLS handshakes that failed, by reason (`refused`, `closed`, `timeout`).
    pub handshakes_failed: Family<Label<1>, Counter>,
    /// Changed certificate files, by result (`ok`, `failed`).
    pub certificate_reloads: Family<Label<1>, Counter>,
    /// Open connections to the upstream.
    pub upstream_connections: Gauge,
    /// Connections to the upstream by how making them ended.
    pub upstream_connects: Family<Label<1>, Counter>,
    /// Open tunnels of upgraded connections.
    pub tunnels: Gauge,
    /// Bytes held for covered requests.
    pub buffered_bytes: Gauge<u64, AtomicU64>,
    /// Leases that were lost to somebody else.
    pub leases_lost: Counter,
    /// Exchanges left unresolved, by reason.
    pub unresolved: Family<Label<1>, Counter>,
    /// Requests executed without protection.
    pub unprotected: Counter,
    /// Settles, renewals and withdrawn claims the store has not confirmed yet.
    pub unconfirmed: Gauge,
    /// Records written again because the store had lost them.
    pub reasserted: Counter,
    /// Times the store was found to have lost its memory.
    pub memory_lost: Counter,
    /// Answers not kept, by reason (`size`, `budget`).
    pub not_kept: Family<Label<1>, Counter>,
    /// Exchanges that ended in a fault of our own.
    pub faults: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("retrysafe"),
            requests: Family::default(),
            overhead: Histogram::new(OVERHEAD_BUCKETS),
            upstream: Histogram::new(REQUEST_BUCKETS),
            store_operations: Family::new_with_constructor(|| Histogram::new(OVERHEAD_BUCKETS)),
            store_errors: Family::default(),
            store_up: Gauge::default(),
            store_tier: Gauge::default(),
            cache_lookups: Family::default(),
            in_flight: Gauge::default(),
            waiting: Gauge::default(),
            connections: Gauge::default(),
            handshakes_failed: Family::default(),
            certificate_reloads: Family::default(),
            upstream_connections: Gauge::default(),
            upstream_connects: Family::default(),
            tunnels: Gauge::default(),
            buffered_bytes: Gauge::default(),
            leases_lost: Counter::default(),
            unresolved: Family::default(),
            unprotected: Counter::default(),
            unconfirmed: Gauge::default(),
            reasserted: Counter::default(),
            memory_lost: Counter::default(),
            not_kept: Family::default(),
            faults: Counter::default(),
        };
        metrics.register_requests();
        metrics.register_connections();
        metrics.register_upstream();
        metrics.register_records();
        metrics
    }

    fn register_requests(&mut self) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let builds: Family<Label<1>, Gauge> = Family::default();
        builds.get_or_create(&Label(version)).set(1);
        let r = &mut self.registry;
        r.register("build_info", "The running build", builds);
        r.register(
            "requests",
            "Requests by route, method and outcome",
            self.requests.clone(),
        );
        r.register_with_unit(
            "overhead",
            "Time spent in the proxy itself on covered requests",
            Unit::Seconds,
            self.overhead.clone(),
        );
        r.register_with_unit(
            "upstream_duration",
            "Time from dispatch to the whole answer of covered requests",
            Unit::Seconds,
            self.upstream.clone(),
        );
        r.register(
            "in_flight",
            "Exchanges under way, detached ones included",
            self.in_flight.clone(),
        );
        r.register(
            "waiting",
            "Duplicates waiting for a first answer",
            self.waiting.clone(),
        );
        r.register_with_unit(
            "buffered",
            "Bytes held for covered requests",
            Unit::Bytes,
            self.buffered_bytes.clone(),
        );
    }

    fn register_connections(&mut self) {
        let r = &mut self.registry;
        r.register(
            "connections",
            "Open client connections",
            self.connections.clone(),
        );
        r.register(
            "tunnels",
            "Open tunnels of upgraded connections",
            self.tunnels.clone(),
        );
        r.register(
            "handshakes_failed",
            "TLS handshakes that failed, by reason",
            self.handshakes_failed.clone(),
        );
        r.register(
            "certificate_reloads",
            "Changed certificate files, by result",
            self.certificate_reloads.clone(),
        );
    }

    fn register_upstream(&mut self) {
        let r = &mut self.registry;
        r.register(
            "upstream_connections",
            "Open connections to the upstream",
            self.upstream_connections.clone(),
        );
        r.register(
            "upstream_connects",
            "Connections to the upstream by how making them ended",
            self.upstream_connects.clone(),
        );
    }

    fn register_records(&mut self) {
        let r = &mut self.registry;
        r.register_with_unit(
            "store_operation_duration",
            "Store calls by operation and result",
            Unit::Seconds,
            self.store_operations.clone(),
        );
        r.register(
            "store_errors",
            "Failed store calls by operation and kind",
            self.store_errors.clone(),
        );
        r.register(
            "store_up",
            "1 while the store answers",
            self.store_up.clone(),
        );
        r.register(
            "store_tier",
            "The guarantee tier of the store, 0 to 5",
            self.store_tier.clone(),
        );
        r.register(
            "cache_lookups",
            "Looks into the cache by result",
            self.cache_lookups.clone(),
        );
        r.register(
            "leases_lost",
            "Leases lost to another owner",
            self.leases_lost.clone(),
        );
        r.register(
            "unresolved",
            "Exchanges left unresolved, by reason",
            self.unresolved.clone(),
        );
        r.register(
            "unprotected_requests",
            "Requests executed without protection because the store did not answer",
            self.unprotected.clone(),
        );
        r.register(
            "unconfirmed_operations",
            "Store operations that wait for confirmation",
            self.unconfirmed.clone(),
        );
        r.register(
            "reasserted",
            "Records written again because the store had lost them",
            self.reasserted.clone(),
        );
        r.register(
            "memory_lost",
            "Times the store was found to have lost records, or that it may have",
            self.memory_lost.clone(),
        );
        r.register(
            "not_kept",
            "Answers delivered but not kept, by reason",
            self.not_kept.clone(),
        );
        r.register(
            "faults",
            "Exchanges ended by a fault of the proxy",
            self.faults.clone(),
        );
    }

    /// The text of `/metrics`.
    pub fn render(&self, format: Format) -> String {
        let mut out = String::new();
        let encoded = match format {
            Format::Prometheus => prometheus_text::encode(&mut out, &self.registry),
            Format::OpenMetrics => text::encode(&mut out, &self.registry),
        };
        if encoded.is_err() {
            // Writing into a String does not fail; half a text would be worse than none.
            out.clear();
        }
        out
    }

    /// Counts one store call.
    pub fn store_call(
        &self,
        operation: &'static str,
        result: &'static str,
        failed: bool,
        took: Duration,
    ) {
        let labels = Label([("operation", operation), ("result", result)]);
        self.store_operations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if failed {
            let labels = Label([("operation", operation), ("kind", result)]);
            self.store_errors.get_or_create(&labels).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_rendered_with_prefix_and_suffix() {
        let metrics = Metrics::new();
        let labels = RequestLabels {
            route: "pay".into(),
            method: "POST",
            outcome: "executed",
        };
        metrics.requests.get_or_create(&labels).inc();
        metrics.store_call("claim", "timeout", true, Duration::from_millis(250));
        let text = metrics.render(Format::Prometheus);
        for line in [
            r#"retrysafe_requests_total{route="pay",method="POST",outcome="executed"} 1"#,
            r#"retrysafe_store_errors_total{operation="claim",kind="timeout"} 1"#,
            "retrysafe_store_up 0",
            "retrysafe_overhead_seconds_count 0",
            "retrysafe_buffered_bytes 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in\n{text}"
            );
        }
        assert!(text.contains(r#"retrysafe_build_info{version=""#));
        assert!(metrics.render(Format::OpenMetrics).ends_with("# EOF\n"));
    }
}
