//! R30: nine thousand connections that rest, in a process of its own; what each takes, and that
//! they hold up nobody.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::PATIENCE;
use crate::support::client::{self, Client, request};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::Upstream;

const HTTP1: u64 = 8_000;
const HTTP2: u64 = 1_000;

/// The most that a resting connection may take of the process, in octets: about twice what a
/// build without optimisation takes.
const EACH_HTTP1: u64 = 48 * 1024;
const EACH_HTTP2: u64 = 40 * 1024;

/// Descriptors for these connections and for the tests that run at the same time.
const FILES: u64 = HTTP1 + HTTP2 + 1_000;

/// The limit is this process's, and the proxy's too, which inherits it.
fn assert_descriptors() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.unwrap().split_whitespace().next().unwrap();
    let enough = soft == "unlimited" || soft.parse::<u64>().unwrap() >= FILES;
    assert!(
        enough,
        "this test needs {FILES} file descriptors and may open {soft}: raise the limit \
         (ulimit -n {FILES}), as tests/run does"
    );
}

/// HTTP/1.1 that rests after one request.
fn after_a_request(addr: SocketAddr) -> Client {
    let mut client = Client::connect(addr);
    client.write(&request("GET", "/", &[], ""));
    assert_eq!(client.answer().unwrap().status, 201);
    client
}

/// HTTP/2 that rests after both sides' SETTINGS were acknowledged.
fn after_settings(addr: SocketAddr) -> TcpStream {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ACKNOWLEDGED: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &SETTINGS].concat();
    stream.write_all(&hello).unwrap();
    let (mut theirs, mut ours) = (false, false);
    while !(theirs && ours) {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [_, high, low, kind, flags, ..] = head;
        let mut payload = vec![0; usize::from(high) << 8 | usize::from(low)];
        stream.read_exact(&mut payload).unwrap();
        match (kind, flags) {
            (4, 0) => theirs = true,
            (4, 1) => ours = true,
            _ => {}
        }
    }
    stream.write_all(&ACKNOWLEDGED).unwrap();
    stream
}

/// Opens so many, and says how many octets each takes.
fn rest<T>(sidecar: &Sidecar, what: &str, count: u64, open: impl Fn() -> T) -> (Vec<T>, u64) {
    let before = sidecar.memory();
    let idle = (0..count).map(|_| open()).collect();
    let after = sidecar.memory();
    let each = after.saturating_sub(before) * 1024 / count;
    println!("{count} {what}: {before} KiB before, {after} KiB after, {each} octets each");
    (idle, each)
}

#[test]
fn nine_thousand_resting_connections_fit_into_little_memory_and_hold_up_nobody() {
    assert_descriptors();
    let upstream = Upstream::counting();
    let tables = Tables {
        // However long it takes to open them all.
        server: "idle_timeout = \"10m\"\nheader_timeout = \"10m\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let warm = (after_a_request(sidecar.addr), after_settings(sidecar.addr));
    let open = || after_a_request(sidecar.addr);
    let (mut http1, each_http1) = rest(&sidecar, "of HTTP/1.1", HTTP1, open);
    let open = || after_settings(sidecar.addr);
    let (http2, each_http2) = rest(&sidecar, "of HTTP/2", HTTP2, open);
    // The warm ones are open too.
    let all = HTTP1 + HTTP2 + 2;
    assert_eq!(sidecar.metric("retrysafe_connections"), all);
    assert!(each_http1 < EACH_HTTP1, "{each_http1} octets each");
    assert!(each_http2 < EACH_HTTP2, "{each_http2} octets each");

    assert_eq!(client::pay(sidecar.addr, "k", "x").status, 201);
    assert!(client::pay(sidecar.addr, "k", "x").is_replay());
    // One that rested is as good as a new one.
    let rested = http1.last_mut().unwrap();
    rested.write(&request("GET", "/", &[], ""));
    assert_eq!(rested.answer().unwrap().status, 201);

    drop((warm, http1, http2));
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
}
