//! An upstream that does what a script says, and counts what it received whole.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::PATIENCE;

/// A request as the upstream got it, head and body.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub method: String,
    pub target: String,
    /// Names as sent.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// One thing to do after a request was received.
#[derive(Clone)]
pub enum Act {
    /// Writes these octets.
    Send(Vec<u8>),
    /// Writes these octets so many times.
    Repeat(Vec<u8>, usize),
    /// Waits until the gate is open.
    Wait(Gate),
    /// Takes its time: only where how long an answer takes is what the test is about.
    Pause(Duration),
    /// Calls this.
    Do(Arc<dyn Fn() + Send + Sync>),
    /// Never answers: reads until the other side is gone.
    Hang,
    /// Sends every read back as `echo:` and the octets, until the other side is gone.
    Echo,
    /// Closes the connection.
    Close,
    /// Closes it with a reset.
    Reset,
}

/// A response with a length.
pub fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Act {
    let mut text = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    Act::Send(format!("{text}\r\n{body}").into_bytes())
}

/// Holds scripts back until a test lets them go.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let closed = self.0.0.lock().unwrap();
        drop(
            self.0
                .1
                .wait_timeout_while(closed, PATIENCE * 3, |open| !*open)
                .unwrap(),
        );
    }
}

type Script = dyn Fn(&Seen, usize) -> Vec<Act> + Send + Sync;

/// A running upstream.
pub struct Upstream {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    more: Condvar,
    /// Targets of requests that broke off after their head.
    cut: Mutex<Vec<String>>,
    connections: AtomicUsize,
    idle: Option<Duration>,
}

/// An address that refuses connections until its upstream is started.
#[derive(Debug)]
pub struct Reserved {
    socket: socket2::Socket,
    pub addr: SocketAddr,
}

impl Reserved {
    /// A free port of this loopback address.
    pub fn new(ip: std::net::IpAddr) -> Self {
        use socket2::{Domain, Socket, Type};
        let free = SocketAddr::new(ip, 0);
        let socket = Socket::new(Domain::for_address(free), Type::STREAM, None).unwrap();
        socket.bind(&free.into()).unwrap();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        Self { socket, addr }
    }

    /// From now on the kernel takes one connection, the caller's, and holds up all others until
    /// the upstream is started.
    pub fn hold_up(&self) -> TcpStream {
        self.socket.listen(0).unwrap();
        TcpStream::connect(self.addr).unwrap()
    }

    /// Accepts from now on; closes connections that rest for `idle`.
    pub fn start(
        self,
        idle: Option<Duration>,
        script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static,
    ) -> Upstream {
        self.socket.listen(1024).unwrap();
        Upstream::with(self.socket.into(), idle, script)
    }
}

