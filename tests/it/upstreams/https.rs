//! TLS towards the upstream: who is trusted, what is agreed on, and what a failure proves.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;

use super::h2_server::{Deed, H2Upstream};
use crate::support::authority::{Authority, Pair};
use crate::support::client::{self, Answer, Client, pay, request};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::tls_front::{Front, Met, TlsFront};
use crate::support::upstream::{Act, Upstream, reply};
use crate::upgrades::{SWITCHED, echoing};

const BOTH: &[&str] = &["h2", "http/1.1"];

fn front<'a>(shown: &'a Pair, protocols: &'a [&'a str]) -> Front<'a> {
    Front {
        shown,
        protocols,
        clients: None,
        versions: rustls::ALL_VERSIONS,
    }
}

/// A folder with `ca.crt` of somebody in it.
fn folder_of(authority: &Authority) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.crt"), authority.certificate()).unwrap();
    folder
}

/// In front of `https://HOST:PORT`, files in `folder`; `lines` go into `[upstream.tls]`.
fn plan_to(addr: SocketAddr, host: &str, folder: &Path, lines: &str) -> Plan {
    let upstream = format!("connect_timeout = \"5s\"\n[upstream.tls]\n{lines}");
    let tables = Tables {
        // One thread: its connections are counted.
        server: "threads = 1",
        upstream: &upstream,
        ..Tables::default()
    };
    let url = format!("https://{host}:{}", addr.port());
    let plan = Plan::new(addr, &tables).folder(folder);
    plan.env("RETRYSAFE__UPSTREAM__URL", &url)
}

fn sidecar_to(addr: SocketAddr, folder: &Path, lines: &str) -> Sidecar {
    plan_to(addr, "localhost", folder, lines).start()
}

const OURS: &str = "ca_file = \"ca.crt\"";

/// Not executed, and why.
fn unreachable(answer: &Answer, why: &str) {
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (502, "upstream_unreachable")
    );
    assert_eq!(answer.json()["outcome"], "not_executed");
    let told = answer.header("proxy-status").unwrap();
    assert!(told.ends_with(&format!("error={why}")), "{told}");
}

#[test]
fn an_upstream_that_agrees_to_http_1_1_is_spoken_to_over_connections_of_its_own() {
    let upstream = Upstream::start(|_, n| vec![reply(201, &[], &format!("n={n}"))]);
    let authority = Authority::new("ours");
    for protocols in [&["http/1.1"][..], &[]] {
        let shown = authority.server();
        let tls = TlsFront::start(&front(&shown, protocols), upstream.addr, true);
        let folder = folder_of(&authority);
        let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
        let before = upstream.calls();
        let first = pay(sidecar.addr, "k", "x");
        assert_eq!(first.status, 201, "{first:?}");
        assert!(pay(sidecar.addr, "k", "x").is_replay());
        assert_eq!(pay(sidecar.addr, "l", "x").status, 201);
        assert_eq!(upstream.calls(), before + 2);
        let met = Met {
            name: Some("localhost".to_owned()),
            protocol: protocols.first().map(ToString::to_string),
            certified: false,
        };
        // The second went over the same connection.
        assert_eq!(tls.met(), [met]);
        let seen = &upstream.seen()[before];
        assert_eq!(seen.header("host"), Some("api.test"));
        assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
        sidecar.wait_metric(
            "retrysafe_upstream_connects_total{result=\"ok\"}",
            |count| count == 1,
        );
    }
}

#[test]
fn an_upstream_that_agrees_to_http_2_has_its_exchanges_on_one_connection() {
    let upstream = H2Upstream::start(|_, n| Deed::Reply(format!("n={n}")));
    let authority = Authority::new("ours");
    let shown = authority.server();
    let tls = TlsFront::start(&front(&shown, BOTH), upstream.addr, true);
    let folder = folder_of(&authority);
    let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
    let addr = sidecar.addr;
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || assert_eq!(pay(addr, &number.to_string(), "x").status, 201));
        }
    });
    assert!(pay(addr, "3", "x").is_replay());
    assert_eq!((upstream.calls(), upstream.connections()), (8, 1));
    assert_eq!(tls.met().len(), 1);
    assert_eq!(tls.met()[0].protocol.as_deref(), Some("h2"));
    upstream.seen(|seen| {
        assert_eq!(seen[0].head.uri.to_string(), "https://api.test/pay");
    });
}

