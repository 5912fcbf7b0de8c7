//! What a request must be before any rule looks at it (R1, R26, R27), and who sent it.
//!
//! Everything here is decided from the head alone.

use std::net::{IpAddr, SocketAddr};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderName, Method, Version};
use ipnet::IpNet;

use crate::idempotency::headers::{forbidden_nomination, is_method_override};
use crate::idempotency::policy::{Policy, ScopePart, covered_methods};
use crate::idempotency::scope::ScopeValue;
use crate::proxy::problem::{Code, Problem};

/// Clients leave the padding out or not; the user is the same.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// R27: the host a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// As it goes upstream; `None` for HTTP/1.0 without Host.
    pub authority: Option<String>,
}

impl Target {
    /// The host without port, for matching.
    pub(super) fn host(&self) -> &str {
        let authority = self.authority.as_deref().unwrap_or_default();
        if let Some(end) = authority.find(']') {
            return authority.get(..=end).unwrap_or(authority);
        }
        authority
            .split_once(':')
            .map_or(authority, |(host, _)| host)
    }
}

/// Checks the head of a request.
pub(super) fn inspect(parts: &Parts) -> Result<Target, Problem> {
    method(&parts.method, &covered_methods())?;
    transfer_encoding(&parts.headers)?;
    form(parts)?;
    let path_and_query = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if !path_and_query.is_ascii() {
        return Err(Problem::malformed(
            "The request target holds octets outside ASCII; they must be percent-encoded.",
        ));
    }
    target(parts)
}

/// R1: no CONNECT, and no covered method in another case.
pub(super) fn method(method: &Method, covered: &[Method]) -> Result<(), Problem> {
    let refused = |detail: String| Err(Problem::new(Code::MethodNotSupported, detail));
    if *method == Method::CONNECT {
        return refused("CONNECT is not available here.".to_owned());
    }
    let near = covered
        .iter()
        .find(|known| *known != method && known.as_str().eq_ignore_ascii_case(method.as_str()));
    match near {
        Some(known) => refused(format!("Methods are case-sensitive: send {known}.")),
        None => Ok(()),
    }
}

/// RFC 9112 section 3.2: `*` is for OPTIONS alone, a bare authority for CONNECT alone.
fn form(parts: &Parts) -> Result<(), Problem> {
    let asterisk = parts.uri.path() == "*" && parts.method != Method::OPTIONS;
    let authority = parts.uri.authority().is_some() && parts.uri.scheme().is_none();
    if asterisk || authority {
        return Err(Problem::malformed(
            "The request target must be a path or an absolute URI.",
        ));
    }
    Ok(())
}

fn transfer_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    if only_chunked(headers) {
        return Ok(());
    }
    Err(Problem::malformed(
        "The only transfer coding accepted is chunked, applied once.",
    ))
}

/// Whether the body has no transfer coding, or chunked alone: hyper undoes no other.
pub(super) fn only_chunked(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = lines.next();
    let chunked = |line: &HeaderValue| {
        line.as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked")
    };
    first.is_none_or(chunked) && lines.next().is_none()
}

fn target(parts: &Parts) -> Result<Target, Problem> {
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let host = lines.next();
    if lines.next().is_some() {
        return Err(Problem::malformed(
            "The request has more than one Host field.",
        ));
    }
    let named = host.is_some() || parts.uri.authority().is_some();
    let must_be_named = match parts.version {
        Version::HTTP_11 => host.is_none(),
        Version::HTTP_2 => !named,
        _ => false,
    };
    if must_be_named {
        return Err(Problem::malformed("The request names no host."));
    }
    let host = match host {
        None => None,
        Some(value) => Some(authority(value.as_bytes())?),
    };
    let absolute = match parts.uri.authority() {
        Some(absolute) => Some(authority(absolute.as_str().as_bytes())?),
        None => None,
    };
    if parts.version == Version::HTTP_2
        && let (Some(absolute), Some(host)) = (&absolute, &host)
        && !absolute.eq_ignore_ascii_case(host)
    {
        // RFC 9113 section 8.3.1: which of the two an upstream believed would be chance.
        return Err(Problem::malformed(
            "The Host field is not the request's :authority.",
        ));
    }
    // The absolute form wins (RFC 9112 section 3.2.2).
    Ok(Target {
        authority: absolute.or(host),
    })
}

fn authority(value: &[u8]) -> Result<String, Problem> {
    let invalid = || Problem::malformed("The Host field is not a valid host.");
    let text = std::str::from_utf8(value).map_err(|_| invalid())?;
    let parsed: Authority = text.parse().map_err(|_| invalid())?;
    let port_ok = match text.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.is_empty() || parsed.port_u16().is_some(),
        _ => true,
    };
    // A comma is valid in a name, but it is what two Host lines look like once joined.
    if parsed.host().is_empty() || text.contains(['@', ',']) || !port_ok {
        return Err(invalid());
    }
    Ok(text.to_owned())
}

