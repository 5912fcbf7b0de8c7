//! R26: what ends at this hop is gone, everything else is there as it was.

use http::{HeaderMap, HeaderName, HeaderValue};
use retrysafe::idempotency::Policy;
use retrysafe::idempotency::headers::{forbidden_nomination, remove_hop_by_hop};

const ENDS_HERE: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
];
const KEPT: [&str; 5] = [
    "host",
    "authorization",
    "cookie",
    "content-type",
    "idempotency-key",
];

/// The octets are field lines.
pub fn check(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|octet| *octet == b'\n').take(64) {
        let mut parts = line.splitn(2, |octet| *octet == b':');
        let name = parts
            .next()
            .and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts
            .next()
            .and_then(|value| HeaderValue::from_bytes(value).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let nominated: Vec<String> = headers
        .get_all("connection")
        .iter()
        .flat_map(|line| line.as_bytes().split(|octet| *octet == b','))
        .map(|token| String::from_utf8_lossy(token.trim_ascii()).to_ascii_lowercase())
        .collect();
    let refused = forbidden_nomination(&headers, &Policy::default()).is_some();
    let before = headers.clone();
    remove_hop_by_hop(&mut headers);
    for name in headers.keys() {
        assert!(
            !nominated.iter().any(|other| name == other.as_str()),
            "{name} was nominated"
        );
        assert!(!ENDS_HERE[..2].contains(&name.as_str()), "{name} ends here");
    }
    if !refused {
        for name in KEPT {
            let (was, is): (Vec<_>, Vec<_>) = (
                before.get_all(name).iter().collect(),
                headers.get_all(name).iter().collect(),
            );
            assert_eq!(was, is, "{name} carries meaning");
        }
    }
    // The rest, with its repeats, in its order.
    let rest = before
        .iter()
        .filter(|(name, _)| headers.contains_key(*name));
    assert!(rest.eq(headers.iter()));
}
