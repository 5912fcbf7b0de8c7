//! What is not covered streams through, both ways (R1, R28); trailers (R21, R27).

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::client::{self, Answer, Client, request};
use crate::support::sidecar::{Plan, Tables, sidecar};
use crate::support::upstream::{Act, Gate, Reserved, Upstream, reply};

#[test]
fn pieces_arrive_as_they_are_sent() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        vec![
            Act::Send(
                b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n".to_vec(),
            ),
            Act::Wait(hold.clone()),
            Act::Send(b"6\r\nsecond\r\n0\r\n\r\n".to_vec()),
        ]
    });
    let sidecar = sidecar(upstream.addr, "");
    let mut stream = TcpStream::connect(sidecar.addr).unwrap();
    stream
        .write_all(&request("GET", "/events", &[], ""))
        .unwrap();
    let mut buffer = Vec::new();
    client::fill_until(&mut stream, &mut buffer, b"first").unwrap();
    gate.open();
    client::fill_until(&mut stream, &mut buffer, b"second").unwrap();
}

#[test]
fn trailers_pass_where_they_are_announced_and_wanted() {
    let upstream = Upstream::start(|_, _| {
        let text = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\n\
                    X-Sum: 9\r\n\r\n";
        vec![Act::Send(text.as_bytes().to_vec())]
    });
    let sidecar = sidecar(upstream.addr, "");
    let with_te = |method: &str, key: &str| {
        let fields = [
            ("TE", "trailers"),
            ("Connection", "TE"),
            ("Idempotency-Key", key),
        ];
        client::send(sidecar.addr, &request(method, "/t", &fields, ""))
    };
    let sum = vec![("X-Sum".to_lowercase(), "9".to_owned())];
    for (method, key, replays) in [
        ("GET", "g", false),
        ("POST", "k", false),
        ("POST", "k", true),
    ] {
        let answer = with_te(method, key);
        assert_eq!(
            (answer.text().as_str(), answer.is_replay()),
            ("hi", replays),
            "{method}"
        );
        let trailers: Vec<_> = answer
            .trailers
            .iter()
            .map(|(name, value)| (name.to_lowercase(), value.clone()))
            .collect();
        assert_eq!(trailers, sum, "{method} {replays}");
    }
    let plain = client::send(sidecar.addr, &request("GET", "/t", &[], ""));
    assert_eq!((plain.text().as_str(), plain.trailers.len()), ("hi", 0));
}

#[test]
fn a_client_that_goes_away_takes_its_uncovered_request_along() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream =
        Upstream::start(move |_, _| vec![Act::Wait(hold.clone()), reply(200, &[], "late")]);
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("GET", "/long", &[], ""));
    upstream.wait_calls(1);
    client.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    gate.open();
    assert_eq!(client::get(sidecar.addr, "/next").status, 200);
}

#[test]
fn a_silent_upstream_is_504_for_uncovered_requests_too() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| vec![Act::Wait(hold.clone())]);
    let tables = Tables {
        upstream: "answer_within = \"200ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let answer = client::get(sidecar.addr, "/");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (504, "upstream_timeout")
    );
    gate.open();
}

#[test]
fn a_body_of_unknown_length_passes_whatever_the_method() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    for method in ["GET", "OPTIONS", "SEARCH"] {
        let mut client = Client::connect(sidecar.addr);
        let head =
            format!("{method} /find HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.write(head.as_bytes());
        client.write(b"5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(client.answer().expect("an answer").status, 201, "{method}");
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.body, b"hello", "{method}");
        assert_eq!(
            seen.header("transfer-encoding"),
            Some("chunked"),
            "{method}"
        );
    }
}

fn with_trailers(addr: std::net::SocketAddr, method: &str) -> Answer {
    let mut client = Client::connect(addr);
    let fields = [
        ("TE", "trailers"),
        ("Connection", "TE"),
        ("Idempotency-Key", "k-1"),
    ];
    client.write(&request(method, "/sum", &fields, ""));
    client.answer().expect("an answer")
}

