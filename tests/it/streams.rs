//! R19, R20: answers that go to the client as they arrive, and are recorded all the same.

use std::io::Write;
use std::net::TcpStream;

use crate::support::client::{self, Client, pay, request};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::{Act, Gate, Upstream};

/// An event stream in two pieces, the second behind a gate.
fn events(kind: &'static str, gate: &Gate) -> Upstream {
    let hold = gate.clone();
    Upstream::start(move |_, _| {
        let head =
            format!("HTTP/1.1 200 X\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        vec![
            Act::Send([head.as_bytes(), b"9\r\ndata: 1\n\n\r\n"].concat()),
            Act::Wait(hold.clone()),
            Act::Send(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n".to_vec()),
        ]
    })
}

/// Reads the first piece, opens the gate, and reads the rest.
fn piece_by_piece(sidecar: &Sidecar, gate: &Gate) {
    let mut stream = TcpStream::connect(sidecar.addr).unwrap();
    stream
        .write_all(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"))
        .unwrap();
    let mut buffer = Vec::new();
    client::fill_until(&mut stream, &mut buffer, b"data: 1\n\n").unwrap();
    gate.open();
    client::fill_until(&mut stream, &mut buffer, b"data: 2\n\n").unwrap();
    client::fill_until(&mut stream, &mut buffer, b"0\r\n\r\n").unwrap();
}

#[test]
fn an_event_stream_arrives_piece_by_piece_and_is_replayed_whole() {
    let gate = Gate::default();
    let upstream = events("Text/Event-Stream; charset=utf-8", &gate);
    let sidecar = sidecar(upstream.addr, "");
    piece_by_piece(&sidecar, &gate);
    // The end was held back until the record stood: a retry at once finds it.
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.is_replay(), again.text().as_str()),
        (true, "data: 1\n\ndata: 2\n\n")
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn stream_true_passes_any_answer_on_and_only_where_it_is_set() {
    for (stream, passes) in [("stream = true", true), ("", false)] {
        let gate = Gate::default();
        let upstream = events("text/plain", &gate);
        let sidecar = sidecar(upstream.addr, &format!("[policy]\n{stream}"));
        if passes {
            piece_by_piece(&sidecar, &gate);
        } else {
            gate.open();
            assert_eq!(pay(sidecar.addr, "k", "x").text(), "data: 1\n\ndata: 2\n\n");
        }
        assert!(pay(sidecar.addr, "k", "x").is_replay());
        assert_eq!(upstream.calls(), 1);
    }
}

#[test]
fn a_duplicate_waits_for_a_stream_and_gets_all_of_it() {
    let gate = Gate::default();
    let upstream = events("text/event-stream", &gate);
    let sidecar = sidecar(upstream.addr, "");
    let mut first = Client::connect(sidecar.addr);
    first.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    let addr = sidecar.addr;
    let twin = std::thread::spawn(move || pay(addr, "k", "x"));
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    gate.open();
    let (first, twin) = (first.answer().unwrap(), twin.join().unwrap());
    assert_eq!((first.text(), twin.is_replay()), (twin.text(), true));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_stream_that_breaks_off_breaks_off_for_the_client_and_is_held() {
    let upstream = Upstream::start(|_, _| {
        let begun = "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
                     9\r\ndata: 1\n\n\r\n";
        vec![Act::Send(begun.as_bytes().to_vec()), Act::Close]
    });
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    assert_eq!(client.answer(), None);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (502, "idempotency_outcome_unknown")
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_client_that_leaves_a_stream_finds_it_recorded() {
    let gate = Gate::default();
    let upstream = events("text/event-stream", &gate);
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    client.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    gate.open();
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.is_replay(), again.text().as_str()),
        (true, "data: 1\n\ndata: 2\n\n")
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_known_length_ends_only_when_the_record_stands() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        vec![
            Act::Send(b"HTTP/1.1 200 X\r\nContent-Length: 10\r\n\r\nfirst".to_vec()),
            Act::Wait(hold.clone()),
            Act::Send(b"final".to_vec()),
        ]
    });
    let tables = Tables {
        rest: "[policy]\nstream = true",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    gate.open();
    let first = client.answer().unwrap();
    assert_eq!(
        (first.text().as_str(), first.header("content-length")),
        ("firstfinal", Some("10"))
    );
    assert_eq!(pay(sidecar.addr, "k", "x").text(), "firstfinal");
}
