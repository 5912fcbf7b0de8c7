//! The raw client: sends any octets, and tells every way in which an answer can end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// More of a body is counted, not kept.
const KEPT: usize = 16 << 20;
/// How often a reader looks whether it was told to go away.
const GLANCE: Duration = Duration::from_millis(20);

/// How an answer ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Ending {
    /// Whole by its framing.
    Whole,
    /// Cut after the head.
    Aborted,
    /// The connection ended without an answer.
    Closed,
    /// The same with a reset.
    Reset,
    /// Nothing more came in time.
    Silent,
    /// Not read at all.
    #[default]
    Unread,
}

/// Why no more octets come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    End,
    Reset,
    Late,
}

/// What came.
#[derive(Debug, Clone, Default)]
pub(super) struct Got {
    pub(super) ending: Ending,
    /// `1.1`.
    pub(super) version: String,
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    /// What was kept of it; `total` counts all.
    pub(super) body: Vec<u8>,
    pub(super) total: usize,
    pub(super) interim: Vec<u16>,
    /// The other side ended the connection.
    pub(super) closed: bool,
    pub(super) first_body_at: Option<Duration>,
    pub(super) took: Duration,
    /// The statuses of further answers, where all was read.
    pub(super) further: Vec<u16>,
}

impl Got {
    pub(super) fn lines(&self, name: &str) -> Vec<&str> {
        lines(&self.fields, name)
    }

    pub(super) fn is_answered(&self) -> bool {
        matches!(self.ending, Ending::Whole | Ending::Aborted)
            || (self.ending == Ending::Silent && self.status != 0)
    }
}

/// The values of the lines of one name.
pub(super) fn lines<'a>(fields: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    fields
        .iter()
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
        .collect()
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    stop: Option<Stop>,
    since: Instant,
    until: Instant,
    go_away: Option<Arc<AtomicBool>>,
}

