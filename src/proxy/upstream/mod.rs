//! Connections to the upstream: a small LIFO pool per thread over `hyper::client::conn`, or over
//! HTTP/2 a few that are shared (`multiplexed.rs`).
//!
//! Not hyper-util's legacy client, because the rules need what that hides: the connection checked
//! out first, then the lease checked, then the request handed over with no await between (R15), and
//! the request back when it provably was not sent (R16, R29).
//!
//! Deliberately absent: any automatic second try. Callers decide, with proof.

pub(super) mod connect;
mod connection;
mod multiplexed;
mod proof;

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

use super::{Settings, UpstreamSettings, UpstreamUrl};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::Label;
use crate::tls::Connector;
pub(super) use connect::ConnectError;
pub(super) use connection::Connection;
use connection::{Channel, Driver, Open, Own};
pub(super) use proof::{SendError, is_bad_answer};

/// R29: how often a request may come back unsent.
pub(super) const HANDOVERS: usize = 3;

/// Idle connections kept per thread.
const MAX_IDLE: usize = 256;

/// The pool of one thread.
#[derive(Debug)]
pub(super) struct Pool {
    settings: UpstreamSettings,
    preserve_header_case: bool,
    metrics: Arc<Metrics>,
    /// For `https://`.
    connector: Option<Connector>,
    /// What the last handshake agreed on: whether connections are shared.
    agreed: Agreed,
    idle: Mutex<Vec<Idle>>,
    shared: multiplexed::Lines,
}

/// Whether `https://` turned out to be HTTP/2.
#[derive(Debug, Default)]
struct Agreed(AtomicU8);

impl Agreed {
    const HTTP1: u8 = 1;
    const HTTP2: u8 = 2;

    fn is_http1(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::HTTP1
    }

    fn note(&self, http2: bool) {
        let spoken = if http2 { Self::HTTP2 } else { Self::HTTP1 };
        self.0.store(spoken, Ordering::Relaxed);
    }
}

/// What a request needs of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// It goes over either version.
    Any,
    /// It asks to switch to another protocol, which HTTP/1.1 alone can.
    Http1,
    /// R28: a gRPC call. Where HTTP/1.1 is all there ever is, it goes over that as it is.
    Http2,
}

/// Whether others may share a new connection.
#[derive(Debug, Clone, Copy)]
enum Company {
    Welcome,
    None,
}

/// How long a connection takes exchanges.
#[derive(Debug, Clone, Copy)]
struct Limits {
    idle: Duration,
    age: Duration,
}

impl Limits {
    fn are_over(self, born: Instant, idle_since: Instant) -> bool {
        idle_since.elapsed() >= self.idle || born.elapsed() >= self.age
    }
}

/// Mostly idle: after an answer that came early the rest of its request may still be on its way.
#[derive(Debug)]
struct Idle {
    own: Own,
    since: Instant,
}

