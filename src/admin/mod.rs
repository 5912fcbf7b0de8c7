//! Health and metrics over HTTP, on a listener of their own.

use std::net::SocketAddr;

/// `[health]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `/livez`, `/startupz`, `/readyz`, `/metrics`.
    pub listen: SocketAddr,
    /// Whether `/readyz` asks for the store.
    pub ready_requires_store: bool,
}