/// R27: HTTP/2 sends a cookie in crumbs; joined they are what HTTP/1.1 sends (RFC 9113 section
/// 8.2.3), so that a retry over the other version is the same request.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers.get_all(header::COOKIE).iter().cloned().collect();
    if crumbs.len() < 2 {
        return;
    }
    let joined = crumbs
        .iter()
        .map(HeaderValue::as_bytes)
        .collect::<Vec<_>>()
        .join(&b"; "[..]);
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(header::COOKIE, joined);
    }
}

/// R26: fields that carry meaning past this hop may not be nominated by Connection.
pub(super) fn nominations(headers: &HeaderMap, policy: &Policy) -> Result<(), Problem> {
    match forbidden_nomination(headers, policy) {
        None => Ok(()),
        Some(name) => Err(Problem::malformed(format!(
            "Connection may not nominate {name}."
        ))),
    }
}

/// R27: a covered path may not be reached by an override of an uncovered method.
pub(super) fn no_method_override(headers: &HeaderMap) -> Result<(), Problem> {
    match headers
        .keys()
        .find(|name| is_method_override(name.as_str()))
    {
        None => Ok(()),
        Some(name) => Err(Problem::malformed(format!(
            "{name} is not accepted here: send the method itself, so that its retries are protected."
        ))),
    }
}

/// R28: the only expectation there is.
pub(super) fn expectation(headers: &HeaderMap) -> Result<(), Problem> {
    let known = |line: &HeaderValue| {
        line.as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"100-continue")
    };
    if headers.get_all(header::EXPECT).iter().all(known) {
        return Ok(());
    }
    Err(Problem::new(
        Code::ExpectationFailed,
        "The only expectation known here is 100-continue.",
    ))
}

/// The client's address: the peer's, or what a trusted peer says (R26).
pub(super) fn client_ip(peer: SocketAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let peer = peer.ip().to_canonical();
    if !is_trusted(&peer) {
        return peer;
    }
    let hops = headers
        .get_all(HeaderName::from_static("x-forwarded-for"))
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(|hop| hop.trim().parse::<IpAddr>())
        .collect::<Vec<_>>();
    let mut client = peer;
    for hop in hops.into_iter().rev() {
        let Ok(hop) = hop else { break };
        client = hop.to_canonical();
        if !is_trusted(&client) {
            break;
        }
    }
    client
}

/// R8: the values of the scope. A repeated part is 400.
pub(super) fn scope(
    parts: &[ScopePart],
    headers: &HeaderMap,
    client: IpAddr,
    route: &str,
) -> Result<Vec<ScopeValue>, Problem> {
    parts
        .iter()
        .map(|part| {
            let value = match part {
                ScopePart::Header(name) => single(headers, name)?.map(<[u8]>::to_vec),
                ScopePart::Cookie(name) => cookie(headers, name)?,
                ScopePart::BasicUser => basic_user(headers)?,
                ScopePart::ClientIp => Some(client.to_string().into_bytes()),
                ScopePart::Route => Some(route.as_bytes().to_vec()),
            };
            Ok(ScopeValue {
                name: part.to_string(),
                value,
            })
        })
        .collect()
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Problem> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next().map(HeaderValue::as_bytes);
    if lines.next().is_some() {
        return Err(Problem::malformed(format!(
            "{name} may be sent only once here."
        )));
    }
    Ok(first)
}

fn cookie(headers: &HeaderMap, name: &str) -> Result<Option<Vec<u8>>, Problem> {
    let mut found = headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|octet| *octet == b';'))
        .filter_map(|pair| {
            let pair = pair.trim_ascii();
            let at = pair.iter().position(|octet| *octet == b'=')?;
            let (key, value) = pair.split_at(at);
            (key == name.as_bytes()).then(|| value.get(1..).unwrap_or_default().to_vec())
        });
    let first = found.next();
    if found.next().is_some() {
        return Err(Problem::malformed(format!(
            "Cookie {name} may be sent only once here."
        )));
    }
    Ok(first)
}

/// The user of HTTP Basic credentials (RFC 7617).
fn basic_user(headers: &HeaderMap) -> Result<Option<Vec<u8>>, Problem> {
    let Some(value) = single(headers, &header::AUTHORIZATION)? else {
        return Ok(None);
    };
    let Some((scheme, encoded)) = value.split_at_checked(6) else {
        return Ok(None);
    };
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return Ok(None);
    }
    let Ok(mut decoded) = BASE64.decode(encoded.trim_ascii()) else {
        return Ok(None);
    };
    if let Some(at) = decoded.iter().position(|octet| *octet == b':') {
        decoded.truncate(at);
    }
    Ok(Some(decoded))
}

#[cfg(test)]
mod tests;
