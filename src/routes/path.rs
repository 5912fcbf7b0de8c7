//! The normalised copy of a path that routes are matched on (R2).
//!
//! Unreserved octets are percent-decoded, dot segments resolved, slashes merged. The raw target is
//! what is forwarded; where the two would match differently the request is refused.

/// A path as sent and as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Normalised {
    /// The segments after normalisation.
    pub segments: Vec<String>,
    /// The path holds `%2F`, `%5C` or a dot segment (encoded or not): upstreams disagree on it.
    pub suspicious: bool,
}

/// Splits a raw path into its segments, as they stand.
pub(super) fn raw_segments(path: &str) -> Vec<String> {
    path.strip_prefix('/')
        .unwrap_or(path)
        .split('/')
        .map(str::to_owned)
        .collect()
}

/// Normalises a raw path.
pub(super) fn normalise(path: &str) -> Normalised {
    let mut suspicious = false;
    let mut segments: Vec<String> = Vec::new();
    let mut ends_open = false;
    for raw in path.strip_prefix('/').unwrap_or(path).split('/') {
        let segment = decode_unreserved(raw);
        let lower = raw.to_ascii_lowercase();
        suspicious |= lower.contains("%2f") || lower.contains("%5c") || raw.contains('\\');
        ends_open = false;
        match segment.as_str() {
            "" => ends_open = true,
            "." => {
                suspicious = true;
                ends_open = true;
            }
            ".." => {
                suspicious = true;
                ends_open = true;
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    if ends_open {
        // A trailing slash is a segment of its own: `/a/` is not `/a`.
        segments.push(String::new());
    }
    Normalised {
        segments,
        suspicious,
    }
}

/// The segments that an upstream sees which takes encoded and reversed slashes for slashes.
pub(super) fn loosely(path: &str) -> Vec<String> {
    let mut read = path.replace('\\', "/");
    for slash in ["%2f", "%2F", "%5c", "%5C"] {
        read = read.replace(slash, "/");
    }
    normalise(&read).segments
}

/// The segments that the most generous upstream sees: one that decodes everything, strips path
/// parameters (`;x=1`, as Java servers do), folds letter case and a slash at the end (as Express
/// does). No upstream does all of it; what is the same here may be the same there.
pub(super) fn generously(path: &str) -> Vec<String> {
    let mut read = String::with_capacity(path.len());
    for segment in decoded(&path.replace('\\', "/"))
        .replace('\\', "/")
        .split('/')
    {
        let bare = segment.split(';').next().unwrap_or_default();
        read.push('/');
        read.push_str(&bare.to_lowercase());
    }
    let mut segments = normalise(&read).segments;
    segments.pop_if(|last| last.is_empty());
    segments
}

/// Every escape decoded, once.
fn decoded(path: &str) -> String {
    let mut octets = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        octets.push(escaped.unwrap_or(*first));
        rest = match escaped {
            Some(_) => after.get(2..).unwrap_or_default(),
            None => after,
        };
    }
    // What is no text compares as what stands for it: no literal of a route holds that.
    String::from_utf8_lossy(&octets).into_owned()
}

/// Decodes `%XX` where XX is an unreserved character (RFC 3986 section 2.3); other escapes are
/// only put in upper case.
fn decode_unreserved(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    let mut rest = segment;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let value = escape
            .get(1..3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (value, escape.get(..3)) {
            (Some(octet), Some(_)) if is_unreserved(octet) => out.push(char::from(octet)),
            (Some(_), Some(written)) => out.push_str(&written.to_ascii_uppercase()),
            _ => {
                out.push('%');
                rest = escape.get(1..).unwrap_or_default();
                continue;
            }
        }
        rest = escape.get(3..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn is_unreserved(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"-._~".contains(&octet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(path: &str) -> Vec<String> {
        normalise(path).segments
    }

    #[test]
    fn spellings_of_one_path_are_one() {
        for path in [
            "/v1/orders",
            "//v1/orders",
            "/v1//orders",
            "/v1/./orders",
            "/v1/x/../orders",
            "/v1/%6Frders",
            "/%76%31/orders",
            "/v1/%2e/orders",
            "/v1/x/%2E%2e/orders",
        ] {
            assert_eq!(segments(path), ["v1", "orders"], "{path}");
        }
    }

    #[test]
    fn a_trailing_slash_and_letter_case_make_another_path() {
        assert_eq!(segments("/v1/orders/"), ["v1", "orders", ""]);
        assert_eq!(segments("/v1/orders/."), ["v1", "orders", ""]);
        assert_eq!(segments("/V1/orders"), ["V1", "orders"]);
        assert_eq!(segments("/"), [""]);
        assert_eq!(segments("/.."), [""]);
    }

    #[test]
    fn the_most_generous_reading_takes_many_spellings_for_one() {
        for path in [
            "/v1/orders",
            "/v1/orders/",
            "/V1/Orders",
            "/v1;a=1/orders;b=2",
            "/v1/orders;",
            "/v1/orders%3Bb",
            "/v1%2Forders",
            "/v1/%4f%52ders",
            "/v1/x/..;/orders",
            "//v1\\orders//",
        ] {
            assert_eq!(generously(path), ["v1", "orders"], "{path}");
        }
        assert_eq!(generously("/a%zz%4"), ["a%zz%4"]);
        assert_eq!(generously("/"), [""; 0]);
        assert_ne!(generously("/v1/orders%FF"), ["v1", "orders"]);
    }

    #[test]
    fn what_upstreams_disagree_on_is_suspicious() {
        for path in [
            "/a%2Fb",
            "/a/../b",
            "/a/./b",
            "/%2e%2e/b",
            "/a%5cb",
            "/a\\b",
        ] {
            assert!(normalise(path).suspicious, "{path}");
        }
        for path in ["/a//b", "/a%20b", "/a/b.c", "/...", "/%7Euser"] {
            assert!(!normalise(path).suspicious, "{path}");
        }
    }

    #[test]
    fn broken_escapes_are_kept() {
        assert_eq!(segments("/a%zz%4"), ["a%zz%4"]);
        assert_eq!(segments("/a%e4%"), ["a%E4%"]);
        assert_eq!(segments("/%\u{e9}%41"), ["%\u{e9}A"]);
    }
}
