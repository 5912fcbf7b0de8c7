//! Sockets and connections: bind, accept, limits, graceful drain.

use std::net::SocketAddr;
use std::time::Duration;

/// `[server]`, but for what concerns one request (that is `proxy::Settings`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Runtimes; 0: from the CPU quota.
    pub threads: usize,
    /// R30: beyond it accepting pauses.
    pub max_connections: usize,
    /// R30: from the first octet of a head to its end.
    pub header_timeout: Duration,
    /// A connection between two requests.
    pub idle_timeout: Duration,
    /// A client that takes no octet for this long is dropped.
    pub write_timeout: Duration,
    /// R31.
    pub drain: Duration,
}
