//! Connections to the upstream: a small LIFO pool per thread over `hyper::client::conn`, or over
//! HTTP/2 a few that are shared (`h2c.rs`).
//!
//! Not hyper-util's legacy client, because the rules need what that hides: the connection checked
//! out first, then the lease checked, then the request handed over with no await between (R15), and
//! the request back when it provably was not sent (R16, R29).
//!
//! Deliberately absent: any automatic second try. Callers decide, with proof.

pub(super) mod connect;
mod h2c;

use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::body::Body;
use super::{UpstreamSettings, UpstreamUrl};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;
pub(super) use connect::ConnectError;

/// R29: how often a request may come back unsent.
pub(super) const HANDOVERS: usize = 3;

/// Idle connections kept per thread.
const MAX_IDLE: usize = 256;

/// How a dispatched request failed.
#[derive(Debug)]
pub enum SendError {
    /// Not sent, with proof (R16, R29): the client library handed the request back, or the peer
    /// says that it did not look at it, and then the request is gone.
    NotSent(Option<Box<Request<Body>>>),
    /// Some of it may have gone out.
    MaybeSent(hyper::Error),
}

/// Whether an answer came that is no valid HTTP; else the connection broke.
pub(super) fn is_bad_answer(error: &hyper::Error) -> bool {
    let invalid = |error: &h2::Error| error.is_library();
    error.is_parse()
        || error.is_parse_status()
        || error.is_parse_too_large()
        || h2_error(error).is_some_and(invalid)
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    error.source()?.downcast_ref()
}

/// Whether the peer says that it did nothing about the request: it ended the connection before it
/// (RFC 9113 section 6.8). The library gives a GOAWAY only to the streams after the last one that
/// the peer names; others of its errors about one come before a stream was opened, since a
/// connection's tasks share a thread.
///
/// `REFUSED_STREAM` would say the same (section 8.7), but there are proxies that say it of requests
/// which they passed on, to make the client retry (`HAProxy`, when a kept connection to the server
/// breaks).
fn was_not_taken(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_remote() && error.is_go_away())
}

fn failed(mut error: TrySendError<Request<Body>>) -> SendError {
    let unsent = error.take_message().map(Box::new);
    let error = error.into_error();
    if unsent.is_some() || was_not_taken(&error) {
        SendError::NotSent(unsent)
    } else {
        SendError::MaybeSent(error)
    }
}

/// The pool of one thread.
#[derive(Debug)]
pub(super) struct Pool {
    settings: UpstreamSettings,
    metrics: Arc<Metrics>,
    idle: Mutex<Vec<Idle>>,
    shared: h2c::Lines,
}

/// Mostly idle: after an answer that came early the rest of its request may still be on its way.
#[derive(Debug)]
struct Idle {
    sender: SendRequest<Body>,
    driver: Driver,
    since: Instant,
}

/// A checked-out connection, or a stream of a shared one. Dropped, it is closed.
#[derive(Debug)]
pub struct Connection {
    pool: Weak<Pool>,
    channel: Channel,
}

#[derive(Debug)]
enum Channel {
    Own(SendRequest<Body>, Driver),
    Shared(h2c::Stream),
}

/// The task that moves a connection's octets. It ends with its handle: a peer that reads nothing
/// would keep it for ever.
#[derive(Debug)]
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a connection as long as it is open.
#[derive(Debug)]
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: &Arc<Metrics>) -> Self {
        metrics.upstream_connections.inc();
        Self(metrics.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.upstream_connections.dec();
    }
}

