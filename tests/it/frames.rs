//! HTTP/2 from clients that keep to no rule, octet by octet (R27, R30): floods end the connection and
//! not the process, and a malformed request never gets to the upstream.

use crate::support::PATIENCE;
use crate::support::client::{Client, pay};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::{Act, Upstream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals that nobody remembers (RFC 7541 section 6.2.2), in this order and spelling.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            assert!(text.len() < 127, "a length of one octet");
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// POST `/pay` with the key `k`.
const PAYING: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "api.test"),
    (":path", "/pay"),
    ("idempotency-key", "k"),
];

fn opening() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The frames that come until `enough`, or until the connection ends.
fn frames(client: &mut Client, enough: impl Fn(u8, u8, u32) -> bool) -> Vec<(u8, u32, Vec<u8>)> {
    let mut seen = Vec::new();
    while let Some(head) = client.try_octets(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let Some(payload) = client.try_octets(length as usize) else {
            break;
        };
        seen.push((head[3], stream, payload));
        if enough(head[3], head[4], stream) {
            break;
        }
    }
    seen
}

/// What is left after a flood: nothing held, and others are served.
fn is_well(sidecar: &Sidecar, upstream: &Upstream) {
    let before = upstream.calls();
    let key = format!("other-{before}");
    assert_eq!(pay(sidecar.addr, &key, "x").status, 201);
    assert_eq!(upstream.calls(), before + 1);
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    sidecar.wait_metric("retrysafe_buffered_bytes", |held| held == 0);
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
}

fn ends(flood: &[u8]) {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.try_write(flood);
    assert!(client.is_closed_within(PATIENCE));
    drop(client);
    assert_eq!(upstream.calls(), 0);
    is_well(&sidecar, &upstream);
}

#[test]
fn a_flood_of_resets_ends_the_connection() {
    let cancel = 8_u32.to_be_bytes();
    let mut flood = opening();
    // In one piece: what is reset before it was looked at is what makes the flood.
    for stream in (1..2_000).step_by(2) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &block(&PAYING)));
        flood.extend(frame(RST_STREAM, 0, stream, &cancel));
    }
    ends(&flood);
}

#[test]
fn a_head_that_goes_on_for_ever_ends_the_connection() {
    let mut flood = opening();
    flood.extend(frame(HEADERS, 0, 1, &block(&PAYING)));
    let long = "a".repeat(100);
    let more = block(&[("x-more", long.as_str()); 100]);
    for _ in 0..1_000 {
        flood.extend(frame(CONTINUATION, 0, 1, &more));
    }
    ends(&flood);
}