#[test]
fn who_is_not_trusted_gets_no_request_until_new_files_say_otherwise() {
    let upstream = Upstream::counting();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let shown = theirs.server();
    let tls = TlsFront::start(&front(&shown, BOTH[1..].as_ref()), upstream.addr, true);
    let folder = folder_of(&ours);
    let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
    unreachable(&pay(sidecar.addr, "k", "x"), "tls_certificate_error");
    assert_eq!(upstream.calls(), 0);
    let failed = "retrysafe_upstream_connects_total{result=\"tls_error\"}";
    sidecar.wait_metric(failed, |count| count > 0);
    sidecar.wait_log("upstream_unreachable");
    std::fs::write(folder.path().join("ca.crt"), theirs.certificate()).unwrap();
    let reloads = "retrysafe_certificate_reloads_total{result=\"ok\"}";
    sidecar.wait_metric(reloads, |count| count == 1);
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!((answer.status, answer.is_replay()), (201, false));
    assert_eq!(upstream.seen()[0].header("idempotency-attempt"), Some("2"));
}

#[test]
fn the_name_in_the_certificate_is_the_urls_or_the_one_that_is_written() {
    let upstream = Upstream::counting();
    let authority = Authority::new("ours");
    let shown = authority.server_named(&["api.internal"]);
    let tls = TlsFront::start(&front(&shown, &[]), upstream.addr, true);
    let folder = folder_of(&authority);
    let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
    unreachable(&pay(sidecar.addr, "k", "x"), "tls_certificate_error");
    drop(sidecar);
    let lines = format!("{OURS}\nserver_name = \"api.internal\"");
    let sidecar = sidecar_to(tls.addr, folder.path(), &lines);
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    assert_eq!(tls.met()[0].name.as_deref(), Some("api.internal"));
    drop(sidecar);
    // An address is a name too, and is not asked for.
    let shown = authority.server();
    let tls = TlsFront::start(&front(&shown, &[]), upstream.addr, true);
    let sidecar = plan_to(tls.addr, "127.0.0.1", folder.path(), OURS).start();
    assert_eq!(pay(sidecar.addr, "l", "x").status, 201);
    assert_eq!(tls.met()[0].name, None);
}

/// Over TLS 1.3 the refusal comes after our side has finished, and the request may be under way:
/// it is proof all the same.
#[test]
fn an_upstream_that_refuses_our_certificate_has_not_seen_the_request() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let shown = ours.server();
    let versions: [&[&SupportedProtocolVersion]; 2] = [&[&TLS12], &[&TLS13]];
    for versions in versions {
        let upstream = Upstream::counting();
        let asking = Front {
            clients: Some(&ours),
            versions,
            ..front(&shown, &["http/1.1"])
        };
        let tls = TlsFront::start(&asking, upstream.addr, true);
        let folder = folder_of(&ours);
        let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
        let none = pay(sidecar.addr, "k", "x");
        assert_eq!(none.json()["outcome"], "not_executed", "{none:?}");
        drop(sidecar);
        theirs.client().write(folder.path(), "client");
        let pair = format!("{OURS}\ncert_file = \"client.crt\"\nkey_file = \"client.key\"");
        let sidecar = sidecar_to(tls.addr, folder.path(), &pair);
        let wrong = pay(sidecar.addr, "k", "x");
        assert_eq!(wrong.json()["outcome"], "not_executed", "{wrong:?}");
        assert_eq!(upstream.calls(), 0);
        ours.client().write(folder.path(), "client");
        let reloads = "retrysafe_certificate_reloads_total{result=\"ok\"}";
        sidecar.wait_metric(reloads, |count| count == 1);
        assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
        assert!(tls.met().last().unwrap().certified);
        assert_eq!(upstream.calls(), 1);
    }
}

