//! Requests that proxies and servers are known to read differently: nothing passes whose end
//! Retrysafe and an upstream could see in two places, or that hides another request (R26, R27).
//!
//! Each goes out with `Host` and a key, then a tail: what ends a chunked body, a second request,
//! and octets up to the longest length the head names. Then the client closes its half.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::support::client::{Answer, Client};
use crate::support::sidecar::sidecar;
use crate::support::upstream::{Seen, Upstream, reply};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    method: String,
    target: String,
    /// None: as HTTP/0.9 had it.
    version: String,
    headers: Vec<(String, String)>,
    tier: Tier,
    /// The statuses of all answers on the connection. 200 comes from the upstream alone.
    answers: Vec<u16>,
}

/// What the source says of the request.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Tier {
    Compliant,
    Acceptable,
    Ambiguous,
    Severe,
}

const SECOND: &str = "POST /second HTTP/1.1\r\nHost: api.test\r\nContent-Length: 0\r\n";

impl Case {
    fn octets(&self, number: usize) -> Vec<u8> {
        let mut text = format!("{} {}", self.method, self.target);
        if !self.version.is_empty() {
            text.push(' ');
            text.push_str(&self.version);
        }
        text.push_str("\r\n");
        let named = |(name, _): &(String, String)| name.eq_ignore_ascii_case("host");
        if !self.headers.iter().any(named) {
            text.push_str("Host: api.test\r\n");
        }
        write!(text, "Idempotency-Key: k-{number}\r\n").unwrap();
        for (name, value) in &self.headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        text.push_str("\r\n");
        let tail = format!("0\r\n\r\n{SECOND}Idempotency-Key: s-{number}\r\n\r\n");
        let lengths = self.headers.iter();
        let lengths = lengths.filter_map(|(_, value)| value.trim().parse::<usize>().ok());
        // Not one that nobody would wait for.
        let length = lengths.filter(|length| *length < 100_000).max();
        let padding = length.unwrap_or(0).saturating_sub(tail.len());
        text.push_str(&tail);
        text.push_str(&"x".repeat(padding));
        text.into_bytes()
    }
}

fn play(case: &Case, number: usize, addr: std::net::SocketAddr) -> Vec<Answer> {
    let mut client = Client::connect(addr);
    client.write(&case.octets(number));
    client.half_close();
    let mut answers: Vec<Answer> = client.answer_to(&case.method).into_iter().collect();
    while let Some(answer) = client.answer() {
        answers.push(answer);
    }
    answers
}

/// What an upstream must never get, whatever the client sent.
fn assert_sound(request: &Seen, case: &str) {
    let count = |name: &str| {
        let named = |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        request.headers.iter().filter(named).count()
    };
    let framings = count("content-length") + count("transfer-encoding");
    assert!(framings <= 1, "{case}: {request:?}");
    if let Some(coding) = request.header("transfer-encoding") {
        assert_eq!(coding, "chunked", "{case}");
    }
    if let Some(length) = request.header("content-length") {
        assert_eq!(length, request.body.len().to_string(), "{case}");
    }
    for (name, value) in &request.headers {
        let token =
            |octet: u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet);
        assert!(
            !name.is_empty() && name.bytes().all(token),
            "{case}: {name:?}"
        );
        let control = |letter: char| letter != '\t' && (letter < ' ' || letter == '\x7f');
        assert!(!value.contains(control), "{case}: {name}: {value:?}");
        let disguised = name.to_ascii_lowercase().replace(['_', '.'], "-");
        let framing = ["content-length", "transfer-encoding"];
        let plain = name.eq_ignore_ascii_case(&disguised);
        assert!(
            plain || !framing.contains(&disguised.as_str()),
            "{case}: {name}"
        );
    }
}

#[test]
fn no_request_that_can_be_read_in_two_ways_reaches_the_upstream() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/desync.json");
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let upstream = Upstream::start(|_, _| vec![reply(200, &[], "")]);
    let sidecar = sidecar(upstream.addr, "");
    for (number, case) in cases.iter().enumerate() {
        let before = upstream.calls();
        let answers = play(case, number, sidecar.addr);
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, case.answers, "{} {:?}", case.name, answers);
        let seen = &upstream.seen()[before..];
        let from_upstream = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(seen.len(), from_upstream, "{}: {seen:?}", case.name);
        for request in seen {
            assert_sound(request, &case.name);
        }
        if case.tier == Tier::Severe {
            assert_eq!((seen.len(), answers.len()), (0, 1), "{}", case.name);
        }
    }
}
