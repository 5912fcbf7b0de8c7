//! What passes beside the head and the body's octets: framing and trailers (R21, R27, R28).

use crate::support::client::{Answer, Client, request};
use crate::support::sidecar::sidecar;
use crate::support::upstream::{Act, Upstream};

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
    let sidecar = sidecar(upstream.addr, "");
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
