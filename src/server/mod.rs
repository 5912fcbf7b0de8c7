//! Sockets and connections: bind, accept, limits, graceful drain.
//!
//! Knows nothing of what the requests mean: it is given a handler. A connection is one task; its
//! handler's future is dropped when the client is gone, so whatever must survive that is spawned by
//! the handler.
//!
//! Read next: `io.rs` (the clocks).

mod io;
mod tracked;

use std::convert::Infallible;
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;
use crate::tls::{Acceptor, ServerSettings};
use io::{Limits, TimedIo, Turns};
use tracked::Tracked;

/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 200;
/// Octets of an HTTP/2 head, decompressed.
const HEADER_LIST: u32 = 64 * 1024;
/// Streams reset before they were looked at, and after faults of the client's: then the connection
/// ends.
const PENDING_RESETS: usize = 20;
const LOCAL_RESETS: usize = 128;
/// How long a silent HTTP/2 peer is believed in, and how long it has to answer a ping.
const PING: Duration = Duration::from_secs(20);

/// `[server]`, but for what concerns one request (that is `proxy::Settings`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Runtimes; 0: from the CPU quota.
    pub threads: usize,
    /// R30: beyond it accepting pauses.
    pub max_connections: usize,
    /// R30: from the first octet of a head to its end.
    pub header_timeout: Duration,
    /// A connection between two requests.
    pub idle_timeout: Duration,
    /// A client that takes no octet for this long is dropped.
    pub write_timeout: Duration,
    /// R31.
    pub drain: Duration,
    /// Names of fields keep their letter case over HTTP/1.1.
    pub preserve_header_case: bool,
    /// `[server.tls]`; `None`: clients come as they are.
    pub tls: Option<ServerSettings>,
}

/// What all threads' servers share.
#[derive(Debug, Clone)]
pub struct Front {
    limits: Limits,
    preserve_header_case: bool,
    connections: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    draining: watch::Receiver<bool>,
    tls: Option<Acceptor>,
}

