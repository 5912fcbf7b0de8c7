//! HTTP/2 with prior knowledge towards the upstream.

use std::thread;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request};

use super::h2_server::{Deed, Gate, H2Upstream, take};
use crate::support::client::{self, Answer, Client, pay, request};
use crate::support::eventually;
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::Upstream;

fn sidecar_to(upstream: &H2Upstream, lines: &str, rest: &str) -> Sidecar {
    // One thread: its connections are counted.
    let tables = Tables {
        server: "threads = 1",
        upstream: lines,
        rest,
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &upstream.url());
    plan.start()
}

fn told(answer: &Answer) -> (u16, String) {
    (answer.status, answer.code())
}

fn post(sidecar: &Sidecar, target: &str, key: &str) -> Answer {
    let octets = request("POST", target, &[("Idempotency-Key", key)], "x");
    client::send(sidecar.addr, &octets)
}

#[test]
fn exchanges_share_a_connection_and_are_replayed_like_any_others() {
    let upstream = H2Upstream::start(|_, n| Deed::Reply(format!("n={n}")));
    let sidecar = sidecar_to(&upstream, "", "");
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!((first.status, first.text().as_str()), (201, "n=1"));
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.text().as_str(), again.is_replay()), ("n=1", true));
    assert_eq!(client::get(sidecar.addr, "/a//b%2Fc?d=1").text(), "n=2");
    let mut chunked = Client::connect(sidecar.addr);
    chunked.write(b"OPTIONS /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    chunked.write(b"5\r\nhello\r\n0\r\n\r\n");
    assert_eq!(chunked.answer().unwrap().text(), "n=3");
    let star = client::send(sidecar.addr, &request("OPTIONS", "*", &[], ""));
    assert_eq!(star.text(), "n=4");
    assert_eq!((upstream.calls(), upstream.connections()), (4, 1));
    upstream.seen(|seen| {
        let head = &seen[0].head;
        assert_eq!(head.uri.to_string(), "http://api.test/pay");
        assert_eq!(seen[0].header("idempotency-attempt"), Some("1"));
        assert_eq!(seen[0].header("content-length"), Some("1"));
        assert_eq!(seen[1].head.uri.to_string(), "http://api.test/a//b%2Fc?d=1");
        assert_eq!(seen[3].head.uri.path(), "*");
        for seen in seen {
            for name in ["host", "connection", "te", "transfer-encoding"] {
                assert_eq!(seen.header(name), None, "{name}");
            }
        }
    });
    sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 1);
}

#[test]
fn a_connection_takes_nothing_new_once_it_is_old() {
    let upstream = H2Upstream::start(|_, n| Deed::Reply(format!("n={n}")));
    let sidecar = sidecar_to(&upstream, "pool_max_age = \"200ms\"", "");
    eventually("a second connection", || {
        assert_eq!(client::get(sidecar.addr, "/").status, 201);
        upstream.connections() == 2
    });
    sidecar.wait_metric("retrysafe_upstream_connections", |open| open <= 1);
}

#[test]
fn duplicates_wait_and_a_client_that_goes_away_cancels_nothing() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let upstream = H2Upstream::start(move |_, n| Deed::Gated(hold.clone(), format!("n={n}")));
    let sidecar = sidecar_to(&upstream, "", "");
    let mut gone = Client::connect(sidecar.addr);
    gone.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    gone.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    let addr = sidecar.addr;
    let duplicate = thread::spawn(move || pay(addr, "k", "x"));
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    gate.open();
    let answer = duplicate.join().unwrap();
    assert_eq!((answer.text().as_str(), answer.is_replay()), ("n=1", true));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn what_does_not_speak_http2_is_told_apart_before_anything_is_sent() {
    let one = Upstream::counting();
    let tables = Tables::default();
    let url = format!("h2c://{}", one.addr);
    let plan = Plan::new(one.addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &url);
    let sidecar = plan.start();
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!(told(&answer), (502, "upstream_unreachable".into()));
    assert_eq!(answer.json()["outcome"], "not_executed");
    let status = answer.header("proxy-status").unwrap();
    assert!(status.contains("error=http_protocol_error"), "{status}");
    assert!(one.seen().iter().all(|seen| seen.target != "/pay"));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let plan = Plan::new(addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &format!("h2c://{addr}"));
    let answer = pay(plan.start().addr, "k", "x");
    let status = answer.header("proxy-status").unwrap();
    assert!(status.contains("error=connection_refused"), "{status}");
}

