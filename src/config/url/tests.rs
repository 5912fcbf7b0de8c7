//! Store and upstream urls. No message may repeat what was written.

use super::*;

#[test]
fn store_urls_are_parsed() {
    assert_eq!(parse_store_url("memory:"), Ok(StoreUrl::Memory));
    for path in ["retrysafe.db", "/data/retrysafe.db", "./a b.db", "a:b"] {
        let url = parse_store_url(&format!("file:{path}"));
        assert_eq!(url, Ok(StoreUrl::File(PathBuf::from(path))));
    }
    for url in [
        "redis://localhost",
        "redis://127.0.0.1:6379",
        "redis://127.0.0.1:6379/",
        "redis://[::1]:6379/15",
        "redis://user@host",
        "redis://:hunter2@host/0",
        "redis://user:hun%40ter2@redis_1.internal:1/2",
        "redis://user:a:b@host",
    ] {
        assert_eq!(
            parse_store_url(url),
            Ok(StoreUrl::Redis(url.to_owned())),
            "{url}"
        );
    }
}

#[test]
fn what_is_no_store_url_is_refused_without_repeating_it() {
    for url in [
        "",
        "hunter2",
        "memory",
        "memory:hunter2",
        "memory://",
        "file:",
        "file://hunter2",
        "file:///hunter2",
        "file:a\0b",
        "redis:",
        "redis:hunter2",
        "redis://",
        "redis:///0",
        "redis://:hunter2",
        "redis://:hunter2@",
        "redis://u:hunter2@:6379",
        "redis://u:hunter2@host:0",
        "redis://u:hunter2@host:x",
        "redis://u:hunter2@host:+1",
        "redis://u:hunter2@host:70000",
        "redis://u:hunter2@host/x",
        "redis://u:hunter2@host/-1",
        "redis://u:hunter2@host/0/1",
        "redis://u:hunter2@host?x",
        "redis://u:hunter2#@host",
        "redis://u:hun/ter2@host",
        "redis://u:hun@ter2@host",
        "redis://u:hun ter2@host",
        "redis://u:hunter2%@host",
        "redis://u:hunter2%zz@host",
        "redis://u:hunter2@[::1",
        "redis://u:hunter2@[x]:1",
        "redis://u:hunter2@[::1]1",
        "redis://u:hunter2@a,b",
        "Redis://u:hunter2@host",
        "http://u:hunter2@host",
        "://hunter2",
    ] {
        let error = parse_store_url(url).expect_err(url);
        let shown = error.to_string();
        assert!(
            !shown.contains("hunter2") && !shown.contains("ter2"),
            "{url}: {shown}"
        );
        assert!(!error.help.is_empty(), "{url}");
    }
}

#[test]
fn stores_that_do_not_exist_yet_are_told_apart_from_mistakes() {
    for url in [
        "rediss://host",
        "redis+sentinel://a,b/m",
        "redis+cluster://a,b",
    ] {
        let error = parse_store_url(url).expect_err(url);
        assert!(
            error.message.contains("not available in this version yet"),
            "{url}"
        );
    }
    let error = parse_store_url("mysql://db").unwrap_err();
    assert!(!error.message.contains("not available"), "{error}");
}

#[test]
fn a_password_never_shows_in_a_store_url() {
    let url = parse_store_url("redis://user:hunter2@host:1/2").unwrap();
    assert_eq!(url.to_string(), "redis://host:1/2");
    assert_eq!(format!("{url:?}"), "redis://host:1/2");
}

#[test]
fn upstream_urls_are_http_host_and_port() {
    let cases = [
        ("http://127.0.0.1:3000", "127.0.0.1", 3000),
        ("http://api", "api", 80),
        ("http://api:1/", "api", 1),
        ("http://my_api.internal:65535", "my_api.internal", 65535),
        ("http://[::1]:8080", "::1", 8080),
        ("http://[fd00::1]", "fd00::1", 80),
    ];
    for (url, host, port) in cases {
        assert_eq!(
            parse_upstream_url(url),
            Ok(UpstreamUrl::Http(HostPort {
                host: host.to_owned(),
                port
            })),
            "{url}"
        );
    }
    for url in [
        "",
        "api:3000",
        "http://",
        "http:///",
        "http://:80",
        "http://api:",
        "http://api:0",
        "http://api:99999",
        "http://api/v1",
        "http://api?x",
        "http://api#x",
        "http://u:hunter2@api",
        "http://a b",
        "http://::1:80",
        "http://[::1",
        "ftp://api",
        "HTTP://api",
        "unix:",
        "unix:///run/app.sock",
        "unix:/run/a\0b",
    ] {
        let error = parse_upstream_url(url).expect_err(url);
        assert!(!error.to_string().contains("hunter2"), "{url}");
    }
    for (url, port, authority) in [
        ("https://api", 443, "api"),
        ("https://api:8443/", 8443, "api:8443"),
    ] {
        let host = "api".to_owned();
        let parsed = parse_upstream_url(url).unwrap();
        assert_eq!(parsed, UpstreamUrl::Https(HostPort { host, port }));
        assert_eq!(parsed.authority(), authority);
        assert_eq!(parsed.to_string(), format!("https://api:{port}"));
    }
}

#[test]
fn an_upstream_may_be_a_unix_socket() {
    for path in ["/run/app.sock", "app.sock", "./a b"] {
        let url = parse_upstream_url(&format!("unix:{path}")).unwrap();
        assert_eq!(url, UpstreamUrl::Unix(PathBuf::from(path)));
        assert_eq!(url.to_string(), format!("unix:{path}"));
        assert_eq!(url.authority(), "localhost");
        assert!(!url.may_speak_http2());
    }
    assert!(parse_upstream_url(&format!("unix:{}", "x".repeat(107))).is_ok());
    assert!(parse_upstream_url(&format!("unix:{}", "x".repeat(108))).is_err());
}

#[test]
fn an_upstream_may_speak_http2_with_prior_knowledge() {
    for (url, host, port, authority) in [
        ("h2c://api:50051", "api", 50051, "api:50051"),
        ("h2c://api", "api", 80, "api"),
        ("h2c://[::1]:81/", "::1", 81, "[::1]:81"),
    ] {
        let host = host.to_owned();
        let parsed = parse_upstream_url(url).unwrap();
        assert_eq!(parsed, UpstreamUrl::H2c(HostPort { host, port }));
        assert_eq!(parsed.authority(), authority);
        assert!(parsed.may_speak_http2());
    }
    assert!(!parse_upstream_url("http://api").unwrap().may_speak_http2());
}
