//! The two addresses of a configuration: the store's and the upstream's.
//!
//! Invariant: no message of this module repeats what was written, since it may hold a password.
//!
//! Deliberately absent: connecting, looking names up.

mod postgres;

use std::fmt;
use std::path::PathBuf;

use super::schema::nearest;
use crate::proxy::{HostPort, UpstreamUrl};
use crate::store::StoreUrl;

/// Why a url cannot be used, and what to write. Holds nothing of the url itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.help)
    }
}

impl std::error::Error for UrlError {}

fn wrong<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, UrlError> {
    Err(UrlError {
        message: message.into(),
        help: help.into(),
    })
}

const STORE_HELP: &str = "write \"memory:\", \"file:PATH\", \"redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]\" or \
     \"postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE\"";

/// Parses `memory:`, `file:PATH`, `redis://[user[:password]@]host[:port][/db]` and
/// `postgres://user[:password]@host[:port]/database`.
pub fn parse_store_url(text: &str) -> Result<StoreUrl, UrlError> {
    let Some((scheme, rest)) = text.split_once(':') else {
        return wrong("is not a store url", STORE_HELP);
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(StoreUrl::Memory),
        "memory" => wrong("has something after `memory:`", "write \"memory:\""),
        "file" if rest.is_empty() => wrong("names no file", "write \"file:retrysafe.db\""),
        "file" if rest.starts_with("//") => wrong(
            "has slashes that do not belong to a path",
            "write \"file:retrysafe.db\" or \"file:/data/retrysafe.db\"",
        ),
        "file" if rest.contains('\0') => wrong("is not a path", "write \"file:PATH\""),
        "file" => Ok(StoreUrl::File(PathBuf::from(rest))),
        "redis" => match rest.strip_prefix("//") {
            Some(rest) => redis(rest).map(|()| StoreUrl::Redis(text.to_owned())),
            None => wrong("lacks the two slashes after `redis:`", STORE_HELP),
        },
        "rediss" | "redis+sentinel" | "redis+cluster" | "rediss+cluster" | "rediss+sentinel" => {
            wrong(
                format!("is {scheme}://, which is not available in this version yet"),
                "use \"redis://\" (one server, no TLS)",
            )
        }
        "postgres" | "postgresql" => match rest.strip_prefix("//") {
            Some(rest) => Ok(StoreUrl::Postgres(Box::new(postgres::postgres(rest)?))),
            None => wrong(
                format!("lacks the two slashes after `{scheme}:`"),
                STORE_HELP,
            ),
        },
        other => match nearest(other, ["memory", "file", "redis", "postgres"].into_iter()) {
            Some(_) => wrong("misspells its scheme", STORE_HELP),
            None => wrong("does not begin with a known scheme", STORE_HELP),
        },
    }
}

/// Checks what follows `redis://`.
fn redis(rest: &str) -> Result<(), UrlError> {
    const ENCODE: &str = "a password with / ? # or @ in it needs these as %2F, %3F, %23 and %40";
    if rest.contains(['?', '#']) {
        return wrong("has a query or fragment", ENCODE);
    }
    let (user_info, place) = match rest.rsplit_once('@') {
        Some((user_info, place)) => (user_info, place),
        None => ("", rest),
    };
    if user_info.contains(['@', '/']) || user_info.contains(char::is_whitespace) {
        return wrong("has user info that is not percent-encoded", ENCODE);
    }
    if !percent_encoding_is_whole(user_info) {
        return wrong("has a % that begins no escape", "write % itself as %25");
    }
    let (authority, database) = match place.split_once('/') {
        Some((authority, database)) => (authority, database),
        None => (place, ""),
    };
    if let Err(message) = host_and_port(authority) {
        let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
        let help = if is_port { STORE_HELP } else { ENCODE };
        return wrong(message, help);
    }
    if !database.is_empty() && database.parse::<u32>().is_err() {
        let help = "write a number after the slash, e.g. \"redis://127.0.0.1:6379/0\"";
        return wrong("has a database that is no number", help);
    }
    Ok(())
}

fn percent_encoding_is_whole(text: &str) -> bool {
    text.match_indices('%').all(|(at, _)| {
        let digits = text.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

const UPSTREAM_HELP: &str = "write \"http://HOST:PORT\", \"https://HOST:PORT\", \"h2c://HOST:PORT\" or \"unix:PATH\", e.g. \"http://127.0.0.1:3000\"";

/// Parses `http://HOST[:PORT]`, `https://`, `h2c://` (the same) and `unix:PATH`; IPv6 loses its brackets.
pub(super) fn parse_upstream_url(text: &str) -> Result<UpstreamUrl, UrlError> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return wrong("has no scheme", UPSTREAM_HELP);
    };
    let (speaks, default): (fn(HostPort) -> UpstreamUrl, u16) = match scheme {
        "http" => (UpstreamUrl::Http, 80),
        "https" => (UpstreamUrl::Https, 443),
        "h2c" => (UpstreamUrl::H2c, 80),
        _ => return wrong("does not begin with a known scheme", UPSTREAM_HELP),
    };
    if rest.contains('@') {
        return wrong(
            "has user info",
            "remove it; the client's own Authorization is forwarded",
        );
    }
    if rest.contains(['?', '#']) {
        return wrong("has a query or fragment", "end it after the port");
    }
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('/') {
        return wrong(
            "has a path",
            "end it after the port; the request's own path is forwarded",
        );
    }
    match host_and_port(authority) {
        Ok((host, port)) => Ok(speaks(HostPort {
            host: host.to_owned(),
            port: port.unwrap_or(default),
        })),
        Err(message) => wrong(message, UPSTREAM_HELP),
    }
}

/// A socket's path: the kernel takes 107 octets and no NUL.
fn unix(path: &str) -> Result<UpstreamUrl, UrlError> {
    const HELP: &str = "write \"unix:PATH\", e.g. \"unix:/run/app.sock\"";
    if path.is_empty() {
        return wrong("names no socket", HELP);
    }
    if path.starts_with("//") {
        return wrong("has slashes that do not belong to a path", HELP);
    }
    if path.contains('\0') {
        return wrong("is not a path", HELP);
    }
    if path.len() > 107 {
        return wrong(
            "has a path of more than 107 octets",
            "a Unix socket's path cannot be longer; use a shorter folder or a relative path",
        );
    }
    Ok(UpstreamUrl::Unix(PathBuf::from(path)))
}

/// Takes `host`, `host:port`, `[v6]`, `[v6]:port` apart.
fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("has a [ without ]")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("has no IPv6 address in its brackets");
        }
        let port = after.strip_prefix(':');
        if port.is_none() && !after.is_empty() {
            return Err("has something between ] and the port");
        }
        (host, port)
    } else {
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() {
            return Err("names no host");
        }
        if !host.bytes().all(fits) {
            return Err("has a host that is no name or address");
        }
        (host, port)
    };
    let number = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err("has a port that is no number from 1 to 65535"),
    };
    Ok((host, port.map(number).transpose()?))
}

#[cfg(test)]
mod tests;
