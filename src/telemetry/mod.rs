//! Metric names, log format, one event per covered request.

pub mod log;
pub mod metrics;

pub use metrics::Metrics;

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How lines look.
    pub format: LogFormat,
    /// A `tracing` filter, `info` or `retrysafe=debug`.
    pub level: String,
}

/// `log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
