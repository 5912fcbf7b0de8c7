//! What `[server]` and `[upstream]` mean for one request. Plain data, built by `config/`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::tls::ClientSettings;

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
    /// Names of fields keep their letter case over HTTP/1.1.
    pub preserve_header_case: bool,
    /// R26: clients come over TLS, so X-Forwarded-Proto is https.
    pub tls: bool,
}

/// `[upstream]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Where it is.
    pub url: UpstreamUrl,
    /// Until a connection stands, for each address of a name.
    pub connect_timeout: Duration,
    /// R15: until the client gets 504.
    pub answer_within: Duration,
    /// R15: until the exchange is given up.
    pub give_up_after: Duration,
    /// R30: exchanges at once.
    pub max_exchanges: usize,
    /// How long an idle connection is kept.
    pub pool_idle_timeout: Duration,
    /// How long a connection takes new exchanges: then a name may have come to mean another place.
    pub pool_max_age: Duration,
    /// R27: which Host the upstream sees.
    pub host_header: HostHeader,
    /// `[upstream.tls]`, for `https://`.
    pub tls: ClientSettings,
}

/// `upstream.url`: where the upstream is and what it speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamUrl {
    /// `http://`: HTTP/1.1 over TCP.
    Http(HostPort),
    /// `https://`: HTTP/2 or HTTP/1.1 over TLS, as the upstream likes.
    Https(HostPort),
    /// `h2c://`: HTTP/2 with prior knowledge over TCP.
    H2c(HostPort),
    /// `unix:`: HTTP/1.1 over a Unix socket.
    Unix(PathBuf),
}

/// A place on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Host name or address; IPv6 without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl UpstreamUrl {
    /// Where on the network it is; a Unix socket is not there.
    pub fn place(&self) -> Option<&HostPort> {
        match self {
            Self::Http(place) | Self::Https(place) | Self::H2c(place) => Some(place),
            Self::Unix(_) => None,
        }
    }

    /// Whether HTTP/2 may be spoken.
    pub fn may_multiplex(&self) -> bool {
        matches!(self, Self::H2c(_) | Self::Https(_))
    }

    /// The upstream's own `Host`.
    pub fn authority(&self) -> String {
        match self {
            Self::Http(place) | Self::H2c(place) if place.port == 80 => place.bracketed(),
            Self::Https(place) if place.port == 443 => place.bracketed(),
            Self::Http(place) | Self::Https(place) | Self::H2c(place) => place.to_string(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(place) => write!(f, "http://{place}"),
            Self::Https(place) => write!(f, "https://{place}"),
            Self::H2c(place) => write!(f, "h2c://{place}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl HostPort {
    fn bracketed(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bracketed(), self.port)
    }
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