impl Front {
    /// Limits from `settings`; `draining` turns true once, at the end. Without `tls` the port speaks
    /// plain HTTP, whatever the settings say.
    pub fn new(
        settings: &Settings,
        tls: Option<Acceptor>,
        metrics: Arc<Metrics>,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let limits = Limits {
            header: settings.header_timeout,
            idle: settings.idle_timeout,
            write: settings.write_timeout,
        };
        let most = settings.max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            limits,
            preserve_header_case: settings.preserve_header_case,
            connections: Arc::new(Semaphore::new(most)),
            metrics,
            draining,
            tls,
        }
    }

    /// Accepts until the drain begins, then lets connections finish. Returns when none is left.
    pub async fn serve<H, F, B>(self, listener: TcpListener, handler: H)
    where
        H: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Dropped by each connection at its end: all gone means drained.
        let (open, mut closed) = tokio::sync::mpsc::channel::<()>(1);
        loop {
            let accepted = tokio::select! {
                accepted = self.accept(&listener) => accepted,
                () = self.draining_begins() => break,
            };
            let Some((stream, peer, place)) = accepted else {
                continue;
            };
            let front = self.clone();
            let handler = handler.clone();
            let open = open.clone();
            tokio::spawn(async move {
                front.connection(stream, peer, handler).await;
                drop((place, open));
            });
        }
        drop((open, listener));
        let _none_is_left = closed.recv().await.is_none();
    }

    /// R30: at the limit one connection is held back here and the kernel queues the others. The
    /// place is taken after accepting: a listener that waits for clients keeps no other from them.
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, Place)> {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly. Without a pause this would spin.
                tracing::warn!(event = "accept_failed", error = %error);
                tokio::time::sleep(Duration::from_millis(50)).await;
                return None;
            }
        };
        let permit = self.connections.clone().acquire_owned().await.ok()?;
        self.metrics.connections.inc();
        let metrics = self.metrics.clone();
        Some((
            stream,
            peer,
            Place {
                metrics,
                _permit: permit,
            },
        ))
    }

    async fn connection<H, F, B>(self, stream: TcpStream, peer: SocketAddr, handler: H)
    where
        H: Fn(Request<Incoming>, SocketAddr) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(event = "nodelay_failed", error = %error);
        }
        let turns = Arc::new(Turns::default());
        let stream = Arc::new(stream);
        let io = TimedIo::new(stream.clone(), self.limits, turns.clone());
        let serving = turns.clone();
        let service = service_fn(move |request| {
            let mut turn = serving.begin(request.version());
            // In a box of its own: the library keeps room for it on each HTTP/1 connection, idle or
            // not, and it is large.
            let response = Box::pin(handler(request, peer));
            async move {
                let response = response.await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    turn.never_ends();
                } else if !response.body().is_end_stream() {
                    turn.offers();
                }
                Ok::<_, Infallible>(response.map(|body| Tracked::new(body, turn)))
            }
        });
        let served = async {
            match &self.tls {
                None => self.speak(io, service).await,
                // The clock of the first head runs from here on: a handshake is part of it (R30).
                Some(tls) => match self.unless_draining(tls.now().accept(io)).await {
                    Some(Ok(io)) => self.speak(io, service).await,
                    Some(Err(error)) => self.no_handshake(&error),
                    None => {}
                },
            }
        };
        tokio::select! {
            biased;
            () = served => {}
            () = io::gone(&stream) => tracing::debug!(event = "client_gone"),
            () = turns.stalled(self.limits.write) => tracing::debug!(event = "client_stalled"),
        }
    }

    /// HTTP on a connection that stands, until it ends.
    async fn speak<S, B>(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        service: S,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let builder = protocols(self.preserve_header_case);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        let mut connection = std::pin::pin!(connection);
        let finished = async {
            tokio::select! {
                result = connection.as_mut() => return result,
                () = self.draining_begins() => {}
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        };
        if let Err(error) = finished.await {
            tracing::debug!(event = "connection_ended", error = %error);
        }
    }

    /// R31: what has not begun by then is not waited for.
    async fn unless_draining<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.draining_begins() => None,
        }
    }

    /// The drain begins.
    async fn draining_begins(&self) {
        let mut draining = self.draining.clone();
        // An error means that nobody will drain any more: the same.
        let _ended = draining.wait_for(|draining| *draining).await.is_err();
    }

    /// Scanners and health checks of balancers do this all day: no more than a figure.
    fn no_handshake(&self, error: &std::io::Error) {
        let reason = match error.kind() {
            ErrorKind::TimedOut => "timeout",
            ErrorKind::InvalidData => "refused",
            _ => "closed",
        };
        let labels = Label([("reason", reason)]);
        self.metrics.handshakes_failed.get_or_create(&labels).inc();
        tracing::debug!(event = "handshake_failed", error = %error);
    }
}

/// HTTP/1.0 and 1.1, and HTTP/2 with prior knowledge: the first octets tell which.
fn protocols(preserve_header_case: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        // A client that closes its sending side still gets its answer.
        .half_close(true)
        .preserve_header_case(preserve_header_case)
        // What came without letter case: over HTTP/2, from a record, of our own.
        .title_case_headers(preserve_header_case)
        .header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        // R30: a client that resets streams as fast as it opens them is ended.
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

/// One of `max_connections`, given back however the connection ends.
#[derive(Debug)]
struct Place {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

/// Binds one socket and gives each of `count` threads a handle on it. With port 0 the system chooses.
///
/// Not a group of sockets with `SO_REUSEPORT`: a second process could join it unnoticed, with a
/// store of its own, and a key would run once in each.
pub fn bind(address: SocketAddr, count: usize) -> std::io::Result<Vec<std::net::TcpListener>> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    let listener: std::net::TcpListener = socket.into();
    let mut listeners = Vec::with_capacity(count.max(1));
    for _ in 1..count {
        listeners.push(listener.try_clone()?);
    }
    listeners.push(listener);
    Ok(listeners)
}
