//! The file, the environment, and what they mean.
//!
//! Two shapes: what was written (`file.rs`) and what is meant ([`Config`]).

use crate::idempotency::Policy;
use crate::routes::RouteSettings;
use crate::{admin, proxy, server, store, telemetry};

/// A valid configuration, every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[server]`
    pub server: server::Settings,
    /// `[server]` and `[upstream]` as one request sees them.
    pub proxy: proxy::Settings,
    /// `[store]`
    pub store: store::Settings,
    /// `[policy]`
    pub policy: Policy,
    /// `[[route]]`
    pub routes: Vec<RouteSettings>,
    /// `[health]`
    pub health: admin::Settings,
    /// `[log]`
    pub log: telemetry::Settings,
}
