//! R19, R28: bodies larger than any buffer, both ways through a process of its own, whose peak of
//! memory the kernel keeps.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use crate::support::client;
use crate::support::sidecar::{Plan, Sidecar, Tables};

/// A GiB; ten where `RETRYSAFE_TEST_LONG` is set (`tests/run --long`).
fn size() -> u64 {
    let long = std::env::var_os("RETRYSAFE_TEST_LONG").is_some_and(|value| value == "1");
    if long { 10 << 30 } else { 1 << 30 }
}

/// The most that the process may ever have held, in KiB: a build without optimisation takes about
/// a third of it.
const PEAK: u64 = 64 * 1024;

/// How much goes into one write.
const PIECE: usize = 1 << 18;

/// Octets that repeat with a prime length: a piece lost, doubled or out of place shows, whatever
/// power of two the buffers on the way are.
struct Pattern(Vec<u8>);

impl Pattern {
    const PERIOD: usize = 1_048_573;

    fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut octets = Vec::with_capacity(Self::PERIOD + PIECE);
        while octets.len() < Self::PERIOD {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            octets.extend_from_slice(&state.to_le_bytes());
        }
        octets.truncate(Self::PERIOD);
        octets.extend_from_within(..PIECE);
        Self(octets)
    }

    /// What stands at `at` and after it, `length` octets of it.
    fn slice(&self, at: u64, length: usize) -> &[u8] {
        let start = usize::try_from(at % Self::PERIOD as u64).unwrap();
        &self.0[start..start + length]
    }

    fn write(&self, stream: &mut TcpStream, size: u64) {
        let mut at = 0;
        while at < size {
            let length = usize::try_from((size - at).min(PIECE as u64)).unwrap();
            stream.write_all(self.slice(at, length)).unwrap();
            at += length as u64;
        }
    }

    /// Reads `size` octets, of which `begun` came before, and compares each.
    fn read(&self, stream: &mut TcpStream, begun: &[u8], size: u64) {
        assert!(begun == self.slice(0, begun.len()), "wrong from the start");
        let mut at = begun.len() as u64;
        let mut piece = vec![0; PIECE];
        while at < size {
            let count = client::read(stream, &mut piece).unwrap();
            assert!(count > 0, "cut after {at} of {size} octets");
            assert!(
                piece[..count] == *self.slice(at, count),
                "other octets between {at} and {}",
                at + count as u64
            );
            at += count as u64;
        }
        assert_eq!(at, size, "more than was announced");
    }
}

/// An upstream for one exchange: compares the body it gets, and answers with one of `down` octets.
fn upstream(up: u64, down: u64) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let pattern = Pattern::new();
        let (mut stream, _) = listener.accept().unwrap();
        let begun = after_head(&mut stream);
        pattern.read(&mut stream, &begun, up);
        write!(stream, "HTTP/1.1 201 X\r\nContent-Length: {down}\r\n\r\n").unwrap();
        pattern.write(&mut stream, down);
    });
    (addr, serving)
}

/// Reads a head away; what came after it.
fn after_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut buffer = Vec::new();
    let end = client::fill_until(stream, &mut buffer, b"\r\n\r\n").expect("a head");
    buffer.split_off(end + 4)
}

/// One exchange with bodies of these sizes, compared at both ends; what came with the answer.
fn exchange(sidecar: &Sidecar, fields: &str, up: u64, down: u64) {
    let pattern = Pattern::new();
    let mut stream = TcpStream::connect(sidecar.addr).unwrap();
    let head = format!("POST /big HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {up}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    pattern.write(&mut stream, up);
    let begun = after_head(&mut stream);
    pattern.read(&mut stream, &begun, down);
}

fn assert_peak(sidecar: &Sidecar, what: &str) {
    let peak = sidecar.peak_memory();
    println!("{what}: {peak} KiB at most");
    assert!(
        peak < PEAK,
        "{what}: {peak} KiB at most, {PEAK} are allowed"
    );
}

fn start(upstream: SocketAddr, rest: &str) -> Sidecar {
    let tables = Tables {
        rest,
        ..Tables::default()
    };
    Plan::new(upstream, &tables).start()
}

#[test]
fn a_body_larger_than_any_buffer_goes_up_and_another_down_in_little_memory() {
    let (addr, serving) = upstream(size(), size());
    let sidecar = start(addr, "[policy]\nmode = \"off\"");
    exchange(&sidecar, "", size(), size());
    serving.join().unwrap();
    assert_peak(&sidecar, "both ways, not covered");
}

#[test]
fn an_answer_far_over_the_limit_reaches_the_first_client_whole_in_little_memory() {
    let (addr, serving) = upstream(1, size());
    let sidecar = start(addr, "");
    exchange(&sidecar, "Idempotency-Key: k\r\n", 1, size());
    serving.join().unwrap();
    assert_peak(&sidecar, "down, covered");
    // R19: it was executed, and is not kept.
    let head = client::request("POST", "/big", &[("Idempotency-Key", "k")], "-");
    let retry = [&head[..head.len() - 1], Pattern::new().slice(0, 1)].concat();
    let again = client::send(sidecar.addr, &retry);
    assert_eq!(
        (again.status, again.code().as_str()),
        (410, "idempotency_response_not_kept")
    );
}