#[test]
fn an_exchange_given_up_leaves_the_others_on_its_connection_alone() {
    let upstream = H2Upstream::start(|head, _| match head.uri.path() {
        "/hang" => Deed::Hang,
        _ => Deed::Pieces(12, Duration::from_millis(100)),
    });
    let lines = "answer_within = \"300ms\"\ngive_up_after = \"500ms\"";
    let sidecar = sidecar_to(&upstream, lines, "[policy]\nin_flight_wait = \"20s\"");
    let addr = sidecar.addr;
    let slow = thread::spawn(move || pay(addr, "slow", "x"));
    upstream.wait_calls(1);
    let hung = post(&sidecar, "/hang", "hung");
    assert_eq!(told(&hung), (504, "upstream_timeout".into()));
    eventually("the stream was reset", || upstream.resets().len() == 1);
    assert_eq!(upstream.resets(), [Reason::CANCEL]);
    let first = slow.join().unwrap();
    assert_eq!(told(&first), (504, "upstream_timeout".into()));
    let whole = pay(addr, "slow", "x");
    assert_eq!((whole.status, whole.text()), (201, "x".repeat(12)));
    let held = post(&sidecar, "/hang", "hung");
    assert_eq!(held.json()["outcome"], "unknown");
    assert_eq!((upstream.calls(), upstream.connections()), (2, 1));
}

#[test]
fn a_refused_stream_proves_nothing() {
    let upstream = H2Upstream::start(|_, _| Deed::Refuse);
    let sidecar = sidecar_to(&upstream, "", "");
    for _ in 0..2 {
        let answer = pay(sidecar.addr, "k", "x");
        assert_eq!(told(&answer), (502, "upstream_connection_lost".into()));
        assert_eq!(answer.json()["outcome"], "unknown");
        assert_eq!(answer.json()["retryable"], false);
    }
    assert_eq!(upstream.calls(), 1);
    let answer = client::get(sidecar.addr, "/read");
    assert_eq!(told(&answer), (502, "upstream_connection_lost".into()));
}

#[test]
fn an_answer_that_breaks_off_is_never_a_whole_one() {
    for (name, deed) in [
        ("cut", Deed::Cut),
        ("cancel", Deed::Break(Reason::CANCEL)),
        // The library takes this one for an end.
        ("no error", Deed::Break(Reason::NO_ERROR)),
        ("internal", Deed::Break(Reason::INTERNAL_ERROR)),
    ] {
        let upstream = H2Upstream::start(move |_, _| deed.clone());
        let sidecar = sidecar_to(&upstream, "", "");
        for _ in 0..2 {
            let answer = pay(sidecar.addr, "k", "x");
            assert_eq!(
                told(&answer),
                (502, "upstream_connection_lost".into()),
                "{name}"
            );
            assert_eq!(answer.json()["outcome"], "unknown", "{name}");
        }
        assert_eq!(upstream.calls(), 1, "{name}");
        let mut reader = Client::connect(sidecar.addr);
        reader.write(&request("GET", "/read", &[], ""));
        assert_eq!(reader.answer(), None, "{name}");
    }
}

#[test]
fn where_the_peer_takes_no_more_streams_a_further_connection_is_made() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let upstream = H2Upstream::with(Some(1), move |_, n| {
        Deed::Gated(hold.clone(), format!("n={n}"))
    });
    let sidecar = sidecar_to(&upstream, "", "");
    let addr = sidecar.addr;
    let running: Vec<_> = ["a", "b", "c"]
        .map(|key| thread::spawn(move || pay(addr, key, "x")))
        .into();
    upstream.wait_calls(3);
    assert_eq!(upstream.connections(), 3);
    for _ in 0..3 {
        gate.open();
    }
    for thread in running {
        assert_eq!(thread.join().unwrap().status, 201);
    }
    gate.open();
    assert_eq!(pay(addr, "d", "x").status, 201);
    assert_eq!(upstream.connections(), 3);
}

#[test]
fn after_a_goaway_the_next_request_takes_a_new_connection() {
    let upstream = H2Upstream::start(|_, _| Deed::Last);
    let sidecar = sidecar_to(&upstream, "", "");
    for key in ["a", "b", "c"] {
        assert_eq!(pay(sidecar.addr, key, "x").status, 201, "{key}");
        sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 0);
    }
    assert_eq!((upstream.calls(), upstream.connections()), (3, 3));
}

#[test]
fn nothing_of_a_request_is_logged_on_its_way_over_http2() {
    let upstream = H2Upstream::start(|_, _| Deed::Echo);
    let plan = Plan::new(upstream.addr, &Tables::default())
        .env("RETRYSAFE__UPSTREAM__URL", &upstream.url())
        .env("RETRYSAFE__LOG__LEVEL", "trace");
    let sidecar = plan.start();
    let fields = [
        ("Idempotency-Key", "canary-key"),
        ("Authorization", "Bearer canary-token"),
    ];
    let octets = request("POST", "/pay?canary-query=1", &fields, "canary-body");
    assert_eq!(client::send(sidecar.addr, &octets).text(), "canary-body");
    let log = sidecar.log();
    let leaks: Vec<_> = log.iter().filter(|line| line.contains("canary")).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn a_lost_connection_is_an_unknown_outcome_for_all_on_it() {
    let upstream = H2Upstream::start(|head, _| match head.uri.path() {
        "/cut" => Deed::Cut,
        _ => Deed::Hang,
    });
    let sidecar = sidecar_to(&upstream, "", "");
    let addr = sidecar.addr;
    let other = thread::spawn(move || pay(addr, "a", "x"));
    upstream.wait_calls(1);
    let cut = post(&sidecar, "/cut", "b");
    for answer in [cut, other.join().unwrap(), pay(addr, "a", "x")] {
        assert_eq!(told(&answer), (502, "upstream_connection_lost".into()));
        assert_eq!(answer.json()["outcome"], "unknown");
    }
    assert_eq!((upstream.calls(), upstream.connections()), (2, 1));
    sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 0);
}

