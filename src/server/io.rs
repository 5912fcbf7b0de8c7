//! A client's socket with its clocks (R30): slow heads, idle connections, clients that take nothing.
//!
//! hyper has one timer for heads and none for the rest; here the phases of a connection are told
//! apart. Between two requests `idle_timeout` runs, from the first octet of a head
//! `header_timeout`, and whenever octets wait to be taken `write_timeout`. While a request is being
//! answered nothing runs on the read side: how slow a *body* may be is the proxy's to say.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// How long a client that still sends is read off after its answer.
const LINGER: Duration = Duration::from_secs(2);

/// Pieces read off in one turn.
const READ_OFF_AT_ONCE: usize = 16;

/// The limits of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) write: Duration,
}

/// The requests of a connection: which are being answered, and that one began or ended.
#[derive(Debug, Default)]
pub(super) struct Turns {
    running: AtomicUsize,
    changes: AtomicU64,
    /// HTTP/2 has frames between requests: octets are no sign of a head.
    multiplexed: AtomicBool,
    /// Answers that wait for their client to take more.
    offered: AtomicUsize,
    offer: Notify,
    /// When something was last taken of any.
    taken: Mutex<Option<Instant>>,
}

impl Turns {
    /// A request begins; it ends when the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> Turn {
        self.multiplexed
            .store(version == Version::HTTP_2, Ordering::Release);
        self.running.fetch_add(1, Ordering::AcqRel);
        self.changes.fetch_add(1, Ordering::AcqRel);
        Turn {
            turns: self.clone(),
            offers: false,
        }
    }

    /// Returns when an answer over HTTP/2 has waited for its client for `limit` and no other on the
    /// connection got on meanwhile. Over HTTP/1.1 the socket itself is full then, and has a clock.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            self.offer.notified().await;
            while self.multiplexed.load(Ordering::Acquire)
                && self.offered.load(Ordering::Acquire) > 0
            {
                let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(until) = taken.and_then(|taken| taken.checked_add(limit)) else {
                    break;
                };
                if until <= Instant::now() {
                    return;
                }
                tokio::time::sleep_until(until).await;
            }
        }
    }

    /// The client took something.
    fn get_on(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// `None` while a request is being answered, else a number for this pause between requests.
    fn pause(&self) -> Option<u64> {
        let is_idle = self.running.load(Ordering::Acquire) == 0;
        is_idle.then(|| self.changes.load(Ordering::Acquire))
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    /// Whether the client is the one who is waited for.
    offers: bool,
}

impl Turn {
    /// Whether the connection has others beside it.
    pub(super) fn is_shared(&self) -> bool {
        self.turns.multiplexed.load(Ordering::Acquire)
    }

    /// The connection is a tunnel from here on: no clock of HTTP runs on it.
    pub(super) fn never_ends(&self) {
        self.turns.running.fetch_add(1, Ordering::AcqRel);
    }

    /// There is something for the client to take.
    pub(super) fn offers(&mut self) {
        if !std::mem::replace(&mut self.offers, true) {
            self.turns.get_on();
            self.turns.offered.fetch_add(1, Ordering::AcqRel);
            self.turns.offer.notify_one();
        }
    }

    /// The client took it, and asks for more.
    pub(super) fn is_asked(&mut self) {
        if std::mem::replace(&mut self.offers, false) {
            self.turns.offered.fetch_sub(1, Ordering::AcqRel);
            self.turns.get_on();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.is_asked();
        // One answer less: somebody gets on.
        self.turns.get_on();
        self.turns.running.fetch_sub(1, Ordering::AcqRel);
        self.turns.changes.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns when the peer is gone for good. A half-closed peer is not: it still reads its answer.
///
/// With `half_close` hyper does not look at the socket while a request is being answered, so this
/// is how a reset is noticed then (R15).
pub(super) async fn gone(stream: &TcpStream) {
    loop {
        match stream.ready(Interest::ERROR).await {
            Ok(ready) if !ready.is_error() => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct TimedIo {
    stream: Arc<TcpStream>,
    limits: Limits,
    turns: Arc<Turns>,
    /// The pause the read clock was set for, and whether a head has begun in it.
    reading: (u64, bool),
    read_clock: Pin<Box<Sleep>>,
    write_clock: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl TimedIo {
    pub(super) fn new(stream: Arc<TcpStream>, limits: Limits, turns: Arc<Turns>) -> Self {
        // A new connection owes its first head.
        let read_clock = Box::pin(tokio::time::sleep(limits.header));
        Self {
            stream,
            limits,
            turns,
            reading: (0, true),
            read_clock,
            write_clock: None,
            linger: None,
        }
    }

    /// Whether the read clock runs; it begins anew with each pause.
    fn arm_read(&mut self) -> bool {
        let Some(pause) = self.turns.pause() else {
            return false;
        };
        if self.reading.0 != pause {
            self.reading = (pause, false);
            self.read_clock
                .as_mut()
                .reset(Instant::now() + self.limits.idle);
        }
        true
    }

    fn head_began(&mut self) {
        let Some(pause) = self.turns.pause() else {
            return;
        };
        let is_head = !self.turns.multiplexed.load(Ordering::Acquire);
        if is_head && self.reading != (pause, true) {
            self.reading = (pause, true);
            self.read_clock
                .as_mut()
                .reset(Instant::now() + self.limits.header);
        }
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(cx)?.is_ready() {
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return self.on_written(cx, Poll::Ready(result)),
            }
        }
        self.on_written(cx, Poll::Pending)
    }

    /// R30: closing a socket with octets unread resets it, and the reset may overtake an answer such
    /// as 413 while the client still sends. So what waits is read off, for a short while.
    fn poll_read_off(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scrap = [0; 4096];
        let mut pieces = 0;
        while self.stream.poll_read_ready(cx)?.is_ready() {
            if pieces == READ_OFF_AT_ONCE {
                // There is more; the others on this thread come first.
                cx.waker().wake_by_ref();
                break;
            }
            match self.stream.try_read(&mut scrap) {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(_) => {
                    pieces += 1;
                    self.linger
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(Ok(())),
            }
        }
        match &mut self.linger {
            None => Poll::Ready(Ok(())),
            Some(clock) => clock.as_mut().poll(cx).map(Ok),
        }
    }

    fn on_written(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.write_clock = None;
            return result;
        }
        let limit = self.limits.write;
        let clock = self
            .write_clock
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match clock.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimedIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        while this.stream.poll_read_ready(cx)?.is_ready() {
            match this.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    if buffer.filled().len() > before {
                        this.head_began();
                    }
                    return Poll::Ready(result.map(|_count| ()));
                }
            }
        }
        if this.arm_read() && this.read_clock.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for TimedIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .write(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            socket2::SockRef::from(&*this.stream).shutdown(Shutdown::Write)?;
        }
        this.poll_read_off(cx)
    }
}
