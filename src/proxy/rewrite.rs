//! Heads on their way through (R5, R9, R21, R26, R27): what is removed, added, kept.

use std::net::SocketAddr;

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{HeaderName, Method, Uri, Version, response};
use ipnet::IpNet;

use super::request::Target;
use super::{HostHeader, Settings, Underscores};
use crate::idempotency::headers::{
    OWN_RESPONSE_FIELDS, accepts_trailers, forbidden_in_trailers, remove_hop_by_hop, retain,
};
use crate::idempotency::policy::{KeyUpstream, Policy};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// R9.
pub(super) const ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");

/// Turns a client's head into one for the upstream.
pub(super) fn to_upstream(
    parts: &mut Parts,
    target: &Target,
    peer: SocketAddr,
    settings: &Settings,
    upstream_host: &str,
) {
    // RFC 9110 section 7.6.3: the version the request came with.
    let via = match parts.version {
        Version::HTTP_10 => "1.0 retrysafe",
        Version::HTTP_2 => "2.0 retrysafe",
        _ => "1.1 retrysafe",
    };
    parts.version = Version::HTTP_11;
    parts.uri = origin_form(&parts.uri);
    let trailers = accepts_trailers(&parts.headers);
    remove_hop_by_hop(&mut parts.headers);
    if settings.underscores == Underscores::Drop {
        drop_underscores(&mut parts.headers);
    }
    // R9: the attempt is ours to say.
    parts.headers.remove(&ATTEMPT);
    if trailers {
        parts
            .headers
            .insert(header::TE, HeaderValue::from_static("trailers"));
        parts
            .headers
            .insert(header::CONNECTION, HeaderValue::from_static("te"));
    }
    parts
        .headers
        .append(header::VIA, HeaderValue::from_static(via));
    let trusted = settings
        .trusted_proxies
        .iter()
        .any(|net: &IpNet| net.contains(&peer.ip().to_canonical()));
    let proto = if settings.tls { "https" } else { "http" };
    forwarded(&mut parts.headers, target, (peer, proto), trusted);
    let host = match (settings.upstream.host_header, &target.authority) {
        (HostHeader::Preserve, Some(authority)) => authority.as_str(),
        _ => upstream_host,
    };
    if let Ok(host) = HeaderValue::from_str(host) {
        parts.headers.insert(header::HOST, host);
    }
}

/// What a covered request has beside that (R9, R12, R28).
pub(super) fn covered(parts: &mut Parts, policy: &Policy, body: &[u8]) {
    let announced = parts.headers.contains_key(header::CONTENT_LENGTH);
    let strip = policy.key.upstream == KeyUpstream::Strip;
    retain(&mut parts.headers, |name| {
        let is_key = policy.key.header == name || policy.key.aliases.contains(name);
        // The body is sent whole: its length is ours to say, and trailers are not passed on.
        let ours = [header::EXPECT, header::CONTENT_LENGTH, header::TRAILER].contains(name);
        !(ours || strip && is_key)
    });
    if body.is_empty() && announced {
        parts.headers.insert(header::CONTENT_LENGTH, 0.into());
    } else if body.is_empty() {
        length_of_nothing(parts);
    }
}

/// The library says nothing of an empty body; without a length some servers answer 411 (RFC 9110
/// section 8.6). HTTP/2 has no need of one, so its requests come without.
pub(super) fn length_of_nothing(parts: &mut Parts) {
    if [Method::POST, Method::PUT, Method::PATCH].contains(&parts.method) {
        parts.headers.insert(header::CONTENT_LENGTH, 0.into());
    }
}

fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// R5: upstreams fold `_` and `-`, so such a name could pass for another.
fn drop_underscores(headers: &mut HeaderMap) {
    retain(headers, |name| !name.as_str().contains('_'));
}

/// `peer`: who connected, and how.
fn forwarded(
    headers: &mut HeaderMap,
    target: &Target,
    (peer, proto): (SocketAddr, &'static str),
    trusted: bool,
) {
    let address = peer.ip().to_canonical().to_string();
    let before: Vec<String> = headers
        .get_all(&FORWARDED_FOR)
        .iter()
        .filter(|_| trusted)
        .map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned())
        .collect();
    let chain = before
        .into_iter()
        .chain([address])
        .collect::<Vec<_>>()
        .join(", ");
    if let Ok(chain) = HeaderValue::from_str(&chain) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if !trusted || !headers.contains_key(&FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    if !trusted || !headers.contains_key(&FORWARDED_HOST) {
        headers.remove(&FORWARDED_HOST);
        let host = target.authority.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(host)) = host {
            headers.insert(FORWARDED_HOST, host);
        }
    }
    if !trusted {
        headers.remove(header::FORWARDED);
        for name in [
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-server",
        ] {
            headers.remove(name);
        }
    }
}

