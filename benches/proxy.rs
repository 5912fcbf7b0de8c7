//! What Retrysafe costs: the same requests to the upstream itself, through nginx (which ignores
//! the key) and through Retrysafe, in turns, each proxy with one worker thread.
//!
//! `cargo bench --bench proxy -- [seconds] [rounds] [connections]`; docs/performance.md says how
//! to read it. nginx and redis-server take part where they are installed, and the store that
//! `RETRYSAFE_BENCH_STORE` names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);
/// Keys of the replay suite.
const RECORDED: u64 = 64;
const BODY: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suite {
    /// GET: not covered.
    Pass,
    /// POST with a key never seen.
    First,
    /// POST with a key that has its record.
    Replay,
}

impl Suite {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Pass, "uncovered"),
        (Self::First, "first"),
        (Self::Replay, "replay"),
    ];

    fn request(self) -> String {
        let key = match self {
            Self::Pass => return "GET /v1/things HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            Self::First => format!("first-{}", NEXT_KEY.fetch_add(1, Ordering::Relaxed)),
            Self::Replay => format!(
                "again-{}",
                NEXT_KEY.fetch_add(1, Ordering::Relaxed) % RECORDED
            ),
        };
        let body = "x".repeat(BODY);
        format!(
            "POST /v1/payments HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: \
             {BODY}\r\n\r\n{body}"
        )
    }
}

/// Something that answers, and the process to measure.
struct Target {
    name: &'static str,
    addr: SocketAddr,
    process: Option<Child>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Target {
    /// Nanoseconds of CPU so far, all threads.
    fn cpu(&self) -> u64 {
        let Some(process) = &self.process else {
            return 0;
        };
        let threads = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
        let spent = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        spent.sum()
    }
}

/// Reads one message with a length; false where the connection ended.
fn read_message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut piece = [0; 16 * 1024];
    loop {
        if let Some(head) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
            let length = text.split("\r\ncontent-length:").nth(1).map_or(0, |rest| {
                rest.lines().next().unwrap().trim().parse().unwrap()
            });
            if buffer.len() >= head + 4 + length {
                buffer.drain(..head + 4 + length);
                return true;
            }
        }
        match stream.read(&mut piece) {
            Ok(count @ 1..) => buffer.extend_from_slice(&piece[..count]),
            _ => return false,
        }
    }
}

fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer = format!(
        "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n{}",
        "y".repeat(BODY)
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut buffer = Vec::new();
                while read_message(&mut stream, &mut buffer) {
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn wait_for(addr: SocketAddr) {
    let end = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(addr).is_err() {
        assert!(Instant::now() < end, "nothing listens on {addr}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that may not be installed.
fn start(name: &'static str, command: &mut Command, addr: SocketAddr) -> Option<Target> {
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(process) = process else {
        println!("{name} is not installed: it takes no part");
        return None;
    };
    let target = Target {
        name,
        addr,
        process: Some(process),
    };
    wait_for(addr);
    Some(target)
}

fn nginx(folder: &std::path::Path, upstream: SocketAddr) -> Option<Target> {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let root = folder.display();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let config = format!(
        "daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
         events {{ worker_connections 4096; }}
         http {{ access_log off; keepalive_requests 100000000; {paths}
           upstream u {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}
           server {{ listen {addr}; location / {{ proxy_pass http://u; proxy_http_version 1.1;
             proxy_set_header Connection \"\"; }} }} }}"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    start("nginx", Command::new("nginx").arg("-c").arg(file), addr)
}

fn redis(folder: &std::path::Path) -> Option<Target> {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let port = addr.port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port]);
    command.args(["--save", "", "--appendonly", "no"]);
    start("redis-server", command.arg("--dir").arg(folder), addr)
}

fn retrysafe(
    name: &'static str,
    folder: &std::path::Path,
    upstream: SocketAddr,
    store: &str,
) -> Target {
    let folder = folder.join(name);
    std::fs::create_dir(&folder).unwrap();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nthreads = 1\n[upstream]\nurl = \"http://{upstream}\"\n\
         [health]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n[log]\nformat = \"json\"\n"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .arg("run")
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().unwrap().contains("\"listening\""));
    let event: serde_json::Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
    let addr = event["address"].as_str().unwrap().parse().unwrap();
    // Its pipe stays open, or its next line would fail.
    std::thread::spawn(move || lines.count());
    Target {
        name,
        addr,
        process: Some(process),
    }
}

/// One measurement.
struct Figures {
    per_second: f64,
    /// CPU of the proxy, microseconds per request.
    cpu: f64,
    median: Duration,
    p99: Duration,
}

/// Waits for each answer before the next request, on `connections` connections.
fn measure(target: &Target, suite: Suite, seconds: f64, connections: usize) -> Figures {
    let (start, before) = (Instant::now(), target.cpu());
    let end = start + Duration::from_secs_f64(seconds);
    let addr = target.addr;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(addr).unwrap();
                stream.set_nodelay(true).unwrap();
                let (mut buffer, mut times) = (Vec::new(), Vec::new());
                while Instant::now() < end {
                    let begun = Instant::now();
                    stream.write_all(suite.request().as_bytes()).unwrap();
                    while buffer.len() < 12 {
                        let mut piece = [0; 1024];
                        let count = stream.read(&mut piece).unwrap();
                        assert!(count > 0, "the connection ended");
                        buffer.extend_from_slice(&piece[..count]);
                    }
                    assert_eq!(&buffer[9..12], b"201", "{suite:?}");
                    assert!(read_message(&mut stream, &mut buffer));
                    times.push(begun.elapsed());
                }
                times
            })
        })
        .collect();
    let times = threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap());
    let mut times: Vec<Duration> = times.collect();
    let (elapsed, cpu) = (start.elapsed(), target.cpu() - before);
    times.sort_unstable();
    let count = f64::from(u32::try_from(times.len()).unwrap());
    Figures {
        per_second: count / elapsed.as_secs_f64(),
        cpu: Duration::from_nanos(cpu).as_secs_f64() * 1e6 / count,
        median: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(suite: &str, targets: &[&Target], rounds: &[Vec<Figures>]) {
    let of = |at: usize, get: fn(&Figures) -> f64| {
        median(rounds.iter().map(|round| get(&round[at])).collect())
    };
    // Ratios are to nginx, or to the upstream itself where there is none.
    let base = targets
        .iter()
        .rposition(|target| !target.name.starts_with("retrysafe"));
    let base = base.unwrap_or_default();
    for (at, target) in targets.iter().enumerate() {
        let ratios = |get: fn(&Figures) -> f64| {
            let pairs = rounds
                .iter()
                .map(|round| get(&round[at]) / get(&round[base]));
            median(pairs.collect())
        };
        println!(
            "{suite:<10} {:<16} {:>8.0} {:>6.2} {:>8.1} {:>6.2} {:>8.0} {:>8.0}",
            target.name,
            of(at, |one| one.per_second),
            ratios(|one| one.per_second),
            of(at, |one| one.cpu),
            ratios(|one| one.cpu),
            of(at, |one| one.median.as_secs_f64() * 1e6),
            of(at, |one| one.p99.as_secs_f64() * 1e6),
        );
    }
}

fn main() {
    // `cargo test --all-targets` runs it too, and in a debug build: nothing to measure there.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    let numbers: Vec<f64> = words.map(|word| word.parse().expect("a number")).collect();
    let number = |at: usize, default: f64| numbers.get(at).copied().unwrap_or(default);
    let (seconds, rounds) = (number(0, 2.0), number(1, 5.0));
    let connections = format!("{:.0}", number(2, 32.0)).parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let upstream = upstream();
    let store = redis(folder.path());
    let mut targets = vec![Target {
        name: "upstream itself",
        addr: upstream,
        process: None,
    }];
    targets.extend(nginx(folder.path(), upstream));
    targets.push(retrysafe(
        "retrysafe-file",
        folder.path(),
        upstream,
        "file:records.db",
    ));
    if let Some(store) = &store {
        let url = format!("redis://{}", store.addr);
        targets.push(retrysafe("retrysafe-redis", folder.path(), upstream, &url));
    }
    if let Ok(url) = std::env::var("RETRYSAFE_BENCH_STORE") {
        targets.push(retrysafe("retrysafe-named", folder.path(), upstream, &url));
    }
    let targets: Vec<&Target> = targets.iter().collect();
    println!(
        "{:<10} {:<16} {:>8} {:>6} {:>8} {:>6} {:>8} {:>8}",
        "suite", "target", "req/s", "ratio", "CPU us", "ratio", "p50 us", "p99 us"
    );
    for (suite, name) in Suite::ALL {
        for target in &targets {
            // Connections, caches, and the records of the replay suite.
            measure(target, suite, 0.5, connections);
        }
        let mut all = Vec::new();
        let mut turn = 0.0;
        while turn < rounds {
            let mut round: Vec<(usize, Figures)> = Vec::new();
            for step in 0..targets.len() {
                let at = (step + all.len()) % targets.len();
                round.push((at, measure(targets[at], suite, seconds, connections)));
            }
            round.sort_by_key(|(at, _)| *at);
            all.push(round.into_iter().map(|(_, figures)| figures).collect());
            turn += 1.0;
        }
        report(name, &targets, &all);
    }
}
