//! One session with PostgreSQL, and how it is begun and ended.
//!
//! Owns the address and the login. Invariant: a session whose statement was given up is never used
//! again: it is told to cancel, and closed.
//!
//! Statements are sent without a name and with the types of their arguments: one round trip, and
//! nothing that stays behind in a session, so that a pooler may hand each to another server.
//!
//! Deliberately absent: how many there are (`pool.rs`), repeating a statement.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Notification, Row};

use super::address::PostgresAddress;
use super::errors;
use super::socket::{self, Encrypt, Socket};
use crate::store::{StoreError, StoreErrorKind};
use crate::tls::Connector;

/// An argument and its type.
pub(super) type Argument<'a> = (&'a (dyn ToSql + Sync), Type);

/// Where to connect, and as whom.
pub(super) struct Target {
    address: PostgresAddress,
    login: Config,
    connector: Option<Connector>,
    /// For messages: no user, no password.
    pub(super) shown: String,
    /// Of one store call.
    pub(super) timeout: Duration,
}

impl fmt::Debug for Target {
    /// Without the login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Target {
    pub(super) fn new(
        address: &PostgresAddress,
        connector: Option<Connector>,
        timeout: Duration,
    ) -> Self {
        let mut login = Config::new();
        login
            .user(&address.user)
            .dbname(&address.database)
            .application_name("retrysafe")
            .ssl_mode(match connector {
                Some(_) => SslMode::Require,
                None => SslMode::Disable,
            });
        if let Some(password) = &address.password {
            login.password(password);
        }
        Self {
            shown: address.to_string(),
            address: address.clone(),
            login,
            connector,
            timeout,
        }
    }

    /// Connects and logs in. `heard` gets the notices; without it they are dropped.
    pub(super) async fn connect(
        &self,
        patience: Duration,
        heard: Option<mpsc::Sender<Notification>>,
    ) -> Result<Session, StoreError> {
        let attempt = tokio::time::timeout(patience, self.log_in(heard));
        attempt.await.map_err(|_| self.too_slow(patience))?
    }

    async fn log_in(
        &self,
        heard: Option<mpsc::Sender<Notification>>,
    ) -> Result<Session, StoreError> {
        let socket = self.socket().await?;
        let refused = |error| errors::not_connected(&self.shown, &error);
        let (client, driver) = match &self.connector {
            None => {
                let made = self.login.connect_raw(socket, NoTls).await;
                let (client, connection) = made.map_err(refused)?;
                (client, tokio::spawn(drive(connection, heard)))
            }
            Some(connector) => {
                let encrypt = Encrypt(connector.clone());
                let made = self.login.connect_raw(socket, encrypt).await;
                let (client, connection) = made.map_err(refused)?;
                (client, tokio::spawn(drive(connection, heard)))
            }
        };
        Ok(Session {
            client,
            driver: Driver(driver),
        })
    }

    async fn socket(&self) -> Result<Socket, StoreError> {
        socket::open(&self.address).await.map_err(|error| {
            let message = format!("no connection to PostgreSQL at {}: {error}", self.shown);
            StoreError::not_sent(StoreErrorKind::Unavailable, message)
        })
    }

    fn too_slow(&self, patience: Duration) -> StoreError {
        let message = format!(
            "no connection to PostgreSQL at {} in {patience:?}",
            self.shown
        );
        StoreError::not_sent(StoreErrorKind::Timeout, message)
    }

    /// Asks the server to give up what `session` is at, then closes it: a statement that waits for
    /// a lock would otherwise keep its place at the server for as long as the lock is held.
    pub(super) async fn cancel(&self, session: Session) {
        let token = session.client.cancel_token();
        let ask = async {
            let socket = self.socket().await?;
            let asked = match &self.connector {
                None => token.cancel_query_raw(socket, NoTls).await,
                Some(connector) => {
                    let encrypt = Encrypt(connector.clone());
                    token.cancel_query_raw(socket, encrypt).await
                }
            };
            asked.map_err(|error| errors::not_connected(&self.shown, &error))
        };
        match tokio::time::timeout(self.timeout, ask).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("a statement could not be cancelled: {error}"),
            Err(_) => tracing::debug!("a statement could not be cancelled in time"),
        }
        drop(session);
    }
}

/// Moves a session's octets until it ends.
async fn drive<T>(mut connection: Connection<Socket, T>, heard: Option<mpsc::Sender<Notification>>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Some(heard) = &heard
                    && heard.send(notification).await.is_err()
                {
                    return;
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!("a session with PostgreSQL ended: {error}");
                return;
            }
            None => return,
        }
    }
}

/// The task that moves a session's octets.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A session that was begun.
pub(super) struct Session {
    client: Client,
    driver: Driver,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended() { "Ended" } else { "Running" })
    }
}

impl Session {
    /// Whether nothing can be asked any more.
    pub(super) fn has_ended(&self) -> bool {
        self.client.is_closed() || self.driver.0.is_finished()
    }

    /// One statement. Returns once the server is ready again: after the commit.
    pub(super) async fn query(
        &self,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.client.query_typed(statement, arguments).await
    }

    /// One statement; how many rows it changed.
    pub(super) async fn execute(
        &self,
        statement: &str,
        arguments: &[Argument<'_>],
    ) -> Result<u64, Error> {
        self.client.execute_typed(statement, arguments).await
    }

    /// Several statements without arguments, in one transaction.
    pub(super) async fn batch(&self, statements: &str) -> Result<(), Error> {
        self.client.batch_execute(statements).await
    }
}