impl Pool {
    /// An empty pool.
    pub(super) fn new(
        settings: &Settings,
        connector: Option<Connector>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings: settings.upstream.clone(),
            preserve_header_case: settings.preserve_header_case,
            metrics,
            connector,
            agreed: Agreed::default(),
            idle: Mutex::new(Vec::new()),
            shared: multiplexed::Lines::default(),
        })
    }

    /// A live connection: the youngest idle one, room on a shared one, or a new one. `tries`: which
    /// hand-over it is for, from 1 on.
    pub(super) async fn checkout(
        self: &Arc<Self>,
        needs: Needs,
        tries: usize,
    ) -> Result<Connection, ConnectError> {
        let shares = match &self.settings.url {
            UpstreamUrl::H2c(_) => true,
            UpstreamUrl::Https(_) => match needs {
                Needs::Any => !self.agreed.is_http1(),
                Needs::Http1 => false,
                Needs::Http2 => true,
            },
            UpstreamUrl::Http(_) | UpstreamUrl::Unix(_) => false,
        };
        // The drivers' turn first: what the upstream closed by now is not given out.
        if shares || !self.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        if shares && tries == HANDOVERS {
            // Where the upstream ends its connections after few streams, those who share one meet
            // their end together. The last hand-over goes over one that nobody else is on.
            return self.connect(needs, Company::None).await;
        }
        if shares {
            return self.checkout_shared(needs).await;
        }
        match self.pop() {
            Some(Idle { own, .. }) => Ok(self.out(Channel::Own(own))),
            None => self.connect(needs, Company::Welcome).await,
        }
    }

    async fn checkout_shared(self: &Arc<Self>, needs: Needs) -> Result<Connection, ConnectError> {
        let limits = self.limits();
        let had = || self.shared.pop(limits);
        if let Some(stream) = had() {
            return Ok(self.out(Channel::Shared(stream)));
        }
        let making = timeout(self.settings.connect_timeout, self.shared.making.lock());
        let making = making.await.map_err(|_| ConnectError::Timeout)?;
        if let Some(stream) = had() {
            return Ok(self.out(Channel::Shared(stream)));
        }
        if self.agreed.is_http1() {
            // Meanwhile it turned out that nothing is shared: nobody has to wait for anybody.
            drop(making);
        }
        self.connect(needs, Company::Welcome).await
    }

    fn limits(&self) -> Limits {
        Limits {
            idle: self.settings.pool_idle_timeout,
            age: self.settings.pool_max_age,
        }
    }

    fn out(self: &Arc<Self>, channel: Channel) -> Connection {
        let pool = Arc::downgrade(self);
        Connection { pool, channel }
    }

    /// Only one that can take a request now: waiting for another could last for ever.
    fn pop(&self) -> Option<Idle> {
        let limits = self.limits();
        let mut idle = self.lock();
        let free =
            |idle: &Idle| idle.own.sender.is_ready() && !limits.are_over(idle.own.born, idle.since);
        let youngest = idle.iter().rposition(free)?;
        Some(idle.remove(youngest))
    }

    /// Closes what has been idle for too long.
    pub(super) fn prune(&self) {
        let limits = self.limits();
        self.lock().retain(|idle| {
            !idle.own.sender.is_closed() && !limits.are_over(idle.own.born, idle.since)
        });
        self.shared.prune(limits);
    }

    async fn connect(
        self: &Arc<Self>,
        needs: Needs,
        company: Company,
    ) -> Result<Connection, ConnectError> {
        let connected = self.connected(needs, company).await;
        let result = connected
            .as_ref()
            .map_or_else(ConnectError::result, |_| "ok");
        let labels = Label([("result", result)]);
        self.metrics.upstream_connects.get_or_create(&labels).inc();
        connected
    }

    async fn connected(
        self: &Arc<Self>,
        needs: Needs,
        company: Company,
    ) -> Result<Connection, ConnectError> {
        let limit = self.settings.connect_timeout;
        let place = match &self.settings.url {
            UpstreamUrl::Unix(path) => return self.first(connect::unix(path, limit).await?).await,
            UpstreamUrl::Http(place) | UpstreamUrl::Https(place) | UpstreamUrl::H2c(place) => place,
        };
        let stream = connect::tcp(place, limit).await?;
        let Some(connector) = &self.connector else {
            return match &self.settings.url {
                UpstreamUrl::H2c(_) => self.multiplexed(stream, company).await,
                _ => self.first(stream).await,
            };
        };
        let only_http1 = needs == Needs::Http1;
        let stream = connect::secured(connector, stream, only_http1, limit).await?;
        let http2 = Connector::speaks_http2(&stream);
        if !only_http1 {
            self.agreed.note(http2);
        }
        match (http2, needs) {
            (true, _) => self.multiplexed(stream, company).await,
            (false, Needs::Http2) => Err(ConnectError::Protocol(io::Error::other(
                "it agreed to HTTP/1.1, and a gRPC call needs HTTP/2",
            ))),
            (false, _) => self.first(stream).await,
        }
    }

    /// HTTP/2 on a new stream.
    async fn multiplexed<S>(
        self: &Arc<Self>,
        stream: S,
        company: Company,
    ) -> Result<Connection, ConnectError>
    where
        S: multiplexed::Wire + 'static,
    {
        let limit = self.settings.connect_timeout;
        let line = multiplexed::make(Box::new(stream), limit, &self.metrics).await?;
        let stream = match company {
            Company::Welcome => self.shared.add(&line),
            Company::None => multiplexed::alone(&line),
        };
        Ok(self.out(Channel::Shared(stream?)))
    }

    /// HTTP/1.1 on a new stream.
    async fn first<S>(self: &Arc<Self>, stream: S) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(self.preserve_header_case)
            .title_case_headers(self.preserve_header_case)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectError::Io(io::Error::other(error)))?;
        let open = Open::new(&self.metrics);
        let driver = tokio::spawn(async move {
            // Its errors reach the request that suffers from them.
            let _result: Result<(), hyper::Error> = connection.with_upgrades().await;
            drop(open);
        });
        let driver = Driver(driver.abort_handle());
        Ok(self.out(Channel::Own(Own {
            sender,
            _driver: driver,
            born: Instant::now(),
            fresh: true,
        })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
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
            let (driver, now) = (Driver(driver.abort_handle()), Instant::now());
            let own = Own {
                sender,
                _driver: driver,
                born: now,
                fresh: false,
            };
            self.lock().push(Idle { own, since: now });
        }
        // Each driver runs up to where it waits for a request.
        tokio::task::yield_now().await;
    }

    pub(super) fn idle(&self) -> usize {
        self.lock().len()
    }
}
