//! Heads that are refused, and what is taken from the others.

use http::Request;

use super::*;

fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

#[test]
fn connect_and_methods_in_another_case_are_refused() {
    for method in ["CONNECT", "post", "Put", "patcH", "dELETE"] {
        let uri = if method == "CONNECT" { "h:1" } else { "/" };
        let problem = inspect(&head(method, uri, &[("host", "h")])).unwrap_err();
        assert_eq!(problem.code, Code::MethodNotSupported, "{method}");
    }
    for method in ["POST", "GET", "BREW", "get"] {
        inspect(&head(method, "/", &[("host", "h")])).unwrap();
    }
}

#[test]
fn hosts_must_be_one_and_valid() {
    for good in [
        "h",
        "h:80",
        "api.example.com",
        "[::1]",
        "[::1]:8080",
        "10.0.0.1:9",
    ] {
        let target = inspect(&head("GET", "/", &[("host", good)])).unwrap();
        assert_eq!(target.authority.as_deref(), Some(good));
    }
    for bad in ["", "a b", "a/b", "user@h", "h:x", "h:99999", "a,b", "h?x"] {
        assert!(
            inspect(&head("GET", "/", &[("host", bad)])).is_err(),
            "{bad:?}"
        );
    }
    assert!(inspect(&head("GET", "/", &[("host", "a"), ("host", "a")])).is_err());
    assert!(inspect(&head("GET", "/", &[])).is_err());
}

#[test]
fn the_absolute_form_wins_and_the_host_is_matched_without_port() {
    let target = inspect(&head("GET", "http://abs.test:81/x", &[("host", "other")])).unwrap();
    assert_eq!(target.authority.as_deref(), Some("abs.test:81"));
    assert_eq!(target.host(), "abs.test");
    let target = inspect(&head("GET", "/x", &[("host", "[::1]:81")])).unwrap();
    assert_eq!(target.host(), "[::1]");
}

#[test]
fn chunked_once_is_the_only_transfer_coding() {
    let te = |values: &[&str]| {
        let fields: Vec<_> = std::iter::once(("host", "h"))
            .chain(values.iter().map(|value| ("transfer-encoding", *value)))
            .collect();
        inspect(&head("POST", "/", &fields))
    };
    te(&["chunked"]).unwrap();
    te(&["Chunked"]).unwrap();
    for bad in [
        &["gzip, chunked"][..],
        &["chunked, chunked"],
        &["chunked", "chunked"],
        &["identity"],
    ] {
        assert!(te(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn forwarded_addresses_count_only_from_trusted_peers() {
    let parts = head(
        "GET",
        "/",
        &[
            ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
            ("x-forwarded-for", "10.0.0.9"),
        ],
    );
    let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
    let ip = |peer: &str| client_ip(peer.parse().unwrap(), &parts.headers, &trusted).to_string();
    assert_eq!(ip("9.9.9.9:1"), "9.9.9.9");
    assert_eq!(ip("10.0.0.1:1"), "2.2.2.2");
    assert_eq!(ip("[::ffff:10.0.0.1]:1"), "2.2.2.2");
}

#[test]
fn scope_values_come_from_their_fields_and_may_not_be_repeated() {
    let parts = [
        ScopePart::Header(HeaderName::from_static("x-tenant")),
        ScopePart::Cookie("sid".into()),
        ScopePart::BasicUser,
        ScopePart::ClientIp,
        ScopePart::Route,
    ];
    let values = |fields: &[(&str, &str)]| {
        let head = head("POST", "/", fields);
        scope(&parts, &head.headers, "1.2.3.4".parse().unwrap(), "pay").map(|values| {
            values
                .into_iter()
                .map(|part| part.value)
                .collect::<Vec<_>>()
        })
    };
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let found = values(&[
        ("x-tenant", "acme"),
        ("cookie", "a=b; sid=s=1; c=d"),
        ("authorization", "basic dXNlcjpwYTpzcw=="),
    ]);
    assert_eq!(
        found.unwrap(),
        [
            some("acme"),
            some("s=1"),
            some("user"),
            some("1.2.3.4"),
            some("pay")
        ]
    );
    let absent = values(&[("authorization", "Bearer x")]).unwrap();
    assert_eq!(absent, [None, None, None, some("1.2.3.4"), some("pay")]);
    assert!(values(&[("x-tenant", "a"), ("x-tenant", "a")]).is_err());
    assert!(values(&[("cookie", "sid=1; sid=2")]).is_err());
    assert!(
        values(&[
            ("authorization", "Basic eA=="),
            ("authorization", "Basic eA==")
        ])
        .is_err()
    );
}

#[test]
fn only_100_continue_is_expected() {
    let ok = |value: &str| expectation(&head("POST", "/", &[("expect", value)]).headers);
    ok("100-continue").unwrap();
    ok("100-Continue").unwrap();
    assert_eq!(ok("200-ok").unwrap_err().code, Code::ExpectationFailed);
}
