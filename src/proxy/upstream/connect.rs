//! New connections to the upstream, up to where a request could go out.
//!
//! A name is resolved anew for each, and its addresses are tried in turn. Whatever fails here is
//! proof that nothing was sent (R16).

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use crate::proxy::settings::HostPort;
use crate::tls::{self, ClientStream, Connector, Failure};

/// How often a socket whose backlog is full is asked again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// No connection was had: the request was not sent (R16).
#[derive(Debug, Error)]
pub(in crate::proxy) enum ConnectError {
    /// The name does not resolve.
    #[error("the upstream's name does not resolve: {0}")]
    Dns(io::Error),
    /// Nobody listens.
    #[error("the upstream refused the connection")]
    Refused,
    /// Not in `connect_timeout`.
    #[error("the upstream did not accept a connection in time")]
    Timeout,
    /// The handshake failed.
    #[error("no TLS with the upstream: {0}")]
    Tls(io::Error),
    /// It does not speak what `upstream.url` says, or what it agreed to.
    #[error("the upstream does not speak HTTP/2: {0}")]
    Protocol(io::Error),
    /// Anything else before a request could go out.
    #[error("no connection to the upstream: {0}")]
    Io(io::Error),
}

/// Every `result` of the metric of connects.
pub(in crate::proxy) const RESULTS: [&str; 6] = [
    "ok",
    "dns_error",
    "refused",
    "timeout",
    "tls_error",
    "failed",
];

impl ConnectError {
    /// The error type of `Proxy-Status` (RFC 9209 section 2.3).
    pub(in crate::proxy) fn proxy_status(&self) -> &'static str {
        match self {
            Self::Dns(_) => "dns_error",
            Self::Refused => "connection_refused",
            Self::Timeout => "connection_timeout",
            Self::Tls(error) => match tls::failure(error) {
                Some(Failure::Certificate) => "tls_certificate_error",
                Some(Failure::Alert { .. }) => "tls_alert_received",
                Some(Failure::Protocol) | None => "tls_protocol_error",
            },
            Self::Protocol(_) => "http_protocol_error",
            Self::Io(_) => "destination_unavailable",
        }
    }

    /// One of `RESULTS`.
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self::Dns(_) => "dns_error",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Tls(_) => "tls_error",
            Self::Protocol(_) | Self::Io(_) => "failed",
        }
    }

    fn of(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            Self::Refused
        } else {
            Self::Io(error)
        }
    }
}

/// A connection to the first address that takes one, `limit` for each.
pub(super) async fn tcp(place: &HostPort, limit: Duration) -> Result<TcpStream, ConnectError> {
    let HostPort { host, port } = place;
    let addresses = match host.parse() {
        Ok(address) => vec![SocketAddr::new(address, *port)],
        Err(_) => resolve(host, *port, limit).await?,
    };
    first_of(addresses, limit).await
}

async fn first_of(addresses: Vec<SocketAddr>, limit: Duration) -> Result<TcpStream, ConnectError> {
    let mut last = ConnectError::Dns(io::ErrorKind::NotFound.into());
    for address in addresses {
        last = match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(ConnectError::Io)?;
                return Ok(stream);
            }
            Ok(Err(error)) => ConnectError::of(error),
            Err(_) => ConnectError::Timeout,
        };
    }
    Err(last)
}

async fn resolve(host: &str, port: u16, limit: Duration) -> Result<Vec<SocketAddr>, ConnectError> {
    match timeout(limit, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(ConnectError::Dns(error)),
        Err(_) => Err(ConnectError::Dns(io::ErrorKind::TimedOut.into())),
    }
}

/// The handshake over a connection, within `limit`.
pub(super) async fn secured(
    connector: &Connector,
    stream: TcpStream,
    only_http1: bool,
    limit: Duration,
) -> Result<ClientStream<TcpStream>, ConnectError> {
    match timeout(limit, connector.connect(stream, only_http1)).await {
        Ok(result) => result.map_err(ConnectError::Tls),
        Err(_) => Err(ConnectError::Timeout),
    }
}

/// A connection to a Unix socket. The kernel does not queue those beyond the backlog: they are
/// tried again.
pub(super) async fn unix(path: &Path, limit: Duration) -> Result<UnixStream, ConnectError> {
    let connected = timeout(limit, async {
        loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(BACKLOG_PAUSE).await;
                }
                result => return result,
            }
        }
    });
    match connected.await {
        Ok(result) => result.map_err(ConnectError::of),
        Err(_) => Err(ConnectError::Timeout),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn each_address_of_a_name_is_tried_in_turn() {
        // Bound and not listening: connections are refused.
        let refuses = TcpSocket::new_v4().unwrap();
        refuses.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let refuses = (refuses.local_addr().unwrap(), refuses);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listens = listener.local_addr().unwrap();
        let stream = first_of(vec![refuses.0, listens], LIMIT).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listens);
        let none = first_of(vec![refuses.0], LIMIT).await;
        assert!(matches!(none, Err(ConnectError::Refused)), "{none:?}");
        let none = first_of(Vec::new(), LIMIT).await;
        assert!(matches!(none, Err(ConnectError::Dns(_))), "{none:?}");
    }
}
