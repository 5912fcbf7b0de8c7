//! HTTP/2: a few connections per thread, each shared by many exchanges.
//!
//! A connection counts as had once the peer's SETTINGS came: it speaks HTTP/2, and says how many
//! streams it takes. No more are asked of it than that, so that no request waits within the
//! library, behind others, after its lease was checked.

use std::fmt::Debug;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::header;
use http::uri::{Authority, Scheme, Uri};
use http::{Request, Version};
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};

use super::connect::ConnectError;
use super::{Limits, Open};
use crate::proxy::UpstreamUrl;
use crate::proxy::body::Body;
use crate::telemetry::Metrics;

/// Streams on one connection, whatever the peer would take.
const MAX_STREAMS: usize = 256;
/// What a stream may send that nobody reads yet. All of them together are far below what the
/// connection may: one client that reads nothing holds up no other exchange.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Servers of gRPC end connections that ping more often than each five minutes.
const PING_INTERVAL: Duration = Duration::from_mins(6);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest head of an answer, as over HTTP/1.1.
const MAX_HEAD: u32 = 400 * 1024;

/// What HTTP/2 is spoken over.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + Debug {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + Debug> Wire for S {}

type Driven = Connection<TokioIo<Box<dyn Wire>>, Body, TokioExecutor>;

/// The shared connections of one thread.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Mutex<Vec<Arc<Line>>>,
    /// One is made at a time: those who wait for it may fit on it.
    pub(super) making: tokio::sync::Mutex<()>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Line {
    sender: SendRequest<Body>,
    /// Until it ended: what the driver drops hands back what was not sent.
    driven: Arc<Mutex<Option<Driven>>>,
    use_of: Mutex<Use>,
    born: Instant,
    _open: Open,
}

#[derive(Debug)]
struct Use {
    /// Exchanges under way.
    live: usize,
    /// One was given up: the peer may count its stream still, or be gone. Nothing new goes over.
    retired: bool,
    since: Instant,
}

/// A stream yet to be opened, or under way.
#[derive(Debug)]
pub(super) struct Stream {
    line: Arc<Line>,
    pub(super) sender: SendRequest<Body>,
    ended: bool,
}

impl Lines {
    /// Room on a connection that stands.
    pub(super) fn pop(&self, limits: Limits) -> Option<Stream> {
        let mut lines = self.lock();
        lines.retain(|line| !line.is_over(limits));
        lines.iter().find_map(Line::take)
    }

    /// Lets go of what has been idle for too long. What is under way on it goes on.
    pub(super) fn prune(&self, limits: Limits) {
        self.lock().retain(|line| !line.is_over(limits));
    }

    /// A stream of a new connection, which others may share.
    pub(super) fn add(&self, line: &Arc<Line>) -> Result<Stream, ConnectError> {
        self.lock().push(line.clone());
        alone(line)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        locked(&self.lines)
    }
}

/// Makes a connection of a new stream.
pub(super) async fn make(
    stream: Box<dyn Wire>,
    limit: Duration,
    metrics: &Arc<Metrics>,
) -> Result<Arc<Line>, ConnectError> {
    let broken = |error: hyper::Error| ConnectError::Protocol(io::Error::other(error));
    let (sender, mut driven) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_header_list_size(MAX_HEAD)
        .initial_max_send_streams(0)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    match timeout(limit, settled(&mut driven)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(ConnectError::Protocol(error)),
        Err(_) => return Err(ConnectError::Timeout),
    }
    let driven = Arc::new(Mutex::new(Some(driven)));
    let line = Arc::new(Line {
        sender,
        driven: driven.clone(),
        use_of: Mutex::new(Use {
            live: 0,
            retired: false,
            since: Instant::now(),
        }),
        born: Instant::now(),
        _open: Open::new(metrics),
    });
    tokio::spawn(drive(driven));
    Ok(line)
}

/// A stream of a connection that nobody else knows.
pub(super) fn alone(line: &Arc<Line>) -> Result<Stream, ConnectError> {
    Line::take(line).ok_or_else(|| {
        let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
        ConnectError::Protocol(gone)
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the peer's SETTINGS. Nobody is woken by them: they are looked for.
async fn settled(driven: &mut Driven) -> io::Result<()> {
    let mut pause = Duration::from_millis(1);
    while driven.current_max_send_streams() == 0 {
        tokio::select! {
            ended = &mut *driven => {
                return Err(match ended {
                    Ok(()) => io::ErrorKind::ConnectionAborted.into(),
                    Err(error) => io::Error::other(error),
                });
            }
            () = sleep(pause) => pause = (pause * 2).min(Duration::from_millis(20)),
        }
    }
    Ok(())
}

async fn drive(driven: Arc<Mutex<Option<Driven>>>) {
    poll_fn(|cx| {
        let mut slot = locked(&driven);
        let ended = match slot.as_mut() {
            // Its errors reach the requests that suffer from them.
            Some(driven) => Pin::new(driven).poll(cx).map(drop),
            None => Poll::Ready(()),
        };
        let over = ended.is_ready().then(|| slot.take());
        drop(slot);
        drop(over);
        ended
    })
    .await;
}

impl Line {
    fn limit(&self) -> usize {
        let limit = locked(&self.driven)
            .as_ref()
            .map_or(0, Connection::current_max_send_streams);
        limit.min(MAX_STREAMS)
    }

    fn take(line: &Arc<Self>) -> Option<Stream> {
        let limit = line.limit();
        let mut use_of = locked(&line.use_of);
        if line.sender.is_closed() || use_of.retired || use_of.live >= limit {
            return None;
        }
        use_of.live += 1;
        drop(use_of);
        Some(Stream {
            sender: line.sender.clone(),
            line: line.clone(),
            ended: false,
        })
    }

    /// Whether nothing new goes over it.
    fn is_over(&self, limits: Limits) -> bool {
        let use_of = locked(&self.use_of);
        // In use it is not idle.
        let idle_since = match use_of.live {
            0 => use_of.since,
            _ => Instant::now(),
        };
        self.sender.is_closed() || use_of.retired || limits.are_over(self.born, idle_since)
    }
}

impl Stream {
    /// The answer came whole.
    pub(super) fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut use_of = locked(&self.line.use_of);
        use_of.live -= 1;
        use_of.retired |= !self.ended;
        use_of.since = Instant::now();
    }
}

/// A head as HTTP/2 has it (RFC 9113 sections 8.2.2 and 8.3.1): the Host is the authority of an
/// absolute target, and of hop-by-hop fields `TE: trailers` alone is left.
/// False where that cannot be.
pub(super) fn absolute(request: &mut Request<Body>, url: &UpstreamUrl) -> bool {
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    for name in [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
    let host = headers.remove(header::HOST);
    if host.is_none() && request.uri().authority().is_some() {
        return true;
    }
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(match url {
        UpstreamUrl::Https(_) => Scheme::HTTPS,
        _ => Scheme::HTTP,
    });
    parts.authority = host.or_else(|| url.authority().parse().ok());
    let target = Uri::from_parts(parts).map(|uri| *request.uri_mut() = uri);
    target.is_ok()
}
