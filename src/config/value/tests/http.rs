//! Field names, methods, statuses, scope parts, pointers, urls.

use super::super::http::{
    caller, docs_url, field_name, method, parameter, pointer, scope_part, status,
};
use super::{from_env, from_file};

#[test]
fn header_names_and_callers() {
    assert_eq!(from_env("X-Tenant-Id", field_name).unwrap(), "x-tenant-id");
    for bad in ["", "a b", "a:", "é"] {
        assert!(from_env(bad, field_name).is_err(), "{bad}");
    }
    assert_eq!(from_env("cookie", caller).unwrap(), "cookie");
    let error = from_env("client_certificate", caller).unwrap_err();
    assert!(
        error.contains("not available in this version yet"),
        "{error}"
    );
}

#[test]
fn methods_are_case_sensitive_tokens() {
    for good in ["POST", "GET", "MERGE", "merge"] {
        assert_eq!(from_env(good, method).unwrap().as_str(), good);
    }
    for bad in ["post", "Put", "CONNECT", "connect", "", "A B"] {
        assert!(from_env(bad, method).is_err(), "{bad}");
    }
}

#[test]
fn statuses_that_release_are_no_success() {
    assert_eq!(from_file("409", status), Ok(409));
    assert_eq!(from_env("503", status), Ok(503));
    for bad in ["200", "299", "600", "-1", "70000", "\"409\"", "1.5"] {
        assert!(from_file(bad, status).is_err(), "{bad}");
    }
}

#[test]
fn scope_parts_are_written_as_they_are_shown() {
    for good in [
        "header:x-tenant",
        "cookie:session",
        "basic:user",
        "client_ip",
        "route",
    ] {
        assert_eq!(from_env(good, scope_part).unwrap().to_string(), good);
    }
    for bad in [
        "",
        "header:",
        "header:a b",
        "cookie:",
        "cookie:a=b",
        "basic:password",
        "ip",
        "route:x",
    ] {
        assert!(from_env(bad, scope_part).is_err(), "{bad}");
    }
    let error = from_env("jwt:sub", scope_part).unwrap_err();
    assert!(
        error.contains("not available in this version yet"),
        "{error}"
    );
    let error = from_env("x-tenant", scope_part).unwrap_err();
    assert!(error.contains("write \"header:x-tenant\""), "{error}");
}

#[test]
fn pointers_name_a_member() {
    for good in ["/a", "/a/b~1c", "/"] {
        assert_eq!(from_env(good, pointer).unwrap().as_str(), good);
    }
    for bad in ["", "a", "/a~", "$.a", "#/a"] {
        assert!(from_env(bad, pointer).is_err(), "{bad}");
    }
    assert!(
        from_env("$.a.b", pointer)
            .unwrap_err()
            .ends_with("write \"/a/b\"")
    );
}

#[test]
fn parameters_and_docs_urls() {
    assert_eq!(from_env("key", parameter).unwrap(), "key");
    for bad in ["", "a=b", "a&b", "?a"] {
        assert!(from_env(bad, parameter).is_err(), "{bad}");
    }
    assert!(from_env("https://docs.example.com/p/", docs_url).is_ok());
    for bad in [
        "",
        "https://",
        "ftp://x",
        "x",
        "https://a b",
        "https://a>",
        "https://u:p@h/",
    ] {
        assert!(from_env(bad, docs_url).is_err(), "{bad}");
    }
}
