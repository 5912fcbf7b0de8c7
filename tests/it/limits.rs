//! R12, R30: limits with defined answers, and the clocks of slow peers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::client::{self, Client, pay, request};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::{Act, Gate, Upstream, reply};

fn with_server(upstream: &Upstream, server: &str) -> Sidecar {
    Plan::new(
        upstream.addr,
        &Tables {
            server,
            ..Tables::default()
        },
    )
    .start()
}

#[test]
fn a_body_over_the_limit_is_413_and_claims_nothing() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "[policy]\nmax_request = \"10B\"");
    let over = pay(sidecar.addr, "k", "12345678901");
    assert_eq!(
        (over.status, over.code().as_str()),
        (413, "request_body_too_large")
    );
    let chunked = b"POST /pay HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nTransfer-Encoding: \
        chunked\r\n\r\n6\r\n123456\r\n6\r\n123456\r\n0\r\n\r\n";
    assert_eq!(client::send(sidecar.addr, chunked).status, 413);
    assert_eq!(pay(sidecar.addr, "k", "1234567890").status, 201);
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_body_that_stops_coming_is_408_covered_or_not() {
    let upstream = Upstream::counting();
    let sidecar = with_server(&upstream, "body_timeout = \"200ms\"");
    for head in [
        "POST /pay HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\nab",
        "BREW /pay HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab",
    ] {
        let mut client = Client::connect(sidecar.addr);
        client.write(head.as_bytes());
        let answer = client.answer().unwrap();
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (408, "request_timeout"),
            "{head}"
        );
        assert!(client.is_closed_within(PATIENCE));
    }
    assert_eq!(upstream.calls(), 0);
}

#[test]
fn a_body_that_breaks_off_never_reaches_the_upstream() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(
        b"POST /pay HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\nab",
    );
    client.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    let again = pay(sidecar.addr, "k", "abcde");
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_head_that_does_not_end_closes_the_connection_even_if_it_trickles() {
    let upstream = Upstream::counting();
    let sidecar = with_server(&upstream, "header_timeout = \"400ms\"");
    let mut silent = Client::connect(sidecar.addr);
    assert!(silent.is_closed_within(PATIENCE));
    let mut stream = TcpStream::connect(sidecar.addr).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ")
        .unwrap();
    let began = tokio::time::Instant::now();
    let closed = loop {
        assert!(
            began.elapsed() < PATIENCE,
            "a trickling head is never closed"
        );
        if stream.write_all(b"x").is_err() {
            break true;
        }
        match stream.read(&mut [0; 1]) {
            Ok(0) => break true,
            Ok(_) => break false,
            Err(_) => {}
        }
    };
    assert!(closed, "no answer is owed");
    assert_eq!(upstream.calls(), 0);
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |seen, _| match seen.target.as_str() {
        "/slow" => vec![Act::Wait(hold.clone()), reply(200, &[], "slow")],
        _ => vec![reply(200, &[], "fast")],
    });
    let sidecar = with_server(
        &upstream,
        "idle_timeout = \"300ms\"\nheader_timeout = \"300ms\"",
    );
    let mut busy = Client::connect(sidecar.addr);
    busy.write(&request("GET", "/slow", &[], ""));
    upstream.wait_calls(1);
    let mut idle = Client::connect(sidecar.addr);
    idle.write(&request("GET", "/fast", &[], ""));
    assert_eq!(idle.answer().unwrap().text(), "fast");
    assert!(idle.is_closed_within(PATIENCE), "idle after an answer");
    gate.open();
    assert_eq!(
        busy.answer().unwrap().text(),
        "slow",
        "no clock runs while it is answered"
    );
}

#[test]
fn connections_beyond_the_cap_wait_to_be_accepted() {
    let upstream = Upstream::counting();
    let sidecar = with_server(&upstream, "max_connections = 2\nthreads = 1");
    let mut held: Vec<_> = (0..2).map(|_| Client::connect(sidecar.addr)).collect();
    for client in &mut held {
        client.write(&request("GET", "/", &[], ""));
        client.answer().unwrap();
    }
    let addr = sidecar.addr;
    let third = thread::spawn(move || client::get(addr, "/").status);
    assert_eq!(sidecar.metric("retrysafe_connections"), 2);
    drop(held);
    assert_eq!(third.join().unwrap(), 201);
}

#[test]
fn what_is_too_large_for_a_head_gets_431_and_414() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let names: Vec<_> = (0..200).map(|n| format!("X-{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
    assert_eq!(
        client::send(sidecar.addr, &request("GET", "/", &many, "")).status,
        431
    );
    let long = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(70_000));
    assert_eq!(client::send(sidecar.addr, long.as_bytes()).status, 414);
    assert_eq!(upstream.calls(), 0);
}

#[test]
fn all_bytes_held_are_bounded_and_given_back() {
    let (gate, upstream) = Upstream::gated_with("ok");
    let sidecar = with_server(&upstream, "buffer_budget = \"100KiB\"");
    let body = "x".repeat(60_000);
    let mut first = Client::connect(sidecar.addr);
    first.write(&request(
        "POST",
        "/pay",
        &[("Idempotency-Key", "k-1")],
        &body,
    ));
    upstream.wait_calls(1);
    assert_eq!(sidecar.metric("retrysafe_buffered_bytes"), 60_000);
    let second = pay(sidecar.addr, "k-2", &body);
    assert_eq!((second.status, second.code().as_str()), (503, "overloaded"));
    gate.open();
    assert_eq!(first.answer().unwrap().status, 201);
    sidecar.wait_metric("retrysafe_buffered_bytes", |held| held == 0);
    assert_eq!(pay(sidecar.addr, "k-2", &body).status, 201);
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn an_answer_that_does_not_fit_the_budget_is_delivered_and_not_kept() {
    let body = "y".repeat(300_000);
    let sent = body.clone();
    let upstream = Upstream::start(move |_, _| vec![reply(201, &[], &sent)]);
    let sidecar = with_server(&upstream, "buffer_budget = \"100KiB\"");
    assert_eq!(pay(sidecar.addr, "k", "x").body.len(), body.len());
    assert_eq!(
        pay(sidecar.addr, "k", "x").code(),
        "idempotency_response_not_kept"
    );
    assert_eq!(
        sidecar.metric("retrysafe_not_kept_total{reason=\"budget\"}"),
        1
    );
    sidecar.wait_metric("retrysafe_buffered_bytes", |held| held == 0);
    assert_eq!(upstream.calls(), 1);
}