#[test]
fn plain_http_and_silence_are_no_handshake() {
    let authority = Authority::new("ours");
    let folder = folder_of(&authority);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client
            .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        client
    });
    let sidecar = sidecar_to(addr, folder.path(), OURS);
    unreachable(&pay(sidecar.addr, "k", "x"), "tls_protocol_error");
    answering.join().unwrap();
    drop(sidecar);
    // The kernel accepts, and nobody says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let plan = plan_to(
        silent.local_addr().unwrap(),
        "localhost",
        folder.path(),
        OURS,
    );
    let sidecar = plan
        .env("RETRYSAFE__UPSTREAM__CONNECT_TIMEOUT", "300ms")
        .start();
    unreachable(&pay(sidecar.addr, "k", "x"), "connection_timeout");
}

/// Where the end of the connection is the end of the body, the end must be said: anybody could cut
/// it.
#[test]
fn an_answer_without_a_length_is_whole_only_after_a_goodbye() {
    let raw = || {
        vec![
            Act::Send(b"HTTP/1.1 201 Created\r\n\r\nhalf of it".to_vec()),
            Act::Close,
        ]
    };
    let upstream = Upstream::start(move |_, _| raw());
    let authority = Authority::new("ours");
    let shown = authority.server();
    let folder = folder_of(&authority);
    for politely in [true, false] {
        let tls = TlsFront::start(&front(&shown, &[]), upstream.addr, politely);
        let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
        let key = if politely { "p" } else { "i" };
        let first = pay(sidecar.addr, key, "x");
        let again = pay(sidecar.addr, key, "x");
        if politely {
            assert_eq!((first.status, first.text().as_str()), (201, "half of it"));
            assert!(again.is_replay());
        } else {
            for answer in [first, again] {
                assert_eq!(answer.code(), "upstream_connection_lost");
                assert_eq!(answer.json()["outcome"], "unknown");
            }
        }
    }
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn what_switches_protocols_goes_over_http_1_1_though_http_2_is_offered() {
    let (upstream, serving) = echoing(SWITCHED);
    let authority = Authority::new("ours");
    let shown = authority.server();
    let tls = TlsFront::start(&front(&shown, BOTH), upstream, true);
    let folder = folder_of(&authority);
    let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
    let mut client = Client::connect(sidecar.addr);
    let fields = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    client.write(&request("GET", "/ws", &fields, ""));
    assert_eq!(client.answer().unwrap().status, 101);
    client.write(b"hello");
    assert_eq!(client.octets(5), b"hello");
    assert_eq!(tls.met()[0].protocol.as_deref(), Some("http/1.1"));
    drop(client);
    assert!(serving.join().unwrap().contains("GET /ws"));
}

#[test]
fn without_a_file_the_system_says_who_is_trusted() {
    let upstream = Upstream::counting();
    let authority = Authority::new("ours");
    let shown = authority.server();
    let tls = TlsFront::start(&front(&shown, &[]), upstream.addr, true);
    let folder = folder_of(&authority);
    let plan = plan_to(tls.addr, "localhost", folder.path(), "").env("SSL_CERT_DIR", "");
    let trusting = plan.clone().env("SSL_CERT_FILE", "ca.crt").start();
    assert_eq!(pay(trusting.addr, "k", "x").status, 201);
    drop(trusting);
    std::fs::File::create(folder.path().join("none.crt"))
        .and_then(|mut file| file.write_all(b"\n"))
        .unwrap();
    let (code, said) = plan.env("SSL_CERT_FILE", "none.crt").fails();
    assert_eq!(code, 78);
    let expected = "`upstream.tls.ca_file` is not written, and this system names nobody to trust";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn what_is_not_covered_streams_over_tls_too() {
    let upstream = H2Upstream::start(|_, _| Deed::Echo);
    let authority = Authority::new("ours");
    let shown = authority.server();
    let tls = TlsFront::start(&front(&shown, BOTH), upstream.addr, true);
    let folder = folder_of(&authority);
    let sidecar = sidecar_to(tls.addr, folder.path(), OURS);
    let body = "x".repeat(3 << 20);
    let answer = client::send(sidecar.addr, &request("OPTIONS", "/", &[], &body));
    assert_eq!((answer.status, answer.text().len()), (201, body.len()));
}