#[test]
fn a_head_of_empty_pieces_ends_the_connection() {
    let mut flood = opening();
    flood.extend(frame(HEADERS, 0, 1, &block(&PAYING)));
    for _ in 0..100_000 {
        flood.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    ends(&flood);
}

#[test]
fn a_body_of_empty_pieces_ends_the_connection() {
    let mut flood = opening();
    flood.extend(frame(HEADERS, END_HEADERS, 1, &block(&PAYING)));
    for _ in 0..100_000 {
        flood.extend(frame(DATA, 0, 1, &[]));
    }
    ends(&flood);
}

/// What has to be answered and is never read: no more is kept than fits.
#[test]
fn pings_and_settings_without_end_are_no_more_than_a_connection() {
    let upstream = Upstream::counting();
    let lines = Tables {
        server: "write_timeout = \"1s\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &lines).start();
    for (kind, payload) in [(PING, &[0; 8][..]), (SETTINGS, &[])] {
        let before = sidecar.memory();
        let mut client = Client::connect(sidecar.addr);
        client.write(&opening());
        let flood = frame(kind, 0, 0, payload).repeat(2_000);
        // Until the other side takes no more, or ends it.
        for _ in 0..30 {
            client.try_write(&flood);
        }
        let grown = sidecar.memory().saturating_sub(before);
        assert!(grown < 16 << 10, "{grown} KiB");
        drop(client);
        is_well(&sidecar, &upstream);
    }
}

/// What is wrong, and the field of `PAYING` that is left out, replaced or added.
const MALFORMED: &[(&str, &str, Option<&str>)] = &[
    ("no method", ":method", None),
    ("no path", ":path", None),
    ("no scheme", ":scheme", None),
    ("an unknown pseudo-field", ":foo", Some("bar")),
    ("one of answers", ":status", Some("200")),
    ("one of extended CONNECT", ":protocol", Some("websocket")),
    ("an empty path", ":path", Some("")),
    ("a path without a slash", ":path", Some("pay")),
    ("a path with a blank", ":path", Some("/pay HTTP/1.1")),
    ("a path with a line break", ":path", Some("/a\r\nX: y")),
    ("an empty method", ":method", Some("")),
    ("a method with a blank", ":method", Some("POST /evil")),
    ("an empty authority", ":authority", Some("")),
    ("user info", ":authority", Some("a@api.test")),
    ("a name in capitals", "X-Big", Some("1")),
    ("a name with a blank", "x big", Some("1")),
    ("a name with a colon", "x:big", Some("1")),
    ("an empty name", "", Some("1")),
    ("a line break in a value", "x-a", Some("1\r\nx-b: 2")),
    ("a zero octet in a value", "x-a", Some("1\0")),
    ("connection", "connection", Some("close")),
    ("transfer-encoding", "transfer-encoding", Some("chunked")),
    ("upgrade", "upgrade", Some("h2c")),
    ("keep-alive", "keep-alive", Some("1")),
    ("te with more than trailers", "te", Some("gzip")),
    ("a length that is not so", "content-length", Some("9")),
    ("a length that is no number", "content-length", Some("+1")),
];

fn changed(name: &'static str, value: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    let kept = PAYING.into_iter().filter(|(other, _)| *other != name);
    let mut fields: Vec<_> = kept.collect();
    if let Some(value) = value {
        // Pseudo-fields come first, whatever they are.
        let at = if name.starts_with(':') {
            0
        } else {
            fields.len()
        };
        fields.insert(at, (name, value));
    }
    fields
}

#[test]
fn a_malformed_request_is_refused_and_never_passed_on() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let twice = |name, value| [&[(name, value)], &PAYING[..]].concat();
    let mut late = PAYING.to_vec();
    late.rotate_left(4);
    let mut cases = vec![
        ("two paths", twice(":path", "/pay")),
        ("two methods", twice(":method", "GET")),
        ("two authorities", twice(":authority", "evil.test")),
        ("a pseudo-field after others", late),
    ];
    cases.extend(
        MALFORMED
            .iter()
            .map(|(what, name, value)| (*what, changed(name, *value))),
    );
    for (what, fields) in cases {
        let mut client = Client::connect(sidecar.addr);
        let mut octets = opening();
        octets.extend(frame(HEADERS, END_HEADERS, 1, &block(&fields)));
        octets.extend(frame(DATA, END_STREAM, 1, b"x"));
        client.write(&octets);
        let refused = frames(&mut client, |kind, flags, stream| {
            kind == GOAWAY || stream == 1 && (kind == RST_STREAM || flags & END_STREAM != 0)
        });
        let (kind, ..) = refused.last().unwrap_or_else(|| panic!("{what}: silence"));
        // Either the library refuses it, or we do: 400, the twelfth of the static table.
        let is_400 = |(kind, _, block): &(u8, u32, Vec<u8>)| {
            *kind == HEADERS && block.first() == Some(&0x8c)
        };
        let is_refused = [RST_STREAM, GOAWAY].contains(kind) || refused.iter().any(is_400);
        assert!(is_refused, "{what}: {refused:?}");
        assert_eq!(upstream.calls(), 0, "{what}");
    }
    is_well(&sidecar, &upstream);
}

/// The beginning of a connection whose streams take so many octets at first, and a GET.
fn get_with_window(octets: u32) -> Vec<u8> {
    let window = [&4_u16.to_be_bytes()[..], &octets.to_be_bytes()].concat();
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "api.test"),
        (":path", "/"),
    ];
    let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&get));
    [PREFACE, &frame(SETTINGS, 0, 0, &window), &head].concat()
}

/// R30: its window is closed and it reads nothing, so nobody would ever notice by the socket.
#[test]
fn a_client_that_takes_nothing_of_its_answer_is_dropped() {
    let piece = vec![b'x'; 1 << 20];
    let upstream = Upstream::start(move |_, _| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n".to_vec();
        vec![Act::Send(head), Act::Repeat(piece.clone(), 100)]
    });
    let tables = Tables {
        server: "write_timeout = \"1s\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&get_with_window(0));
    let answered = frames(&mut client, |kind, _, stream| {
        kind == HEADERS && stream == 1
    });
    assert_eq!(answered.last().unwrap().0, HEADERS);
    // It shows that it is there, again and again: that is no taking.
    let is_over = client.is_closed_while(|client| client.try_write(&frame(PING, 0, 0, &[1; 8])));
    assert!(is_over);
    sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 0);
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    sidecar.wait_log("client_stalled");
}

/// The same client takes a little all the time: it gets everything.
#[test]
fn a_slow_client_over_http_2_is_not_dropped_as_long_as_it_takes_something() {
    let upstream = Upstream::start(|_, _| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n".to_vec();
        vec![Act::Send([head, vec![b'x'; 20]].concat())]
    });
    let tables = Tables {
        server: "write_timeout = \"600ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&get_with_window(1));
    let mut taken = 0;
    while taken < 20 {
        let pieces = frames(&mut client, |kind, _, _| kind == DATA);
        let (kind, _, data) = pieces.last().unwrap();
        assert_eq!((*kind, data.len()), (DATA, 1), "after {taken}");
        taken += 1;
        // The pace of a client is what this is about.
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.write(&frame(8, 0, 1, &1_u32.to_be_bytes()));
    }
    client.write(&frame(SETTINGS, ACK, 0, &[]));
}
