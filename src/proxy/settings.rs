//! What `[server]` and `[upstream]` mean for one request. Plain data, built by `config/`.

use std::time::Duration;

use ipnet::IpNet;

/// What `[server]` and `[upstream]` say about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `[upstream]`.
    pub upstream: UpstreamSettings,
    /// `server.body_timeout`: between two pieces of a request body.
    pub body_timeout: Duration,
    /// `server.write_timeout`: a client that takes no octet for this long is dropped.
    pub write_timeout: Duration,
    /// R30: all bytes held for covered requests.
    pub buffer_budget: u64,
    /// R5: what happens to field names with `_`.
    pub underscores: Underscores,
    /// R28: protocols an uncovered request may switch to.
    pub upgrades: Vec<String>,
    /// R26: peers whose `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// R26: clients come over TLS, so X-Forwarded-Proto is https.
    pub tls: bool,
}

/// `[upstream]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Host name or address; IPv6 without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Until a connection stands.
    pub connect_timeout: Duration,
    /// R15: until the client gets 504.
    pub answer_within: Duration,
    /// R15: until the exchange is given up.
    pub give_up_after: Duration,
    /// R30: exchanges at once.
    pub max_exchanges: usize,
    /// How long an idle connection is kept.
    pub pool_idle_timeout: Duration,
    /// R27: which Host the upstream sees.
    pub host_header: HostHeader,
}

/// `server.underscores`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Underscores {
    /// Such fields are not forwarded.
    Drop,
    /// They are.
    Forward,
}

/// `upstream.host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's.
    Preserve,
    /// The upstream's own.
    Upstream,
}