/// One conversation over HTTP/2: what came back, or why the stream ended.
async fn converse(
    addr: std::net::SocketAddr,
    head: Request<()>,
    body: &'static str,
    end: Result<HeaderMap, Reason>,
) -> Result<(u16, Bytes, Option<HeaderMap>), h2::Error> {
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let (answer, mut upload) = client.send_request(head, false).unwrap();
    upload.send_data(Bytes::from_static(body.as_bytes()), false)?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    match end {
        Ok(trailers) => upload.send_trailers(trailers)?,
        Err(reason) => upload.send_reset(reason),
    }
    let (head, mut body) = answer.await?.into_parts();
    let (data, trailers) = take(&mut body).await;
    Ok((head.status.as_u16(), data, trailers))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn grpc_passes_with_trailers_both_ways() {
    for rest in ["[policy]\nmode = \"off\"", "[policy]\nmode = \"enforce\""] {
        grpc_passes(rest);
    }
}

/// Without a key, whatever the policy says (R1).
fn grpc_passes(rest: &str) {
    let upstream = H2Upstream::start(|_, _| Deed::Echo);
    let sidecar = sidecar_to(&upstream, "", rest);
    let head = Request::post("http://api.test/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    let answer = converse(sidecar.addr, head, "message", Ok(trailers.clone()));
    let answer = runtime().block_on(answer).unwrap();
    assert_eq!(answer, (201, Bytes::from("message"), Some(trailers)));
    upstream.seen(|seen| {
        assert_eq!(seen[0].header("te"), Some("trailers"));
        assert_eq!(seen[0].header("content-type"), Some("application/grpc"));
    });
    // Over HTTP/1.1 it is a request like any other.
    let fields = [("Content-Type", "application/grpc"), ("TE", "trailers")];
    let answer = client::send(sidecar.addr, &request("POST", "/pay", &fields, "x"));
    let covered = !rest.contains("off");
    assert_eq!(answer.status, if covered { 400 } else { 201 });
    if covered {
        grpc_with_a_key_is_covered(&upstream, sidecar.addr);
    }
}

fn grpc_with_a_key_is_covered(upstream: &H2Upstream, addr: std::net::SocketAddr) {
    let before = upstream.calls();
    for _ in 0..2 {
        let head = Request::post("http://api.test/pkg.Service/Method")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("idempotency-key", "k")
            .body(())
            .unwrap();
        let answer = converse(addr, head, "message", Ok(HeaderMap::new()));
        assert_eq!(runtime().block_on(answer).unwrap().0, 201);
    }
    assert_eq!(upstream.calls(), before + 1);
}

#[test]
fn clients_that_read_nothing_hold_up_no_other_exchange() {
    let upstream = H2Upstream::start(|head, n| match head.uri.path() {
        "/pour" => Deed::Pour(64 * 1024 * 1024),
        _ => Deed::Reply(format!("n={n}")),
    });
    let sidecar = sidecar_to(&upstream, "answer_within = \"5s\"", "");
    let stalled: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::connect(sidecar.addr);
            client.write(&request("GET", "/pour", &[], ""));
            client
        })
        .collect();
    eventually("all answers stalled", || upstream.stalled() >= 8);
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!((answer.status, answer.text().as_str()), (201, "n=9"));
    assert_eq!(upstream.connections(), 1);
    drop(stalled);
}

#[test]
fn a_request_whose_stream_is_reset_is_never_taken_for_a_whole_one() {
    let upstream = Upstream::counting();
    let sidecar = Plan::new(upstream.addr, &Tables::default()).start();
    for reason in [Reason::NO_ERROR, Reason::CANCEL, Reason::INTERNAL_ERROR] {
        for (method, key) in [("POST", Some("k")), ("QUERY", None)] {
            let mut head = Request::builder().method(method).uri("http://api.test/pay");
            if let Some(key) = key {
                head = head.header("idempotency-key", key);
            }
            let head = head.body(()).unwrap();
            let ended = converse(sidecar.addr, head, "half", Err(reason));
            assert!(runtime().block_on(ended).is_err(), "{reason:?} {method}");
        }
    }
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    assert_eq!(upstream.calls(), 1);
}