#[test]
fn trailers_pass_and_are_replayed_but_for_those_that_may_not_stand_there() {
    let upstream = Upstream::start(|_, _| {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Set-Cookie\r\n\r\n\
                    5\r\nhello\r\n0\r\nX-Sum: 9\r\nSet-Cookie: a=1\r\n\r\n";
        vec![Act::Send(text.as_bytes().to_vec())]
    });
    // Each thread has a pool of its own; here the pool is looked at.
    let tables = Tables {
        server: "threads = 1",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    for (method, replays) in [
        ("GET", false),
        ("GET", false),
        ("POST", false),
        ("POST", true),
    ] {
        let answer = with_trailers(sidecar.addr, method);
        assert_eq!(answer.text(), "hello", "{method}");
        assert_eq!(answer.is_replay(), replays, "{method}");
        let expected = [("x-sum".to_owned(), "9".to_owned())];
        assert_eq!(answer.trailers, expected, "{method}, replay: {replays}");
    }
    assert_eq!((upstream.calls(), upstream.connections()), (3, 1));
}

#[test]
fn an_answer_before_the_end_of_the_request_does_not_hold_up_the_next_one() {
    // Answers every head at once, whatever comes of the body.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = Vec::new();
                while let Some(end) = client::fill_until(&mut stream, &mut buffer, b"\r\n\r\n") {
                    buffer.drain(..end + 4);
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.write_all(answer).unwrap();
                }
            });
        }
    });
    let tables = Tables {
        server: "threads = 1",
        rest: "[[route]]\nname = \"off\"\npath = \"/off\"\n[route.policy]\nmode = \"off\"",
        ..Default::default()
    };
    let sidecar = Plan::new(addr, &tables).start();
    let mut slow = Client::connect(sidecar.addr);
    slow.write(b"POST /off HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!(slow.answer().expect("an early answer").text(), "ok");
    // Its connection to the upstream is not free: the body may still come.
    assert_eq!(client::get(sidecar.addr, "/next").text(), "ok");
    assert_eq!(client::pay(sidecar.addr, "k", "x").text(), "ok");
}

#[test]
fn a_client_is_not_blamed_for_an_upstream_that_is_slow_to_accept() {
    let slow = Reserved::new(std::net::Ipv4Addr::LOCALHOST.into());
    let _first = slow.hold_up();
    let tables = Tables {
        server: "body_timeout = \"200ms\"",
        rest: "[policy]\nmode = \"off\"",
        ..Default::default()
    };
    let sidecar = Plan::new(slow.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request(
        "POST",
        "/off",
        &[("Expect", "100-continue")],
        "body",
    ));
    // Longer than a client may take for a piece of its body.
    thread::sleep(std::time::Duration::from_millis(400));
    let upstream = slow.start(None, |_, _| vec![reply(201, &[], "done")]);
    assert_eq!(client.answer().unwrap().text(), "done");
    assert_eq!(upstream.seen()[0].body, b"body");
}

#[test]
fn an_upload_may_take_longer_than_an_answer() {
    let upstream = Upstream::start(|request, _| match request.target.as_str() {
        "/up" => vec![reply(201, &[], "whole")],
        _ => vec![Act::Hang],
    });
    let tables = Tables {
        upstream: "answer_within = \"400ms\"",
        rest: "[policy]\nmode = \"off\"",
        ..Default::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    for (target, status) in [("/up", 201), ("/silent", 504)] {
        let mut client = Client::connect(sidecar.addr);
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n");
        client.write(head.as_bytes());
        for _ in 0..8 {
            thread::sleep(std::time::Duration::from_millis(100));
            client.try_write(b"x");
        }
        assert_eq!(client.answer().unwrap().status, status, "{target}");
    }
    assert_eq!(upstream.calls(), 2);
}

/// `server.header_case`: names as they came, Title-Case where nobody knows any more.
#[test]
fn names_keep_their_letters_where_that_is_asked_for() {
    let answer = b"HTTP/1.1 200 OK\r\nX-Depot-ID: 7\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let upstream = Upstream::start(|_, _| vec![Act::Send(answer.to_vec())]);
    let tables = Tables {
        server: "header_case = \"preserve\"",
        rest: "[[route]]\nname = \"s\"\npath = \"/stream\"\n[route.policy]\nstream = true",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let ask = |method: &str, target: &str| {
        let key = format!("k{}", target.len());
        let fields = [("Idempotency-Key", key.as_str()), ("X-CuStOm", "1")];
        let answer = client::send(sidecar.addr, &request(method, target, &fields, ""));
        let names: Vec<String> = answer.headers.into_iter().map(|(name, _)| name).collect();
        names
    };
    for (method, target) in [("GET", "/"), ("POST", "/stream"), ("POST", "/held")] {
        let names = ask(method, target);
        assert!(names.contains(&"X-Depot-ID".to_owned()), "{names:?}");
        let seen = upstream.seen().pop().unwrap();
        for name in ["X-CuStOm", "Via", "Host"] {
            let is_there = seen.headers.iter().any(|(key, _)| key == name);
            assert!(is_there, "{name}: {:?}", seen.headers);
        }
    }
    let replayed = ask("POST", "/held");
    for name in ["X-Depot-Id", "Idempotent-Replayed"] {
        assert!(replayed.contains(&name.to_owned()), "{replayed:?}");
    }
    assert_eq!(upstream.calls(), 3);
}
