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
        "rediss://:hunter2@host/0",
        "redis+unix:///run/redis.sock",
        "redis+unix:///run/a@b:c.sock?db=3",
        "redis+unix://user:hunter2@/run/redis.sock",
        "redis+sentinel://a/mymaster",
        "redis+sentinel://u:hunter2@a:1,[::1]:2,c/my-master_1.x/4",
        "rediss+sentinel://a,b,c/m",
        "redis+cluster://a",
        "redis+cluster://u:hunter2@a:1,b:2,[::1]:3/",
        "rediss+cluster://:hunter2@a,b/0",
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
        refused_in_silence(url);
    }
}

fn refused_in_silence(url: &str) {
    let error = parse_store_url(url).expect_err(url);
    let shown = error.to_string();
    assert!(
        !shown.contains("hunter2") && !shown.contains("ter2"),
        "{url}: {shown}"
    );
    assert!(!error.help.is_empty(), "{url}");
}

#[test]
fn what_is_no_other_form_of_a_redis_is_refused_without_repeating_it() {
    for url in [
        "redis://hun%ff2:hunter2@host",
        "rediss:hunter2@host",
        "rediss://u:hunter2@host/x",
        "rediss+unix:///hunter2.sock",
        "redis+unix:/hunter2.sock",
        "redis+unix://hunter2",
        "redis+unix://",
        "redis+unix:///",
        "redis+unix:///hunter2/",
        "redis+unix://hunter2/s.sock",
        "redis+unix:///hunter2.sock?x=1",
        "redis+unix:///hunter2.sock?db=x",
        "redis+unix:///hunter2.sock?db=-1",
        "redis+unix://u:hunter2/@/s.sock",
        "redis+sentinel://a,b",
        "redis+sentinel://a,b/",
        "redis+sentinel:///hunter2",
        "redis+sentinel://a,/hunter2",
        "redis+sentinel://a:x/hunter2",
        "redis+sentinel://a/hunter2 /0",
        "redis+sentinel://a/hunter2/x",
        "redis+sentinel://a/hunter2/0/1",
        "redis+cluster://",
        "redis+cluster://hunter2,",
        "redis+cluster://hunter2/1",
        "redis+cluster://a:0",
        "redis+cluster://:hunter2",
        "redis+valkey://hunter2",
    ] {
        refused_in_silence(url);
    }
}

#[test]
fn a_password_never_shows_in_a_store_url() {
    for (url, shown) in [
        ("redis://user:hunter2@host:1/2", "redis://host:1/2"),
        ("rediss://:hunter2@host", "rediss://host"),
        ("redis+unix://u:hunter2@/a@b?db=1", "redis+unix:///a@b?db=1"),
        ("redis+unix:///a@b", "redis+unix:///a@b"),
        (
            "redis+sentinel://u:hunter2@a,b:2/m/0",
            "redis+sentinel://a,b:2/m/0",
        ),
        ("rediss+cluster://u:hunter2@a,b:2", "rediss+cluster://a,b:2"),
    ] {
        let parsed = parse_store_url(url).unwrap();
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(format!("{parsed:?}"), shown);
        assert_eq!(parsed.is_tls(), url.starts_with("rediss"));
    }
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