impl Pool {
    /// An empty pool.
    pub(super) fn new(settings: UpstreamSettings, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            metrics,
            idle: Mutex::new(Vec::new()),
            shared: h2c::Lines::default(),
        })
    }

    /// A live connection: the youngest idle one, or a new one.
    pub(super) async fn checkout(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        // The drivers' turn first: what the upstream closed by now is not given out.
        if self.settings.url.is_shared() {
            tokio::task::yield_now().await;
            return self.checkout_shared().await;
        }
        if !self.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        match self.pop() {
            Some(Idle { sender, driver, .. }) => Ok(self.out(Channel::Own(sender, driver))),
            None => self.connect().await,
        }
    }

    async fn checkout_shared(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let limit = self.settings.pool_idle_timeout;
        let had = || self.shared.pop(limit);
        if let Some(stream) = had() {
            return Ok(self.out(Channel::Shared(stream)));
        }
        let making = timeout(self.settings.connect_timeout, self.shared.making.lock());
        let _making = making.await.map_err(|_| ConnectError::Timeout)?;
        match had() {
            Some(stream) => Ok(self.out(Channel::Shared(stream))),
            None => self.connect().await,
        }
    }

    fn out(self: &Arc<Self>, channel: Channel) -> Connection {
        let pool = Arc::downgrade(self);
        Connection { pool, channel }
    }

    /// Only one that can take a request now: waiting for another could last for ever.
    fn pop(&self) -> Option<Idle> {
        let limit = self.settings.pool_idle_timeout;
        let mut idle = self.lock();
        let free = |idle: &Idle| idle.sender.is_ready() && idle.since.elapsed() < limit;
        let youngest = idle.iter().rposition(free)?;
        Some(idle.remove(youngest))
    }

    /// Closes what has been idle for too long.
    pub(super) fn prune(&self) {
        let limit = self.settings.pool_idle_timeout;
        self.lock()
            .retain(|idle| idle.since.elapsed() < limit && !idle.sender.is_closed());
        self.shared.prune(limit);
    }

    async fn connect(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let connected = self.connected().await;
        let result = connected
            .as_ref()
            .map_or_else(ConnectError::result, |_| "ok");
        let labels = Label([("result", result)]);
        self.metrics.upstream_connects.get_or_create(&labels).inc();
        connected
    }

    async fn connected(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let limit = self.settings.connect_timeout;
        match &self.settings.url {
            UpstreamUrl::Http(place) => self.first(connect::tcp(place, limit).await?).await,
            UpstreamUrl::H2c(place) => {
                let stream = connect::tcp(place, limit).await?;
                let stream = self.shared.make(stream, limit, &self.metrics).await?;
                Ok(self.out(Channel::Shared(stream)))
            }
            UpstreamUrl::Unix(path) => self.first(connect::unix(path, limit).await?).await,
        }
    }

    /// HTTP/1.1 on a new stream.
    async fn first<S>(self: &Arc<Self>, stream: S) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectError::Io(io::Error::other(error)))?;
        let open = Open::new(&self.metrics);
        let driver = tokio::spawn(async move {
            // Its errors reach the request that suffers from them.
            let _result: Result<(), hyper::Error> = connection.with_upgrades().await;
            drop(open);
        });
        Ok(self.out(Channel::Own(sender, Driver(driver.abort_handle()))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Connection {
    /// Hands the request over at once; the future only waits for the answer's head. Dropped, it
    /// resets a stream of a shared connection.
    pub fn send(
        &mut self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + Send + use<> {
        let (own, shared) = match &mut self.channel {
            Channel::Own(sender, _) => (Some(sender.try_send_request(request)), None),
            Channel::Shared(stream) => {
                let pool = self.pool.upgrade();
                let host = pool.map_or_else(String::new, |pool| pool.settings.url.authority());
                // What cannot be said in HTTP/2 is not said.
                let sayable = h2c::absolute(&mut request, &host);
                (
                    None,
                    sayable.then(|| stream.sender.try_send_request(request)),
                )
            }
        };
        async move {
            let answer = match (own, shared) {
                (Some(answer), _) => answer.await,
                (None, Some(answer)) => answer.await,
                (None, None) => return Err(SendError::NotSent(None)),
            };
            answer.map_err(failed)
        }
    }

    /// Back to the pool, after a whole answer.
    pub fn give_back(self) {
        let (sender, driver) = match self.channel {
            Channel::Own(sender, driver) => (sender, driver),
            Channel::Shared(stream) => return stream.end(),
        };
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        if sender.is_closed() {
            return;
        }
        let mut idle = pool.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle {
                sender,
                driver,
                since: Instant::now(),
            });
        }
    }

    /// Closes the socket now, whatever is under way (R31: the upstream first). A shared one stays:
    /// its stream is reset as soon as nobody holds its answer.
    pub fn close(self) {
        drop(self);
    }
}

#[cfg(test)]
impl Pool {
    /// Lays idle connections into the pool that live until a request comes, and die before it was
    /// sent: each hands one request back.
    pub(super) async fn add_dying(self: &Arc<Self>, count: usize) {
        for _ in 0..count {
            let place = self.settings.url.place().unwrap();
            let limit = self.settings.connect_timeout;
            let stream = connect::tcp(place, limit).await.unwrap();
            let (sender, mut connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            let mut was_idle = false;
            let driver = tokio::spawn(std::future::poll_fn(move |cx| {
                if was_idle {
                    return std::task::Poll::Ready(());
                }
                was_idle = true;
                std::pin::Pin::new(&mut connection)
                    .poll(cx)
                    .map(|ended| ended.unwrap())
            }));
            let (driver, since) = (driver.abort_handle(), Instant::now());
            self.lock().push(Idle {
                sender,
                driver: Driver(driver),
                since,
            });
        }
        // Each driver runs up to where it waits for a request.
        tokio::task::yield_now().await;
    }

    pub(super) fn idle(&self) -> usize {
        self.lock().len()
    }
}
