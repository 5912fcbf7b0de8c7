//! R28: `Expect: 100-continue` of uncovered requests: the upstream says whether it wants the body.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::PATIENCE;
use crate::support::client::{Client, fill, fill_until};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::Upstream;

const HEAD: &[u8] =
    b"SEARCH / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// An upstream that does this with its first connection, once the head was there.
fn upstream(
    done: impl FnOnce(TcpStream, String) + Send + 'static,
) -> (Sidecar, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sidecar = sidecar(listener.local_addr().unwrap(), "");
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = Vec::new();
        let end = fill_until(&mut stream, &mut head, b"\r\n\r\n").unwrap() + 4;
        assert_eq!(head.len(), end, "a body before it was asked for");
        done(stream, String::from_utf8(head).unwrap().to_lowercase());
    });
    (sidecar, serving)
}

fn asking(sidecar: &Sidecar) -> Client {
    let mut client = Client::connect(sidecar.addr);
    client.write(HEAD);
    client
}

#[test]
fn the_upstreams_100_is_what_asks_the_client_for_its_body() {
    let (sidecar, serving) = upstream(|mut stream, head| {
        assert!(head.contains("expect: 100-continue"), "{head}");
        stream.write_all(CONTINUE).unwrap();
        let mut body = Vec::new();
        fill(&mut stream, &mut body, 4).unwrap();
        assert_eq!(body, b"body");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer).unwrap();
    });
    let mut client = asking(&sidecar);
    assert_eq!(client.octets(CONTINUE.len()), CONTINUE);
    client.write(b"body");
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(answer.header("connection"), None);
    serving.join().unwrap();
}

#[test]
fn a_refusal_comes_without_the_body_and_ends_the_connection() {
    for status in ["417 Expectation Failed", "413 Content Too Large", "200 OK"] {
        let (sidecar, serving) = upstream(move |mut stream, _| {
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
            stream.write_all(answer.as_bytes()).unwrap();
            // Nothing of the body comes, until the connection is given up.
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert!(rest.is_empty(), "{rest:?}");
        });
        let mut client = asking(&sidecar);
        let answer = client.answer().unwrap();
        assert_eq!(answer.status.to_string(), status[..3]);
        assert_eq!((answer.text().as_str(), answer.interim), ("no", vec![]));
        assert_eq!(
            answer
                .headers
                .iter()
                .filter(|(name, value)| {
                    name.eq_ignore_ascii_case("connection") && value == "close"
                })
                .count(),
            1
        );
        assert!(client.is_closed_within(PATIENCE));
        serving.join().unwrap();
        sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 0);
    }
}

/// Many servers know nothing of it: the client is asked after a while, as it would ask itself.
#[test]
fn an_upstream_that_says_nothing_gets_the_body_all_the_same() {
    let (sidecar, serving) = upstream(|mut stream, _| {
        let mut body = Vec::new();
        fill(&mut stream, &mut body, 4).unwrap();
        assert_eq!(body, b"body");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer).unwrap();
    });
    let mut client = asking(&sidecar);
    assert_eq!(client.octets(CONTINUE.len()), CONTINUE);
    client.write(b"body");
    assert_eq!(client.answer().unwrap().text(), "ok");
    serving.join().unwrap();
}

/// R12: on a covered request it ends here.
#[test]
fn the_expectation_of_a_covered_request_is_met_here() {
    let upstream = Upstream::counting();
    let sidecar = Plan::new(upstream.addr, &Tables::default()).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(
        b"POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
    );
    assert_eq!(client.octets(CONTINUE.len()), CONTINUE);
    assert_eq!(upstream.calls(), 0);
    client.write(b"body");
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(upstream.seen()[0].header("expect"), None);
}
