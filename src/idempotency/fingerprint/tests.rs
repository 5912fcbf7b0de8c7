//! What makes two requests differ, and what is said about it.

use super::*;
use crate::idempotency::policy::JsonPointer;

#[derive(Clone)]
struct Sent {
    method: Method,
    path: &'static str,
    query: Option<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    body: &'static str,
}

fn sent() -> Sent {
    Sent {
        method: Method::POST,
        path: "/pay",
        query: Some("a=1&b=2"),
        headers: vec![
            ("content-type", "application/json"),
            ("authorization", "Bearer me"),
        ],
        body: r#"{"amount":1}"#,
    }
}

fn of(sent: &Sent, policy: &FingerprintPolicy) -> Fingerprint {
    let mut headers = HeaderMap::new();
    for (name, value) in &sent.headers {
        headers.append(*name, value.parse().unwrap());
    }
    let subject = Subject {
        method: &sent.method,
        path: sent.path,
        query: sent.query,
        headers: &headers,
        body: sent.body.as_bytes(),
    };
    Fingerprint::of(subject, policy, None)
}

fn compare(one: &Sent, other: &Sent) -> Comparison {
    let policy = FingerprintPolicy::default();
    of(one, &policy).compare(&of(other, &policy))
}

fn differs(part: &str) -> Comparison {
    Comparison::Differs(vec![part.to_owned()])
}

#[test]
fn each_part_that_changes_is_named_and_nothing_else() {
    let one = sent();
    assert_eq!(compare(&one, &sent()), Comparison::Same);
    let changed = |change: fn(&mut Sent)| {
        let mut other = sent();
        change(&mut other);
        compare(&one, &other)
    };
    assert_eq!(changed(|s| s.method = Method::PUT), differs("method"));
    assert_eq!(changed(|s| s.path = "/Pay"), differs("path"));
    assert_eq!(changed(|s| s.query = Some("b=2&a=1")), differs("query"));
    assert_eq!(changed(|s| s.query = None), differs("query"));
    assert_eq!(
        changed(|s| s.headers[0].1 = "text/plain"),
        differs("header content-type")
    );
    assert_eq!(changed(|s| s.body = r#"{"amount":2}"#), differs("body"));
    assert_eq!(
        changed(|s| s.headers.push(("content-encoding", "gzip"))),
        differs("header content-encoding")
    );
    assert_eq!(
        changed(|s| s.headers.push(("x-http-method-override", "DELETE"))),
        differs("method override")
    );
    assert_eq!(
        changed(|s| s.headers.push(("x-trace", "1"))),
        Comparison::Same
    );
}

#[test]
fn other_credentials_hide_every_other_difference() {
    for change in [
        ("authorization", "Bearer you"),
        ("cookie", "a=b"),
        ("x-api-key", "k"),
    ] {
        let mut other = sent();
        other.headers.retain(|(name, _)| *name != change.0);
        other.headers.push(change);
        other.body = "another";
        assert_eq!(
            compare(&sent(), &other),
            Comparison::OtherCredentials,
            "{change:?}"
        );
    }
    let mut anonymous = sent();
    anonymous.headers.truncate(1);
    assert_eq!(compare(&sent(), &anonymous), Comparison::OtherCredentials);
}

#[test]
fn no_separator_moves_a_border() {
    let policy = FingerprintPolicy::default();
    let mut digests = Vec::new();
    for (path, query, body) in [
        ("/a", Some("b"), "c"),
        ("/ab", None, "c"),
        ("/a", Some("bc"), ""),
        ("/a", Some(""), "bc"),
        ("/a", None, "bc"),
        ("/a?b", None, "c"),
    ] {
        let sent = Sent {
            path,
            query,
            body,
            ..sent()
        };
        digests.push(of(&sent, &policy).digest);
    }
    let headers = [
        vec![("cookie", "a"), ("cookie", "b")],
        vec![("cookie", "ab")],
        vec![("cookie", "a; b")],
        vec![("cookie", "")],
        vec![],
    ];
    for headers in headers {
        digests.push(of(&Sent { headers, ..sent() }, &policy).digest);
    }
    let count = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), count);
}

#[test]
fn json_bodies_compare_by_meaning_and_never_equal_raw_ones() {
    let policy = FingerprintPolicy {
        body: BodyMode::Json,
        ignore: vec![JsonPointer::parse("/sent_at").unwrap()],
        ..FingerprintPolicy::default()
    };
    let with = |body| of(&Sent { body, ..sent() }, &policy);
    let one = with(r#"{"amount": 1, "to": "x", "sent_at": 1}"#);
    assert_eq!(
        one.compare(&with(r#"{"to":"x","amount":1.0,"sent_at":2}"#)),
        Comparison::Same
    );
    assert_eq!(
        one.compare(&with(r#"{"to":"x","amount":2}"#)),
        differs("body")
    );
    // Not JSON: octets.
    assert_eq!(with("{oops ").compare(&with("{oops")), differs("body"));
    assert_eq!(with("{oops").compare(&with("{oops")), Comparison::Same);
    // A raw body that reads like a canonical form is another body.
    let ambiguous = r#"{"a":1,"a":1}"#;
    assert_eq!(
        with(r#"{"a":1}"#).compare(&with(ambiguous)),
        differs("body")
    );
}

#[test]
fn another_profile_compares_what_both_have() {
    let old = FingerprintPolicy::default();
    let mut new = FingerprintPolicy::default();
    new.headers.push(HeaderName::from_static("if-match"));
    new.query = false;
    let mut other = sent();
    other.headers.push(("if-match", "\"1\""));
    other.query = Some("else");
    assert_eq!(
        of(&sent(), &old).compare(&of(&other, &new)),
        Comparison::Same
    );
    other.body = "else";
    assert_eq!(
        of(&sent(), &old).compare(&of(&other, &new)),
        differs("body")
    );
    other.headers[1].1 = "Bearer you";
    assert_eq!(
        of(&sent(), &old).compare(&of(&other, &new)),
        Comparison::OtherCredentials
    );
}

#[test]
fn the_body_can_be_left_out() {
    let policy = FingerprintPolicy {
        body: BodyMode::None,
        ..FingerprintPolicy::default()
    };
    let other = Sent {
        body: "else",
        ..sent()
    };
    assert_eq!(
        of(&sent(), &policy).compare(&of(&other, &policy)),
        Comparison::Same
    );
}

#[test]
fn part_numbers_are_stored_so_they_never_change() {
    let kinds = [
        PartKind::Method,
        PartKind::Path,
        PartKind::Query,
        PartKind::Header,
        PartKind::Override,
        PartKind::Body,
        PartKind::Caller,
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        assert_eq!(kind as usize, at + 1);
        assert_eq!(PartKind::from_number(kind as u8), Some(kind));
    }
    assert_eq!(PartKind::from_number(0), None);
    assert_eq!(PartKind::from_number(8), None);
}
