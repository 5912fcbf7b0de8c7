//! What becomes of the body and the connection of a request that is refused (R12, R30).

use std::time::Duration;

use crate::support::client::{Client, request};
use crate::support::sidecar::sidecar;
use crate::support::upstream::Upstream;

const KEY: (&str, &str) = ("Idempotency-Key", "k-1");

#[test]
fn a_client_that_sends_all_before_it_reads_gets_its_413() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "[policy]\nmax_request = \"1KiB\"");
    let large = "x".repeat(8 << 20);
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[KEY], &large));
    let answer = client.answer().expect("the whole answer");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "request_body_too_large")
    );
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed_within(Duration::from_secs(5)));
    assert_eq!(upstream.calls(), 0);
}

#[test]
fn a_small_body_of_a_refused_request_is_read_off_and_the_connection_goes_on() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let evil = "GET /evil HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[], &evil));
    let answer = client.answer().expect("a first answer");
    assert_eq!(answer.code(), "idempotency_key_missing");
    assert_eq!(answer.header("connection"), None);
    client.write(&request("POST", "/pay", &[KEY], "amount=1"));
    assert_eq!(client.answer().expect("a second answer").status, 201);
    let targets: Vec<_> = upstream
        .seen()
        .iter()
        .map(|seen| seen.target.clone())
        .collect();
    assert_eq!(targets, ["/pay"]);
}

#[test]
fn who_waits_for_100_is_refused_at_once_and_told_that_the_connection_ends() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(
        b"POST /pay HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    );
    let answer = client.answer().expect("an answer");
    assert_eq!((answer.status, answer.interim.len()), (400, 0));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed_within(Duration::from_secs(5)));
}
