//! R28: upgrades of uncovered requests pass; nothing else does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::support::client::{self, Client};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};

/// An upstream that answers every request with `head` and then sends everything back.
pub fn echoing(head: &'static str) -> (SocketAddr, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = Vec::new();
        let end = client::fill_until(&mut stream, &mut buffer, b"\r\n\r\n").unwrap();
        let request = String::from_utf8(buffer.drain(..end).collect()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut piece = [0; 1024];
        while let Ok(count) = stream.read(&mut piece) {
            if count == 0 || stream.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        request
    });
    (addr, serving)
}

pub const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\
                        Sec-WebSocket-Accept: x\r\n\r\n";

fn asks(sidecar: &Sidecar, method: &str, upgrade: &str) -> TcpStream {
    let mut stream = TcpStream::connect(sidecar.addr).unwrap();
    write!(
        stream,
        "{method} /ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: {upgrade}\r\n\
         Sec-WebSocket-Key: k\r\nHTTP2-Settings: AAM\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
    )
    .unwrap();
    stream
}

#[test]
fn a_websocket_gets_through_and_outlives_the_clocks_of_http() {
    let (addr, serving) = echoing(SWITCHED);
    let tables = Tables {
        server: "idle_timeout = \"200ms\"\nheader_timeout = \"200ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(addr, &tables).start();
    let mut stream = asks(&sidecar, "GET", "websocket");
    let mut buffer = Vec::new();
    let end = client::fill_until(&mut stream, &mut buffer, b"\r\n\r\n").unwrap();
    let head = String::from_utf8(buffer.drain(..end + 4).collect())
        .unwrap()
        .to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(
        head.contains("upgrade: websocket") && head.contains("sec-websocket-accept: x"),
        "{head}"
    );
    sidecar.wait_metric("retrysafe_tunnels", |open| open == 1);
    // Longer than any clock: another connection is idle for as long, and is closed.
    let mut idle = Client::connect(sidecar.addr);
    assert!(idle.is_closed_within(crate::support::PATIENCE));
    for text in ["one", "two"] {
        stream.write_all(text.as_bytes()).unwrap();
        client::fill_until(&mut stream, &mut buffer, text.as_bytes()).unwrap();
        buffer.clear();
    }
    drop(stream);
    let request = serving.join().unwrap().to_lowercase();
    assert!(
        request.contains("upgrade: websocket") && request.contains("connection: upgrade"),
        "{request}"
    );
    assert!(
        request.contains("sec-websocket-key: k") && !request.contains("http2-settings"),
        "{request}"
    );
    sidecar.wait_metric("retrysafe_tunnels", |open| open == 0);
}

#[test]
fn a_switch_that_was_not_asked_for_is_a_bad_answer() {
    for (method, upgrade, rest) in [
        ("GET", "h2c", ""),
        ("GET", "other", ""),
        ("GET", "websocket, h2c", ""),
        ("HEAD", "websocket", ""),
        ("GET", "websocket", "upgrades = []"),
        // Covered: Upgrade ends here, and a 101 leaves the key unresolved.
        ("POST", "websocket", ""),
    ] {
        let (addr, _serving) = echoing(SWITCHED);
        let tables = Tables {
            server: rest,
            ..Tables::default()
        };
        let sidecar = Plan::new(addr, &tables).start();
        let mut stream = asks(&sidecar, method, upgrade);
        let mut buffer = Vec::new();
        let answer = client::read_answer(&mut stream, &mut buffer, method == "HEAD").unwrap();
        assert_eq!(answer.status, 502, "{method} {upgrade} {rest}");
        if method != "HEAD" {
            assert_eq!(answer.code(), "upstream_bad_response");
        }
    }
}

#[test]
fn an_upstream_that_declines_answers_as_ever() {
    let (addr, serving) = echoing("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
    let sidecar = sidecar(addr, "");
    let mut stream = asks(&sidecar, "GET", "websocket");
    let answer = client::read_answer(&mut stream, &mut Vec::new(), false).unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (426, "no"));
    drop(sidecar);
    serving.join().unwrap();
}