impl Upstream {
    /// Runs `script` for each request received whole; it is told the request's number from 1.
    pub fn start(script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// The same on a socket bound before.
    pub fn on(
        listener: TcpListener,
        script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        Self::with(listener, None, script)
    }

    fn with(
        listener: TcpListener,
        idle: Option<Duration>,
        script: impl Fn(&Seen, usize) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            more: Condvar::new(),
            cut: Mutex::default(),
            connections: AtomicUsize::new(0),
            idle,
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                let shared = serving.clone();
                shared.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || shared.serve(stream, number));
            }
        });
        Self { addr, shared }
    }

    /// Answers every POST `{"n":N}` with 201, N being the execution's number.
    pub fn counting() -> Self {
        Self::start(|_, n| vec![reply(201, &[], &format!("{{\"n\":{n}}}"))])
    }

    /// Answers `n=N` with 201 once the gate is open, N being the execution's number.
    pub fn gated() -> (Gate, Self) {
        Self::behind_gate(|n| reply(201, &[], &format!("n={n}")))
    }

    /// Answers `body` with 201 once the gate is open.
    pub fn gated_with(body: &str) -> (Gate, Self) {
        let answer = reply(201, &[], body);
        Self::behind_gate(move |_| answer.clone())
    }

    fn behind_gate(answer: impl Fn(usize) -> Act + Send + Sync + 'static) -> (Gate, Self) {
        let gate = Gate::default();
        let hold = gate.clone();
        let upstream = Self::start(move |_, n| vec![Act::Wait(hold.clone()), answer(n)]);
        (gate, upstream)
    }

    /// Requests received whole so far.
    pub fn calls(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    /// Waits until `count` requests were received whole.
    pub fn wait_calls(&self, count: usize) {
        let seen = self.shared.seen.lock().unwrap();
        let wait = |seen: &mut Vec<Seen>| seen.len() < count;
        let (seen, timeout) = self
            .shared
            .more
            .wait_timeout_while(seen, PATIENCE, wait)
            .unwrap();
        assert!(!timeout.timed_out(), "{} of {count} calls came", seen.len());
    }

    /// Connections made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Targets of requests that broke off after their head.
    pub fn cut(&self) -> Vec<String> {
        self.shared.cut.lock().unwrap().clone()
    }

    /// Waits until `enough` says so of what was received; whether it did in time.
    pub fn wait_until(&self, limit: Duration, enough: impl Fn(&[Seen]) -> bool) -> bool {
        let seen = self.shared.seen.lock().unwrap();
        let wait = |seen: &mut Vec<Seen>| !enough(seen);
        let waited = self.shared.more.wait_timeout_while(seen, limit, wait);
        !waited.unwrap().1.timed_out()
    }

    /// What was received.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream, connection: usize) {
        let mut buffer = Vec::new();
        stream.set_read_timeout(self.idle).unwrap();
        loop {
            let mut request = match receive(&mut stream, &mut buffer) {
                Ok(request) => request,
                Err(target) => {
                    self.cut.lock().unwrap().extend(target);
                    return;
                }
            };
            request.connection = connection;
            let number = {
                let mut seen = self.seen.lock().unwrap();
                seen.push(request.clone());
                self.more.notify_all();
                seen.len()
            };
            for act in (self.script)(&request, number) {
                if !perform(act, &mut stream) {
                    return;
                }
            }
        }
    }
}

/// Whether the connection goes on.
fn perform(act: Act, stream: &mut TcpStream) -> bool {
    match act {
        Act::Send(octets) => return stream.write_all(&octets).is_ok(),
        Act::Repeat(octets, times) => {
            return (0..times).all(|_| stream.write_all(&octets).is_ok());
        }
        Act::Wait(gate) => gate.wait(),
        Act::Pause(time) => std::thread::sleep(time),
        Act::Do(call) => call(),
        Act::Hang => {
            stream.set_read_timeout(None).unwrap();
            drain(stream);
            return false;
        }
        Act::Echo => {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                if stream
                    .write_all(&[b"echo:", &piece[..count]].concat())
                    .is_err()
                {
                    break;
                }
            }
            return false;
        }
        Act::Close => return false,
        Act::Reset => {
            let socket = socket2::SockRef::from(&*stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            return false;
        }
    }
    true
}

/// Reads one whole request; where it breaks off after its head, the target is the error.
fn receive(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Seen, Option<String>> {
    let head_end = super::client::fill_until(stream, buffer, b"\r\n\r\n").ok_or(None)?;
    let head: String = buffer[..head_end].iter().copied().map(char::from).collect();
    buffer.drain(..head_end + 4);
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().splitn(3, ' ');
    let mut word = || first.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
        .collect();
    let mut request = Seen {
        method,
        target,
        headers,
        ..Seen::default()
    };
    let body = if request.header("transfer-encoding").is_some() {
        super::client::read_chunked(stream, buffer).map(|(body, _)| body)
    } else {
        let length = request.header("content-length");
        let length = length.map_or(0, |value| value.parse().unwrap());
        super::client::fill(stream, buffer, length).map(|()| buffer.drain(..length).collect())
    };
    request.body = body.ok_or_else(|| Some(request.target.clone()))?;
    Ok(request)
}

/// Drains what a peer still sends, until it closes.
pub fn drain(stream: &mut TcpStream) {
    let mut sink = [0; 4096];
    while matches!(stream.read(&mut sink), Ok(count) if count > 0) {}
}
