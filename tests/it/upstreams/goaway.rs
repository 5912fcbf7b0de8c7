//! What a GOAWAY says of a request under way, and what the end of a connection does not say.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::h2_server::{Deed, H2Upstream};
use crate::frames::frame;
use crate::support::client::{pay, request, send};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::drain;

const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const HEADERS: u8 = 1;

/// A GOAWAY that names the last stream looked at, and a reason.
fn goaway(last: u8, reason: u8) -> Vec<u8> {
    let head = [0, 0, 8, 7, 0, 0, 0, 0, 0];
    [head.as_slice(), &[0, 0, 0, last], &[0, 0, 0, reason]].concat()
}

/// Speaks HTTP/2 up to the head of the first request.
fn first_head(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 24]).unwrap();
    stream.write_all(&SETTINGS).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        stream.read_exact(&mut vec![0; length]).unwrap();
        if head[3] == HEADERS {
            return;
        }
    }
}

/// The first connection ends its first request with these octets, all others serve.
fn after(octets: Vec<u8>, closes: bool) -> (TcpListener, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = listener.try_clone().unwrap();
    let ends = thread::spawn(move || {
        let (mut stream, _peer) = first.accept().unwrap();
        first_head(&mut stream);
        stream.write_all(&octets).unwrap();
        if !closes {
            // It stays open as long as the test runs.
            thread::spawn(move || drain(&mut stream));
        }
    });
    (listener, ends)
}

/// A proxy with one thread, and so one connection, before this upstream.
fn before(listener: &TcpListener) -> Sidecar {
    let addr = listener.local_addr().unwrap();
    let tables = Tables {
        server: "threads = 1",
        ..Tables::default()
    };
    let url = format!("h2c://{addr}");
    let plan = Plan::new(addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &url);
    plan.start()
}

#[test]
fn an_uncovered_request_that_was_not_taken_is_sent_again_where_it_has_no_body() {
    for (name, method, octets, body, expected) in [
        ("lower id", "GET", goaway(0, 0), "", "n=1"),
        (
            "lower id, a body",
            "SEARCH",
            goaway(0, 0),
            "x",
            "upstream_unreachable",
        ),
        (
            "this id",
            "GET",
            goaway(1, 0),
            "",
            "upstream_connection_lost",
        ),
    ] {
        let (listener, ends) = after(octets, true);
        let sidecar = before(&listener);
        let octets = request(method, "/", &[], body);
        let addr = sidecar.addr;
        let asked = thread::spawn(move || send(addr, &octets));
        ends.join().unwrap();
        let upstream = H2Upstream::on(listener, None, |_, n| Deed::Reply(format!("n={n}")));
        let answer = asked.join().unwrap().text();
        assert!(answer.contains(expected), "{name}: {answer}");
        let taken = usize::from(expected == "n=1");
        assert_eq!(upstream.calls(), taken, "{name}");
    }
}

#[test]
fn only_a_goaway_that_names_an_earlier_stream_proves_that_nothing_was_done() {
    for (name, octets, closes, proof) in [
        ("lower id", goaway(0, 0), false, true),
        ("lower id, an error", goaway(0, 2), true, true),
        ("this id", goaway(1, 0), true, false),
        ("this id, an error", goaway(1, 2), true, false),
        ("none", Vec::new(), true, false),
    ] {
        let (listener, ends) = after(octets, closes);
        let sidecar = before(&listener);
        let asked = sidecar.addr;
        let asked = thread::spawn(move || pay(asked, "k", "x"));
        ends.join().unwrap();
        let upstream = H2Upstream::on(listener, None, |_, n| Deed::Reply(format!("n={n}")));
        let first = asked.join().unwrap();
        let again = pay(sidecar.addr, "k", "x");
        if proof {
            assert_eq!(
                (first.status, first.text().as_str()),
                (201, "n=1"),
                "{name}"
            );
            assert!(again.is_replay(), "{name}");
            assert_eq!(upstream.calls(), 1, "{name}");
            let attempt = |name| upstream.seen(|seen| seen[0].header(name).map(str::to_owned));
            assert_eq!(
                attempt("idempotency-attempt").as_deref(),
                Some("1"),
                "{name}"
            );
            continue;
        }
        for answer in [first, again] {
            assert_eq!(answer.status, 502, "{name}");
            assert_eq!(answer.json()["outcome"], "unknown", "{name}");
        }
        assert_eq!(upstream.calls(), 0, "{name}");
        assert_eq!(pay(sidecar.addr, "other", "x").status, 201, "{name}");
    }
}

/// As servers do that count the requests of a connection: one is served, and the end is said to all
/// others that came with it.
#[test]
fn the_last_hand_over_has_a_connection_of_its_own() {
    const CLIENTS: usize = 12;
    // 201 as a literal, and the end of stream 1.
    let answer = frame(HEADERS, 5, 1, b"\x08\x03201");
    let served = [answer, goaway(1, 0)].concat();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let accepting = listener.try_clone().unwrap();
    thread::spawn(move || {
        for stream in accepting.incoming() {
            let (mut stream, served) = (stream.unwrap(), served.clone());
            thread::spawn(move || {
                first_head(&mut stream);
                // Those who come together are on it by then.
                if stream.write_all(&served).is_ok() {
                    drain(&mut stream);
                }
            });
        }
    });
    let sidecar = before(&listener);
    let addr = sidecar.addr;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || {
                let answer = pay(addr, &format!("k{number}"), "x");
                assert_eq!(answer.status, 201, "{}", answer.text());
            });
        }
    });
}
