//! `retrysafe healthcheck`: asks the own health port, for containers without a shell or curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{FAILED, OK};
use crate::config::Environment;

const LIMIT: Duration = Duration::from_secs(3);

/// Answers the exit code.
pub(super) fn healthcheck(path: Option<&Path>, env: &Environment) -> u8 {
    let checked = super::load_to_ask(path, env).and_then(|loaded| {
        let address = reachable(loaded.config.health.listen);
        let asked =
            super::runtime()?.block_on(async { tokio::time::timeout(LIMIT, ask(address)).await });
        match asked {
            Ok(Ok(true)) => Ok(OK),
            Ok(Ok(false)) => Err(said(address, "not ready")),
            Ok(Err(error)) => Err(said(address, &error.to_string())),
            Err(_) => Err(said(address, "no answer in time")),
        }
    });
    checked.unwrap_or_else(|code| code)
}

fn said(address: SocketAddr, what: &str) -> u8 {
    eprintln!("retrysafe: health at {address}: {what}");
    FAILED
}

/// A listener on every address is asked on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

async fn ask(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut head = Vec::new();
    stream.take(1024).read_to_end(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.1 200"))
}
