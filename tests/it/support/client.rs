//! A client that can send any octets, half-close, reset, and reads answers as they stand.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::time::Instant;

use super::PATIENCE;

/// An answer as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// 1xx before it.
    pub interim: Vec<u16>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The `code` of a problem.
    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap().to_owned()
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// The octets of a request with a length.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: api.test\r\n");
    for (name, value) in headers {
        write!(text, "{name}: {value}\r\n").unwrap();
    }
    write!(text, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    text.into_bytes()
}

/// POST `/pay` with a key, on a connection of its own.
pub fn pay(addr: SocketAddr, key: &str, body: &str) -> Answer {
    send(
        addr,
        &request("POST", "/pay", &[("Idempotency-Key", key)], body),
    )
}

pub fn get(addr: SocketAddr, target: &str) -> Answer {
    send(addr, &request("GET", target, &[], ""))
}

/// Sends octets on a connection of their own and reads one whole answer.
pub fn send(addr: SocketAddr, octets: &[u8]) -> Answer {
    let mut client = Client::connect(addr);
    client.write(octets);
    client.answer().expect("no whole answer")
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub fn write(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).unwrap();
    }

    /// Writes to a peer that may be gone.
    pub fn try_write(&mut self, octets: &[u8]) {
        let _gone = self.stream.write_all(octets);
    }

    /// The same to a request of this method: none to HEAD has a body.
    pub fn answer_to(&mut self, method: &str) -> Option<Answer> {
        read_answer(&mut self.stream, &mut self.buffer, method == "HEAD")
    }

    /// The next whole answer; `None` where the connection ends before it.
    pub fn answer(&mut self) -> Option<Answer> {
        read_answer(&mut self.stream, &mut self.buffer, false)
    }

    /// So many octets, whatever they are.
    pub fn octets(&mut self, count: usize) -> Vec<u8> {
        self.try_octets(count).unwrap()
    }

    /// The same; `None` where the other side ends it before.
    pub fn try_octets(&mut self, count: usize) -> Option<Vec<u8>> {
        fill(&mut self.stream, &mut self.buffer, count)?;
        Some(self.buffer.drain(..count).collect())
    }

    /// Whether the other side ends it in time, while this is done again and again.
    pub fn is_closed_while(&mut self, mut done: impl FnMut(&mut Self)) -> bool {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.is_closed_within(Duration::from_millis(50)) {
                return true;
            }
            done(self);
        }
        false
    }

    pub fn half_close(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Goes away with a reset.
    pub fn reset(self) {
        let socket = socket2::Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Whether the other side closed, or closes within `limit`.
    pub fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(Some(limit)).unwrap();
        let mut octets = [0; 1024];
        loop {
            match read(&mut self.stream, &mut octets) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    let waiting = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                    return !waiting.contains(&error.kind());
                }
            }
        }
    }
}

/// Reads one answer; `head` says that it answers HEAD.
pub fn read_answer(stream: &mut impl Read, buffer: &mut Vec<u8>, head: bool) -> Option<Answer> {
    let mut interim = Vec::new();
    let (status, headers) = loop {
        let (status, headers) = read_head(stream, buffer)?;
        if status >= 200 || status == 101 {
            break (status, headers);
        }
        interim.push(status);
    };
    let mut answer = Answer {
        status,
        headers,
        interim,
        ..Answer::default()
    };
    if head || status == 204 || status == 304 || status == 101 {
        return Some(answer);
    }
    if answer.header("transfer-encoding").is_some() {
        (answer.body, answer.trailers) = read_chunked(stream, buffer)?;
    } else if let Some(length) = answer.header("content-length") {
        let length = length.parse().ok()?;
        fill(stream, buffer, length)?;
        answer.body = buffer.drain(..length).collect();
    } else {
        stream.read_to_end(buffer).ok()?;
        answer.body = std::mem::take(buffer);
    }
    Some(answer)
}

type Head = (u16, Vec<(String, String)>);

fn read_head(stream: &mut impl Read, buffer: &mut Vec<u8>) -> Option<Head> {
    let end = fill_until(stream, buffer, b"\r\n\r\n")?;
    let head: String = buffer.drain(..end + 4).map(char::from).collect();
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let fields = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    Some((status, fields))
}

/// Reads until `buffer` holds `mark`; where it begins.
pub fn fill_until(stream: &mut impl Read, buffer: &mut Vec<u8>, mark: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let found = buffer[from..]
            .windows(mark.len())
            .position(|window| window == mark);
        if let Some(at) = found {
            return Some(from + at);
        }
        from = buffer.len().saturating_sub(mark.len());
        let length = buffer.len() + 1;
        fill(stream, buffer, length)?;
    }
}

/// What is there next. A signal (a child ended) breaks off a read that has a time-out, and is no news.
pub fn read(stream: &mut impl Read, octets: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(octets) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Reads until `buffer` holds `length` octets.
pub fn fill(stream: &mut impl Read, buffer: &mut Vec<u8>, length: usize) -> Option<()> {
    let mut octets = [0; 16384];
    while buffer.len() < length {
        match read(stream, &mut octets) {
            Ok(count) if count > 0 => buffer.extend_from_slice(&octets[..count]),
            _ => return None,
        }
    }
    Some(())
}

type Chunked = (Vec<u8>, Vec<(String, String)>);

/// Reads a chunked body and its trailers.
pub fn read_chunked(stream: &mut impl Read, buffer: &mut Vec<u8>) -> Option<Chunked> {
    let mut body = Vec::new();
    loop {
        let line = take_line(stream, buffer)?;
        let size = line.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            break;
        }
        fill(stream, buffer, size + 2)?;
        body.extend(buffer.drain(..size));
        buffer.drain(..2);
    }
    let mut trailers = Vec::new();
    loop {
        let line = take_line(stream, buffer)?;
        match line.split_once(':') {
            Some((name, value)) => trailers.push((name.to_owned(), value.trim().to_owned())),
            None => return Some((body, trailers)),
        }
    }
}

fn take_line(stream: &mut impl Read, buffer: &mut Vec<u8>) -> Option<String> {
    let end = fill_until(stream, buffer, b"\r\n")?;
    let line = buffer[..end].iter().copied().map(char::from).collect();
    buffer.drain(..end + 2);
    Some(line)
}