impl Wire {
    pub(super) fn open(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
            stop: None,
            since: Instant::now(),
            until: Instant::now(),
            go_away: None,
        }
    }

    /// Starts the clock of one exchange.
    pub(super) fn begin(&mut self, limit: Duration, go_away: Option<Arc<AtomicBool>>) {
        self.since = Instant::now();
        self.until = self.since + limit;
        self.go_away = go_away;
        if self.stop == Some(Stop::Late) {
            self.stop = None;
        }
    }

    /// Sends in the background, so that an answer that comes before the end is read. A side that
    /// takes no more shows in the answer.
    pub(super) fn send(&self, octets: Vec<u8>) {
        let mut stream = self.stream.try_clone().unwrap();
        if octets.len() < 60_000 {
            drop(stream.write_all(&octets));
        } else {
            std::thread::spawn(move || stream.write_all(&octets).is_ok());
        }
    }

    /// One octet at a time.
    pub(super) fn dribble(&self, octets: &[u8], gap: Duration) {
        let mut stream = self.stream.try_clone().unwrap();
        let octets = octets.to_vec();
        std::thread::spawn(move || {
            for octet in octets {
                if stream.write_all(&[octet]).is_err() {
                    break;
                }
                std::thread::sleep(gap);
            }
        });
    }

    pub(super) fn half_close(&self) {
        drop(self.stream.shutdown(Shutdown::Write));
    }

    /// Whether the other side has ended it, without waiting.
    pub(super) fn is_over(&mut self) -> bool {
        self.begin(Duration::from_millis(1), None);
        while self.stop.is_none() && self.buffer.is_empty() {
            self.more();
        }
        matches!(self.stop, Some(Stop::End | Stop::Reset))
    }

    /// Whether it ends within `limit`; what still comes is dropped.
    pub(super) fn ends_within(&mut self, limit: Duration) -> bool {
        self.begin(limit, None);
        while self.stop.is_none() {
            self.more();
            self.buffer.clear();
        }
        matches!(self.stop, Some(Stop::End | Stop::Reset))
    }

    /// Reads until something comes.
    pub(super) fn first_octets(&mut self) -> Got {
        while self.buffer.is_empty() && self.stop.is_none() {
            self.more();
        }
        Got {
            body: std::mem::take(&mut self.buffer),
            took: self.since.elapsed(),
            closed: self.stop.is_some_and(|stop| stop != Stop::Late),
            ..Got::default()
        }
    }

    /// Reads until the end or the limit, then tells the answers in it.
    pub(super) fn everything(&mut self) -> Got {
        while self.stop.is_none() {
            self.more();
        }
        let took = self.since.elapsed();
        let closed = self.stop != Some(Stop::Late);
        let mut first = self.answer(false);
        while !self.buffer.is_empty() {
            let next = self.answer(false);
            if next.status == 0 {
                break;
            }
            first.further.push(next.status);
        }
        (first.took, first.closed) = (took, closed);
        first
    }

    /// Reads one final answer. `to_head`: it has no body.
    pub(super) fn answer(&mut self, to_head: bool) -> Got {
        let mut got = Got::default();
        got.ending = match self.read_answer(&mut got, to_head) {
            Ok(()) => Ending::Whole,
            Err(Stop::Late) => Ending::Silent,
            Err(_) if got.status != 0 => Ending::Aborted,
            Err(Stop::Reset) => Ending::Reset,
            Err(Stop::End) => Ending::Closed,
        };
        got.took = self.since.elapsed();
        got.closed = self.stop.is_some_and(|stop| stop != Stop::Late);
        got
    }

    /// Waits for 100 or a final answer; whether the body is asked for.
    pub(super) fn is_asked(&mut self, interim: &mut Vec<u16>) -> bool {
        let Ok(end) = self.find(b"\r\n\r\n") else {
            return false;
        };
        let head = super::octets::from_latin1(&self.buffer[..end]);
        let is_continue = head.split(' ').nth(1) == Some("100");
        if is_continue {
            self.buffer.drain(..end + 4);
            interim.push(100);
        }
        is_continue
    }

    fn more(&mut self) {
        if self.stop.is_some() {
            return;
        }
        let mut octets = [0; 16384];
        let left = self.until.saturating_duration_since(Instant::now());
        let gone = self
            .go_away
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::Acquire));
        if gone {
            let socket = socket2::SockRef::from(&self.stream);
            socket.set_linger(Some(Duration::ZERO)).unwrap();
        }
        if left.is_zero() || gone {
            self.stop = Some(Stop::Late);
            return;
        }
        let wait = if self.go_away.is_some() {
            left.min(GLANCE)
        } else {
            left
        };
        self.stream.set_read_timeout(Some(wait)).unwrap();
        match self.stream.read(&mut octets) {
            Ok(0) => self.stop = Some(Stop::End),
            Ok(count) => self.buffer.extend_from_slice(&octets[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.stop = Some(Stop::Reset),
        }
    }

    fn read_answer(&mut self, got: &mut Got, to_head: bool) -> Result<(), Stop> {
        loop {
            let end = self.find(b"\r\n\r\n")?;
            let head = super::octets::from_latin1(&self.buffer[..end]);
            self.buffer.drain(..end + 4);
            let mut text = head.split("\r\n");
            let mut first = text.next().unwrap_or_default().splitn(3, ' ');
            got.version = first.next().unwrap_or_default().replace("HTTP/", "");
            got.status = first.next().unwrap_or_default().parse().unwrap_or(0);
            got.fields = text
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
                .collect();
            if got.status >= 200 || got.status == 101 || got.status == 0 {
                break;
            }
            got.interim.push(got.status);
            got.status = 0;
        }
        if to_head || matches!(got.status, 101 | 204 | 304) {
            return Ok(());
        }
        if !got.lines("transfer-encoding").is_empty() {
            return self.chunked(got);
        }
        let length = got
            .lines("content-length")
            .first()
            .map(|length| length.parse());
        match length {
            Some(length) => self.take(got, length.unwrap_or(0)),
            None => self.take_all(got),
        }
    }

    fn chunked(&mut self, got: &mut Got) -> Result<(), Stop> {
        loop {
            let end = self.find(b"\r\n")?;
            let line = super::octets::from_latin1(&self.buffer[..end]);
            self.buffer.drain(..end + 2);
            let size = line.split(';').next().unwrap_or_default().trim();
            // What is no chunk is no whole answer.
            let size = usize::from_str_radix(size, 16).map_err(|_| Stop::End)?;
            if size == 0 {
                break;
            }
            self.take(got, size)?;
            let end = self.find(b"\r\n")?;
            self.buffer.drain(..end + 2);
        }
        // Trailers, and the empty line.
        loop {
            let end = self.find(b"\r\n")?;
            self.buffer.drain(..end + 2);
            if end == 0 {
                return Ok(());
            }
        }
    }

    /// The next `length` octets of a body.
    fn take(&mut self, got: &mut Got, length: usize) -> Result<(), Stop> {
        let mut left = length;
        while left > 0 {
            if self.buffer.is_empty() {
                self.need()?;
            }
            let now = left.min(self.buffer.len());
            self.keep(got, now);
            left -= now;
        }
        Ok(())
    }

    fn take_all(&mut self, got: &mut Got) -> Result<(), Stop> {
        loop {
            let now = self.buffer.len();
            self.keep(got, now);
            match self.need() {
                Ok(()) => {}
                Err(Stop::End) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        }
    }

    fn keep(&mut self, got: &mut Got, count: usize) {
        if count > 0 && got.first_body_at.is_none() {
            got.first_body_at = Some(self.since.elapsed());
        }
        got.total += count;
        let kept = count.min(KEPT.saturating_sub(got.body.len()));
        got.body.extend_from_slice(&self.buffer[..kept]);
        self.buffer.drain(..count);
    }

    fn need(&mut self) -> Result<(), Stop> {
        let before = self.buffer.len();
        while self.buffer.len() == before {
            if let Some(stop) = self.stop {
                return Err(stop);
            }
            self.more();
        }
        Ok(())
    }

    fn find(&mut self, mark: &[u8]) -> Result<usize, Stop> {
        let mut from = 0;
        loop {
            let rest = &self.buffer[from..];
            if let Some(at) = rest.windows(mark.len()).position(|octets| octets == mark) {
                return Ok(from + at);
            }
            from = self.buffer.len().saturating_sub(mark.len());
            self.need()?;
        }
    }
}
