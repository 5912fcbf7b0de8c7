//! R21, R26: which fields travel, which end here, which may not be named by Connection.

use http::header::{self, HeaderMap, HeaderName};

use super::policy::Policy;

/// R27: fields that make an upstream see another method.
const METHOD_OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Whether a field makes an upstream see another method, in the spelling of the rule or with the
/// underscores that many upstreams fold into it (R5).
pub fn is_method_override(name: &str) -> bool {
    METHOD_OVERRIDES.contains(&name.replace('_', "-").as_str())
}

/// Our own response fields: an upstream's are removed (R9), an answer of ours may carry them.
pub const OWN_RESPONSE_FIELDS: [&str; 7] = [
    "idempotency-status",
    "idempotency-expires",
    "idempotency-attempt",
    "idempotent-replayed",
    "retrysafe-code",
    "retrysafe-outcome",
    "retrysafe-retryable",
];

/// Fields that end at each hop, nominated or not (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "proxy-authenticate",
    "proxy-authorization",
];

/// The names that `Connection` nominates, in lower case.
pub fn nominated(headers: &HeaderMap) -> impl Iterator<Item = String> + '_ {
    headers
        .get_all(header::CONNECTION)
        .into_iter()
        .flat_map(|line| line.as_bytes().split(|octet| *octet == b','))
        .map(|token| String::from_utf8_lossy(token.trim_ascii()).to_ascii_lowercase())
        .filter(|token| !token.is_empty())
}

/// R26: the first nominated field that carries meaning past this hop, if any.
pub fn forbidden_nomination(headers: &HeaderMap, policy: &Policy) -> Option<String> {
    nominated(headers).find(|name| is_protected(name, policy))
}

fn is_protected(name: &str, policy: &Policy) -> bool {
    const FIXED: [&str; 6] = [
        "host",
        "authorization",
        "cookie",
        "forwarded",
        "via",
        "date",
    ];
    FIXED.contains(&name)
        || name.starts_with("content-")
        || name.starts_with("x-forwarded-")
        || is_method_override(name)
        || policy.key.header == name
        || policy.key.aliases.iter().any(|alias| alias == name)
        || policy.fingerprint.headers.iter().any(|field| field == name)
        || policy.fingerprint.caller.iter().any(|field| field == name)
        || policy.scope.iter().any(|part| part.reads_field(name))
}

/// Removes what ends at this hop. `TE` is the caller's to set again.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<_> = nominated(headers).collect();
    retain(headers, |name| {
        !HOP_BY_HOP.contains(&name.as_str())
            && !named.iter().any(|nominated| name.as_str() == nominated)
    });
}

/// Keeps the fields that `keep` accepts, in their order: `HeaderMap::remove` would move others.
pub fn retain(headers: &mut HeaderMap, keep: impl Fn(&HeaderName) -> bool) {
    if headers.keys().all(&keep) {
        return;
    }
    let all = std::mem::take(headers);
    headers.reserve(all.keys_len());
    let mut current = None;
    for (name, value) in all {
        // A repeated field comes with its name only once.
        if let Some(name) = name {
            current = keep(&name).then_some(name);
        }
        if let Some(name) = &current {
            headers.append(name, value);
        }
    }
}

/// Whether `TE` asks for trailers.
pub fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::TE)
        .into_iter()
        .flat_map(|line| line.as_bytes().split(|octet| *octet == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// R27: names that may not stand in a trailer section (RFC 9110 section 6.5.1).
pub fn forbidden_in_trailers(name: &HeaderName) -> bool {
    const FORBIDDEN: [HeaderName; 12] = [
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::CONTENT_TYPE,
        header::CONTENT_RANGE,
        header::HOST,
        header::TRAILER,
        header::TE,
        header::CONNECTION,
        header::SET_COOKIE,
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
    ];
    FORBIDDEN.contains(name) || HOP_BY_HOP.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn nominated_and_known_hop_by_hop_fields_go_the_rest_stays() {
        let mut headers = map(&[
            ("connection", "close, X-One"),
            ("connection", ",x-TWO ,, keep-alive"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAM"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["x-three"]
        );
    }

    #[test]
    fn fields_with_meaning_may_not_be_nominated() {
        let policy = Policy::default();
        for name in [
            "Host",
            "Content-Length",
            "Idempotency-Key",
            "authorization",
            "X-Forwarded-For",
            "x-api-key",
            "X-HTTP-Method-Override",
            "Via",
            "Date",
            "Cookie",
            "Forwarded",
        ] {
            let mut headers = HeaderMap::new();
            headers.append("connection", format!("close, {name}").parse().unwrap());
            assert_eq!(
                forbidden_nomination(&headers, &policy),
                Some(name.to_ascii_lowercase())
            );
        }
        assert_eq!(
            forbidden_nomination(&map(&[("connection", "close, x-mine")]), &policy),
            None
        );
    }

    #[test]
    fn a_method_override_is_known_with_underscores_too() {
        for name in [
            "x-http-method-override",
            "x_http_method_override",
            "x-http_method",
        ] {
            assert!(is_method_override(name), "{name}");
        }
        assert!(!is_method_override("x-http-methods") && !is_method_override("method"));
    }

    #[test]
    fn te_is_read_as_a_list() {
        assert!(accepts_trailers(&map(&[("te", "gzip, Trailers")])));
        assert!(!accepts_trailers(&map(&[("te", "gzip")])));
    }
}
