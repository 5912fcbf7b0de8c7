//! The composition root: a configuration becomes a running program.
//!
//! ```text
//! control runtime (the caller's)   health, waiters' look-outs, sweeps, the minute check, drain
//! N worker threads                 each a runtime, a listener, a store handle, an upstream pool
//! ```
//!
//! Exchanges live on the worker that accepted their client, and outlive that client; a worker ends
//! only when the drain is over (R31).
//!
//! Read next: `worker.rs`, `duties.rs`.

mod duties;
mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::admin::Health;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::proxy::{Phase, Shared, UpstreamSettings, UpstreamUrl, WaitingRoom};
use crate::routes::{RouteError, Routes};
use crate::server::{self, Front};
use crate::store::guarded::Breaker;
use crate::store::tier::Tier;
use crate::store::{OpenError, Stores, Wake};
use crate::telemetry::Metrics;
use crate::tls::{self, Acceptor, Certificates, Connector};
use duties::{Duties, Finding, First, first_check};
use worker::{Worker, join};

/// How long cut exchanges have to settle.
const CUT_GRACE: Duration = Duration::from_secs(3);

/// A program that cannot start.
#[derive(Debug, Error)]
pub enum AppError {
    /// The configuration does not fit where it runs (exit 78).
    #[error("{0}")]
    Unfit(String),
    /// The store is needed and not reachable (exit 69).
    #[error("{0}")]
    StoreUnreachable(String),
    /// Anything else (exit 1).
    #[error("{0}")]
    Failed(String),
}

impl From<OpenError> for AppError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Unfit(text) => Self::Unfit(text),
            OpenError::InUse(text) => Self::Failed(text),
            OpenError::Unreachable(text) => Self::StoreUnreachable(text),
        }
    }
}

impl From<RouteError> for AppError {
    fn from(error: RouteError) -> Self {
        Self::Unfit(error.to_string())
    }
}

impl From<Vec<tls::Finding>> for AppError {
    fn from(findings: Vec<tls::Finding>) -> Self {
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        Self::Unfit(texts.join("; "))
    }
}

/// How the program is started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Do not start while the store is out of reach.
    pub require_ready: bool,
}

/// A bound program.
#[derive(Debug)]
pub struct App {
    /// Where clients connect.
    pub proxy_addr: SocketAddr,
    /// Where health and metrics are.
    pub health_addr: SocketAddr,
    config: Config,
    shared: Arc<Shared>,
    stores: Stores,
    breaker: Arc<Breaker>,
    health: Arc<Health>,
    towards_clients: Option<Certificates<tls::ServerSettings>>,
    towards_upstream: Option<Certificates<tls::ClientSettings>>,
    listeners: Vec<StdListener>,
    health_listener: StdListener,
    wakes: mpsc::Receiver<Wake>,
    /// What the store's first check found; said after the address.
    first: First,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Records left unresolved or unsettled (exit 3 if any).
    pub left_behind: u64,
}

impl App {
    /// Opens the store, asks whether it is fit, and only then binds the listeners: nobody connects
    /// to a program that ends at once.
    pub async fn bind(config: Config, options: Options) -> Result<Self, AppError> {
        let metrics = Arc::new(Metrics::new());
        let clock = Arc::new(SystemClock);
        let routes = Routes::new(config.policy.clone(), config.routes.clone())?;
        let towards_clients = config.server.tls.as_ref().map(Certificates::load);
        let towards_clients = towards_clients.transpose()?;
        let (towards_upstream, connector) = connector(&config.proxy.upstream)?.unzip();
        let (wake, wakes) = WaitingRoom::wakes();
        let stores = Stores::open(&config.store, clock.clone(), wake)?;
        let required = config.store.require_tier;
        let first = first_check(&stores, options.require_ready, required).await?;
        let threads = match config.server.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads,
        };
        let listeners = bind("server.listen", config.server.listen, threads)?;
        let health_listener = bind("health.listen", config.health.listen, 1)?.pop();
        let health_listener = health_listener.ok_or_else(|| AppError::Failed("no port".into()))?;
        let proxy_addr = local_address(listeners.first())?;
        let health_addr = local_address(Some(&health_listener))?;
        let shared = Shared::new(
            config.proxy.clone(),
            config.store.identity(),
            routes,
            metrics.clone(),
            clock,
            connector,
        );
        let breaker = Breaker::new(config.store.timeout, metrics.clone(), stores.loss());
        // Not known to be as good as it must be: nothing new until it is.
        breaker.set_unfit(first.guarantee.is_none() && required > Tier::T0);
        let health = Health::new(metrics, config.health.ready_requires_store);
        Ok(Self {
            proxy_addr,
            health_addr,
            config,
            shared,
            stores,
            breaker,
            health,
            towards_clients,
            towards_upstream,
            listeners,
            health_listener,
            wakes,
            first,
        })
    }

    /// Serves until `shutdown` returns, then drains (R31).
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Ending, AppError> {
        self.announce();
        let Self {
            config,
            shared,
            mut stores,
            breaker,
            health,
            towards_clients,
            towards_upstream,
            first,
            ..
        } = self;
        let listening = &config.server;
        let (drain, draining) = watch::channel(false);
        let (stop, stopping) = watch::channel(false);
        let (served, mut all_served) = mpsc::channel::<()>(1);
        let tls = towards_clients
            .as_ref()
            .map(|files| Acceptor::new(files.live()));
        let front = Front::new(listening, tls, shared.metrics.clone(), draining);
        let mut workers = Vec::new();
        for (number, listener) in self.listeners.into_iter().enumerate() {
            let worker = Worker {
                shared: shared.clone(),
                store: stores.guarded(&breaker, &shared.metrics),
                breaker: breaker.clone(),
                front: front.clone(),
                stopping: stopping.clone(),
                served: served.clone(),
            };
            workers.push(worker.start(number, listener)?);
        }
        drop(served);
        serve_health(listening, self.health_listener, health.clone(), stopping)?;
        let control = stores.deciding(&breaker);
        tokio::spawn(control.clone().probe());
        tokio::spawn(shared.waiting.clone().look(control, self.wakes));
        if let Some(files) = towards_clients {
            tokio::spawn(files.renew(shared.metrics.clone()));
        }
        let towards_store = stores.take_certificates();
        for files in towards_upstream.into_iter().chain(towards_store) {
            tokio::spawn(files.renew(shared.metrics.clone()));
        }
        let duties = Duties {
            stores: Arc::new(stores),
            breaker,
            health: health.clone(),
            metrics: shared.metrics.clone(),
            required: config.store.require_tier,
            is_due: first.guarantee.is_none(),
            guarantee: first.guarantee,
            losses: 0,
        };
        let duties = tokio::spawn(duties.run());
        health.started();
        shutdown.await;
        health.draining();
        drain.send_replace(true);
        let finished = async {
            let _all = all_served.recv().await.is_none();
            shared.exchanges_done().await;
        };
        let left_behind = end_exchanges(&config, &shared, finished).await;
        stop.send_replace(true);
        duties.abort();
        join(workers).await;
        Ok(Ending { left_behind })
    }

    fn announce(&self) {
        tracing::info!(
            event = "listening",
            address = %self.proxy_addr,
            tls = self.towards_clients.is_some(),
            health = %self.health_addr,
            upstream = %self.config.proxy.upstream.url,
            store = %self.stores.describe(),
            version = env!("CARGO_PKG_VERSION"),
            "retrysafe is listening on {}", self.proxy_addr
        );
        if self.stores.one_replica_only() {
            tracing::info!(
                event = "one_replica_only",
                "this store protects one replica only"
            );
        }
        for (finding, text) in &self.first.findings {
            match finding {
                Finding::Warning => tracing::warn!(event = "store_warning", "{text}"),
                Finding::StoreDown => tracing::error!(event = "store_down", "{text}"),
            }
        }
    }
}

