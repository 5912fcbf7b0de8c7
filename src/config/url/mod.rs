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
use crate::store::{REDIS_SCHEMES, StoreUrl, check_redis_url, host_and_port};

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

/// Parses `memory:`, `file:PATH`, the forms of a Redis (`store/redis/address.rs`) and
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
        "rediss+unix" => redis(text),
        scheme if REDIS_SCHEMES.contains(&scheme) => redis(text),
        "postgres" | "postgresql" => match rest.strip_prefix("//") {
            Some(rest) => Ok(StoreUrl::Postgres(Box::new(postgres::postgres(rest)?))),
            None => wrong(
                format!("lacks the two slashes after `{scheme}:`"),
                STORE_HELP,
            ),
        },
        other => match nearest(other, known()) {
            Some(_) => wrong("misspells its scheme", STORE_HELP),
            None => wrong("does not begin with a known scheme", STORE_HELP),
        },
    }
}

fn redis(text: &str) -> Result<StoreUrl, UrlError> {
    match check_redis_url(text) {
        Ok(()) => Ok(StoreUrl::Redis(text.to_owned())),
        Err(found) => wrong(found.message, found.help),
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    ["memory", "file"].into_iter().chain(REDIS_SCHEMES)
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

#[cfg(test)]
mod tests;