/// Turns an upstream's head into one for the client: end-to-end fields, Date, our version.
pub(super) fn to_client(
    parts: &mut response::Parts,
    marker: Option<&HeaderName>,
    now: HeaderValue,
) {
    parts.version = Version::HTTP_11;
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        // A length beside chunked is false (RFC 9112 section 6.3).
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    remove_hop_by_hop(&mut parts.headers);
    retain(&mut parts.headers, |name| {
        !OWN_RESPONSE_FIELDS.contains(&name.as_str()) && marker != Some(name)
    });
    if !parts.headers.contains_key(header::DATE) {
        parts.headers.insert(header::DATE, now);
    }
}

/// R9, R27: trailers without our own fields, and without the names that may not stand there.
pub(super) fn trailers(mut fields: HeaderMap) -> Option<HeaderMap> {
    retain(&mut fields, |name| {
        !forbidden_in_trailers(name) && !OWN_RESPONSE_FIELDS.contains(&name.as_str())
    });
    (!fields.is_empty()).then_some(fields)
}

/// `Date` and `Idempotency-Expires`: IMF-fixdate of a Unix time in milliseconds.
pub(super) fn imf_fixdate(unix_millis: u64) -> Option<HeaderValue> {
    // Beyond the year 9999 there is no such date.
    let seconds = (unix_millis / 1000).min(253_402_300_799);
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    HeaderValue::from_str(&httpdate::fmt_http_date(at)).ok()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn an_untrusted_peer_says_nothing_about_who_it_is() {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "6.6.6.6".parse().unwrap());
        headers.insert("x-forwarded-proto", "https".parse().unwrap());
        headers.insert("x-forwarded-host", "evil".parse().unwrap());
        headers.insert("forwarded", "for=6.6.6.6".parse().unwrap());
        let target = Target {
            authority: Some("api.test".into()),
        };
        let mut trusted = headers.clone();
        let peer = "10.1.1.1:5".parse().unwrap();
        let mut over_tls = headers.clone();
        forwarded(&mut over_tls, &target, (peer, "https"), false);
        assert_eq!(over_tls["x-forwarded-proto"], "https");
        forwarded(&mut headers, &target, (peer, "http"), false);
        assert_eq!(headers["x-forwarded-for"], "10.1.1.1");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "api.test");
        assert!(!headers.contains_key("forwarded"));
        forwarded(&mut trusted, &target, (peer, "http"), true);
        assert_eq!(trusted["x-forwarded-for"], "6.6.6.6, 10.1.1.1");
        assert_eq!(trusted["x-forwarded-proto"], "https");
        assert_eq!(trusted["x-forwarded-host"], "evil");
        assert!(trusted.contains_key("forwarded"));
    }

    #[test]
    fn the_target_goes_up_in_origin_form_to_the_octet() {
        for (sent, expected) in [
            ("http://h/a%2Fb//c?x=1&y", "/a%2Fb//c?x=1&y"),
            ("http://h", "/"),
            ("/p/%7Euser?", "/p/%7Euser?"),
            ("*", "*"),
        ] {
            let uri = Request::builder()
                .uri(sent)
                .body(())
                .unwrap()
                .into_parts()
                .0
                .uri;
            assert_eq!(origin_form(&uri).to_string(), expected);
        }
    }

    #[test]
    fn an_empty_body_has_a_length_where_one_is_expected() {
        let length = |method: &str, announced: Option<&str>, body: &[u8]| {
            let mut request = Request::builder().method(method);
            if let Some(announced) = announced {
                request = request.header("content-length", announced);
            }
            let mut parts = request.body(()).unwrap().into_parts().0;
            covered(&mut parts, &Policy::default(), body);
            let length = parts.headers.get("content-length");
            length.map(|length| length.to_str().unwrap().to_owned())
        };
        assert_eq!(length("POST", Some("0"), b"").as_deref(), Some("0"));
        assert_eq!(length("POST", None, b"").as_deref(), Some("0"));
        assert_eq!(length("DELETE", Some("0"), b"").as_deref(), Some("0"));
        assert_eq!(length("DELETE", None, b""), None);
        assert_eq!(length("POST", Some("5"), b"hello"), None);
    }

    #[test]
    fn dates_are_imf_fixdate() {
        assert_eq!(
            imf_fixdate(784_111_777_000).unwrap(),
            "Sun, 06 Nov 1994 08:49:37 GMT"
        );
        assert!(imf_fixdate(u64::MAX).is_some());
    }
}
