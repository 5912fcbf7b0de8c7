//! How a connection to a Redis is made: where to, over which socket, as whom.
//!
//! Every server is spoken to in RESP3, which all that are supported know; what subscribers hear
//! comes as pushes of it.
//!
//! Invariant: an error of this module proves that no operation was sent. A connection stands, with
//! its login, within `store.timeout` or not at all.
//!
//! Deliberately absent: keeping connections and making them again (`connection.rs`).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::address::{Address, Place, Way};
use super::cluster::Cluster;
use super::errors;
use super::mark::Watch;
use super::sentinel::Sentinels;
use crate::store::{OpenError, StoreError, StoreErrorKind};
use crate::tls::{Certificates, ClientSettings, Connector, Live, Offers};

/// Commands that may wait to be written; beyond it callers wait, within their deadline.
const QUEUE: usize = 1_024;

/// As whom and how every server of a store is spoken to.
#[derive(Debug)]
pub(super) struct Access {
    /// User, password and database; its `Debug` hides the password.
    pub(super) login: RedisConnectionInfo,
    /// The url for messages: no user, no password.
    pub(super) url: String,
    /// The url names the one server there is.
    one_server: bool,
    pub(super) timeout: Duration,
    tls: Option<(Live<Offers>, ClientSettings)>,
}

impl Access {
    /// Reads the certificates where TLS is asked for; they are renewed through the second part.
    pub(super) fn new(
        address: &Address,
        url: String,
        timeout: Duration,
        tls: &ClientSettings,
    ) -> Result<(Self, Option<Certificates<ClientSettings>>), OpenError> {
        let files = address.tls.then(|| Certificates::load(tls)).transpose();
        let files = files.map_err(|findings| {
            let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
            OpenError::Unfit(texts.join("; "))
        })?;
        let access = Self {
            login: address
                .login
                .clone()
                .set_protocol(ProtocolVersion::RESP3)
                .set_lib_name("retrysafe", env!("CARGO_PKG_VERSION")),
            url,
            one_server: matches!(address.way, Way::Server(_) | Way::Socket(_)),
            timeout,
            tls: files.as_ref().map(|files| (files.live(), tls.clone())),
        };
        Ok((access, files))
    }

    /// Connects to `end` and logs in; the connection's own task is the second part.
    pub(super) async fn connect(
        &self,
        end: &End,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Driver), StoreError> {
        let config = config
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(QUEUE);
        let attempt = async {
            match end {
                End::Server(place) => {
                    let stream = self.dial(place, end).await?;
                    match &self.tls {
                        None => self.speak(stream, end, login, config).await,
                        Some((live, settings)) => {
                            let stream = self.secure(stream, live, settings, place).await?;
                            self.speak(stream, end, login, config).await
                        }
                    }
                }
                End::Socket(path) => {
                    let stream = UnixStream::connect(path).await;
                    let stream = stream.map_err(|error| self.unreachable(end, &error))?;
                    self.speak(stream, end, login, config).await
                }
            }
        };
        let made = tokio::time::timeout(self.timeout, attempt).await;
        made.unwrap_or_else(|_| {
            let (at, timeout) = (self.shown(end), self.timeout);
            // A server without TLS waits for the rest of what it takes for a command.
            let question = match &self.tls {
                Some(_) => " (does that port speak TLS?)",
                None => "",
            };
            let message = format!("no connection to Redis at {at} in {timeout:?}{question}");
            Err(StoreError::not_sent(StoreErrorKind::Timeout, message))
        })
    }

    async fn dial(&self, place: &Place, end: &End) -> Result<TcpStream, StoreError> {
        let made = async {
            let stream = TcpStream::connect((place.host.as_str(), place.port)).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        made.await.map_err(|error| self.unreachable(end, &error))
    }

    async fn secure(
        &self,
        stream: TcpStream,
        live: &Live<Offers>,
        settings: &ClientSettings,
        place: &Place,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, StoreError> {
        let end = End::Server(place.clone());
        let Some(connector) = Connector::new(live.clone(), settings, &place.host) else {
            let error = io::Error::other("no certificate can bear such a name");
            return Err(self.unreachable(&end, &error));
        };
        let secured = connector.connect_unnamed(stream).await;
        secured.map_err(|error| errors::no_tls(&self.shown(&end), &error, settings.keys.table))
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        end: &End,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Driver), StoreError> {
        let made = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) =
            made.map_err(|error| errors::not_connected(&self.shown(end), &error))?;
        Ok((connection, Driver(tokio::spawn(driver))))
    }

    fn unreachable(&self, end: &End, error: &io::Error) -> StoreError {
        let message = format!("no connection to Redis at {}: {error}", self.shown(end));
        StoreError::not_sent(StoreErrorKind::Unavailable, message)
    }

    /// A server's address for messages.
    pub(super) fn shown(&self, end: &End) -> String {
        let scheme = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        match end {
            End::Server(place) if !self.one_server => format!("{scheme}://{place}"),
            _ => self.url.clone(),
        }
    }
}

/// Where one server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Server(Place),
    Socket(PathBuf),
}

/// How a server is found each time one is needed.
#[derive(Debug)]
pub(super) enum Finder {
    Fixed(End),
    /// The master that they name.
    Sentinels(Arc<Sentinels>),
    /// Any node of a cluster: another one each time.
    AnyNode(Arc<Cluster>),
}

/// A server, and how to speak to it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) access: Arc<Access>,
    pub(super) finder: Finder,
    /// Whether it is still the same store.
    pub(super) watch: Watch,
}

impl Target {
    /// Finds the server, connects and logs in.
    pub(super) async fn connect(
        &self,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Driver, End), StoreError> {
        let end = match &self.finder {
            Finder::Fixed(end) => end.clone(),
            Finder::Sentinels(sentinels) => End::Server(sentinels.master().await?),
            Finder::AnyNode(cluster) => End::Server(cluster.next().ok_or_else(errors::no_node)?),
        };
        let (connection, driver) = self.access.connect(&end, login, config).await?;
        if matches!(self.finder, Finder::Sentinels(_)) {
            self.is_master(&connection, &end).await?;
        }
        Ok((connection, driver, end))
    }

    /// Whether somebody else is the server by now.
    pub(super) fn has_left(&self, end: &End) -> bool {
        match (&self.finder, end) {
            (Finder::Sentinels(sentinels), End::Server(place)) => sentinels.name_another(place),
            _ => false,
        }
    }

    /// Sentinels may name one that was demoted, or is not promoted yet.
    async fn is_master(
        &self,
        connection: &MultiplexedConnection,
        end: &End,
    ) -> Result<(), StoreError> {
        let ask = redis::cmd("ROLE");
        let said = connection.clone().send_packed_command(&ask).await;
        let shown = self.access.shown(end);
        match said.map_err(|error| errors::not_connected(&shown, &error))? {
            Value::ServerError(error) => Err(errors::answered(&error)),
            Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".into())) => {
                Ok(())
            }
            _ => {
                let message = format!("the sentinels name {shown}, which is no master now");
                Err(StoreError::not_sent(StoreErrorKind::Unavailable, message))
            }
        }
    }
}

/// The task that moves a connection's octets. It ends when the connection does.
pub(super) struct Driver(JoinHandle<()>);

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended() { "Ended" } else { "Running" })
    }
}

impl Driver {
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the connection's end.
    pub(super) async fn ended(&mut self) {
        drop((&mut self.0).await);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
