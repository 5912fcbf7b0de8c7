//! An upstream that does what a script says, and counts what it received whole.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use super::sidecar::PATIENCE;

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
    /// Waits until the gate is open.
    Wait(Gate),
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
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            more: Condvar::new(),
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                let shared = serving.clone();
                std::thread::spawn(move || shared.serve(stream, number));
            }
        });
        Self { addr, shared }
    }

    /// Answers every POST `{"n":N}` with 201, N being the execution's number.
    pub fn counting() -> Self {
        Self::start(|_, n| vec![reply(201, &[], &format!("{{\"n\":{n}}}"))])
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

    /// What was received.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream, connection: usize) {
        let mut buffer = Vec::new();
        while let Some(mut request) = read_request(&mut stream, &mut buffer) {
            request.connection = connection;
            let number = {
                let mut seen = self.seen.lock().unwrap();
                seen.push(request.clone());
                self.more.notify_all();
                seen.len()
            };
            for act in (self.script)(&request, number) {
                match act {
                    Act::Send(octets) => {
                        if stream.write_all(&octets).is_err() {
                            return;
                        }
                    }
                    Act::Wait(gate) => gate.wait(),
                    Act::Close => return,
                    Act::Reset => {
                        let socket = socket2::Socket::from(stream);
                        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
                        return;
                    }
                }
            }
        }
    }
}

/// Reads one whole request; `None` at the end of the connection, or where it breaks off.
pub fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head_end = super::client::fill_until(stream, buffer, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    buffer.drain(..head_end + 4);
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.splitn(3, ' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let find = |name: &str| {
        headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
    };
    let body = if find("transfer-encoding").is_some() {
        super::client::read_chunked(stream, buffer)?.0
    } else {
        let length = find("content-length").map_or(0, |(_, value)| value.parse().unwrap());
        super::client::fill(stream, buffer, length)?;
        buffer.drain(..length).collect()
    };
    Some(Seen {
        method,
        target,
        headers,
        body,
        connection: 0,
    })
}

/// Drains what a peer still sends, until it closes.
pub fn drain(stream: &mut TcpStream) {
    let mut sink = [0; 4096];
    while matches!(stream.read(&mut sink), Ok(count) if count > 0) {}
}