/// For an `https://` upstream: its files, and what makes connections with them.
fn connector(
    upstream: &UpstreamSettings,
) -> Result<Option<(Certificates<tls::ClientSettings>, Connector)>, AppError> {
    let UpstreamUrl::Https(place) = &upstream.url else {
        return Ok(None);
    };
    let files = Certificates::load(&upstream.tls)?;
    let connector = Connector::new(files.live(), &upstream.tls, &place.host);
    let connector = connector.ok_or_else(|| {
        let host = &place.host;
        AppError::Unfit(format!(
            "`upstream.url`: no certificate can bear the name {host}"
        ))
    })?;
    Ok(Some((files, connector)))
}

/// R31: exchanges finish within the drain; what still runs then is cut. Answers how many records
/// were left unresolved or unsettled.
async fn end_exchanges(
    config: &Config,
    shared: &Shared,
    finished: impl Future<Output = ()>,
) -> u64 {
    // First: whoever reads that the drain began may rely on its rules.
    shared.phases.advance(Phase::Draining);
    tracing::info!(event = "draining", running = shared.exchanges_running());
    if tokio::time::timeout(config.server.drain, finished)
        .await
        .is_err()
    {
        shared.phases.advance(Phase::Cut);
        let grace = CUT_GRACE + config.store.timeout * 2;
        let _late = tokio::time::timeout(grace, shared.exchanges_done())
            .await
            .is_err();
    }
    let left_behind = shared.left_behind() + shared.exchanges_running() as u64;
    tracing::info!(event = "drained", left_behind);
    left_behind
}

fn serve_health(
    settings: &server::Settings,
    listener: StdListener,
    health: Arc<Health>,
    stopping: watch::Receiver<bool>,
) -> Result<(), AppError> {
    let listener =
        TcpListener::from_std(listener).map_err(|error| failed("the health port", &error))?;
    let limited = server::Settings {
        max_connections: 256,
        ..settings.clone()
    };
    // Its connections are not the clients': they stay out of the figures.
    let uncounted = Arc::new(Metrics::new());
    let front = Front::new(&limited, None, uncounted, stopping);
    tokio::spawn(front.serve(listener, move |request, _peer| {
        let response = health.answer(&request);
        async move { response }
    }));
    Ok(())
}

fn bind(key: &str, address: SocketAddr, count: usize) -> Result<Vec<StdListener>, AppError> {
    server::bind(address, count).map_err(|error| {
        let help = match error.kind() {
            io::ErrorKind::AddrInUse => {
                ": another program, or another retrysafe, listens there; stop it or choose another port"
            }
            io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege",
            _ => "",
        };
        AppError::Failed(format!("cannot bind {key} = \"{address}\": {error}{help}"))
    })
}

fn local_address(listener: Option<&StdListener>) -> Result<SocketAddr, AppError> {
    let address = listener.map(StdListener::local_addr);
    match address {
        Some(Ok(address)) => Ok(address),
        Some(Err(error)) => Err(failed("no address", &error)),
        None => Err(AppError::Failed("no listener".to_owned())),
    }
}

fn failed(what: &str, error: &io::Error) -> AppError {
    AppError::Failed(format!("{what}: {error}"))
}
