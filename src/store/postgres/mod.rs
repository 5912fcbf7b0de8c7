//! `postgres://`: records that several replicas share. PostgreSQL 14 and later.
//!
//! Owns one table, `retrysafe_records`, with one row for each record: the codec's form, and the
//! columns that statements decide by. Invariant: every operation is decided by one statement on
//! that one row under READ COMMITTED, with its primary key as the only arbiter, and only the
//! server's clock counts. Records of all namespaces share the table: the record key is a hash over
//! the namespace too (R8).
//!
//! Sessions are shared by the threads of the process (`pool.rs`); wake-ups have one of their own.
//!
//! Deliberately absent: the deadline around an operation and the breaker, repeating what failed,
//! reading from standbys.
//!
//! Read next: `operations.rs` (what is done), `statements.rs` (what is sent), `pool.rs`.

mod address;
mod errors;
mod fitness;
mod mark;
mod operations;
mod pool;
mod schema;
mod session;
mod socket;
mod statements;
mod subscription;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use super::loss::Loss;
use super::tier::{Guarantee, Tier, of_postgres};
use super::vault::Vault;
use super::{OpenError, Settings, Store, StoreError, StoreErrorKind, StoreFuture, WakeFn};
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::tls::{Certificates, ClientSettings, Connector};
use fitness::Server;
use mark::{Looked, Mark};
use pool::{Pool, Trouble};
use session::{Argument, Target};
use subscription::Subscription;

pub use address::{PostgresAddress, PostgresPlace};
pub use schema::sql;

/// How long a sweep or a check may take.
const DUTY: Duration = Duration::from_secs(5);
/// Records removed in one transaction at most, whatever is asked.
const SWEEP_BATCH: usize = 1_000;

/// Records in a PostgreSQL, for one process. See the module.
#[derive(Debug)]
pub struct PostgresStores {
    shared: Arc<Shared>,
    certificates: Option<Certificates<ClientSettings>>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    loss: Arc<Loss>,
    mark: Option<Arc<Mark>>,
    table: schema::Table,
    subscription: Subscription,
}

impl PostgresStores {
    /// Contacts nobody yet. `wake` is called when another process settles a key that a handle
    /// listens to.
    pub fn new(
        settings: &Settings,
        address: &PostgresAddress,
        wake: WakeFn,
    ) -> Result<Self, OpenError> {
        let (certificates, connector) = tls(settings, address)?.unzip();
        let target = Target::new(address, connector, settings.timeout);
        let loss = Loss::new(settings.hold_off);
        let mark = Mark::new(&loss);
        let pool = Pool::new(
            Arc::new(target),
            settings.connections,
            Vault::new(settings.vault.clone()),
            mark.clone(),
        );
        Ok(Self {
            shared: Arc::new(Shared {
                subscription: Subscription::new(Arc::clone(&pool), wake),
                table: schema::Table::default(),
                loss,
                mark,
                pool,
            }),
            certificates,
        })
    }

    /// A handle for one thread.
    pub fn handle(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore(Arc::clone(&self.shared)))
    }

    /// The certificates in use, for whoever looks for new ones.
    pub fn take_certificates(&mut self) -> Option<Certificates<ClientSettings>> {
        self.certificates.take()
    }

    /// Asks the server whether it is fit to hold records, and creates the table where that may be;
    /// answers warnings. At start, and then every minute.
    pub async fn check(&self) -> Result<Vec<String>, OpenError> {
        let shown = &self.shared.pool.target.shown;
        let mut server = self.ask().await.map_err(|error| self.cannot(&error))?;
        server.takes_writes(shown)?;
        if server.table.is_none() {
            self.create_quietly().await?;
            server = self.ask().await.map_err(|error| self.cannot(&error))?;
        }
        let warnings = server.fit(shown)?;
        self.shared.table.has_been_seen();
        if let Some(mark) = &self.shared.mark {
            mark.may_ask(server.tells_of_its_log());
            let went_on = self.in_time(async {
                let mut lent = self.shared.pool.lend_at_leisure().await?;
                mark.go_on(&mut lent).await;
                Ok(())
            });
            // A server that answers and takes no writes is fit all the same.
            let _another_time = went_on.await.is_err();
        }
        Ok(warnings)
    }

    /// How far it can be trusted.
    pub async fn guarantee(&self) -> Result<Guarantee, StoreError> {
        let found = of_postgres(&self.ask().await?.facts());
        let (restart, failover) = (found.tier >= Tier::T4, found.tier >= Tier::T5);
        self.shared.loss.set_keeps(restart, failover);
        Ok(found)
    }

    /// What is known of losses of its memory.
    pub fn loss(&self) -> Arc<Loss> {
        Arc::clone(&self.shared.loss)
    }

    /// Whether it is still the store it was; asked each second.
    pub async fn look(&self) {
        let Some(mark) = &self.shared.mark else {
            return;
        };
        let patience = self.shared.pool.target.timeout;
        let looked = tokio::time::timeout(patience, async {
            let mut lent = self.shared.pool.lend().await?;
            let looked = mark.look(&mut lent).await;
            if matches!(looked, Ok(Looked::Standby)) {
                // The primary may be had by now.
                lent.end();
            }
            looked
        });
        let looked = looked.await;
        let takes_writes = matches!(looked, Ok(Ok(Looked::Yes { takes_writes: true })));
        self.shared.loss.takes_writes(takes_writes);
        if !takes_writes {
            return tracing::debug!("no look at the mark, or nothing can be written: {looked:?}");
        }
        let kept = self.in_time(async {
            let mut lent = self.shared.pool.lend().await?;
            mark.keep(&mut lent).await
        });
        if let Err(error) = kept.await {
            tracing::debug!("the mark was not kept: {error}");
        }
    }

    /// Creates the table: `retrysafe store init`.
    pub async fn init(&self) -> Result<(), OpenError> {
        let created = self.in_time(async {
            let mut lent = self.shared.pool.lend_at_leisure().await?;
            schema::create(&mut lent).await?;
            Ok(())
        });
        created.await.map_err(|error| self.cannot(&error))
    }

    /// Removes at most `limit` records that have ended, in one transaction.
    pub async fn sweep(&self, limit: usize) -> Result<usize, StoreError> {
        self.in_time(async {
            let mut lent = self.shared.pool.lend().await?;
            let limit = i64::try_from(limit.min(SWEEP_BATCH)).unwrap_or(1);
            let arguments: [Argument<'_>; 1] = [(&limit, Type::INT8)];
            let removed = lent.execute(statements::SWEEP, &arguments).await?;
            usize::try_from(removed).map_err(|_| errors::odd("a sweep"))
        })
        .await
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> &str {
        &self.shared.pool.target.shown
    }

    async fn ask(&self) -> Result<Server, StoreError> {
        self.in_time(async {
            let mut lent = self.shared.pool.lend_at_leisure().await?;
            let rows = lent.query(statements::ASK, &[]).await?;
            let row = rows.first();
            Server::read(row.ok_or_else(|| errors::odd("what it is asked about itself"))?)
        })
        .await
    }

    /// Duties have no deadline of their own, and the next must have its turn.
    async fn in_time<T>(
        &self,
        duty: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = DUTY.max(self.shared.pool.target.timeout);
        match tokio::time::timeout(limit, duty).await {
            Ok(result) => result,
            Err(_) => Err(StoreError::maybe_sent(
                StoreErrorKind::Timeout,
                format!("PostgreSQL did not answer in {limit:?}"),
            )),
        }
    }

    /// A role that may not leaves it to the next question, which then says so.
    async fn create_quietly(&self) -> Result<(), OpenError> {
        let created = self.in_time(async {
            let mut lent = self.shared.pool.lend_at_leisure().await?;
            schema::create_if_never_seen(&self.shared, &mut lent).await
        });
        match created.await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == StoreErrorKind::Refused => {
                Err(OpenError::Unfit(error.message))
            }
            Err(error) => Err(self.cannot(&error)),
        }
    }

    fn cannot(&self, error: &StoreError) -> OpenError {
        let shown = self.address();
        OpenError::Unreachable(format!(
            "the store at {shown} cannot be asked: {}",
            error.message
        ))
    }
}

/// For an address with TLS: the files, and what makes connections with them.
fn tls(
    settings: &Settings,
    address: &PostgresAddress,
) -> Result<Option<(Certificates<ClientSettings>, Connector)>, OpenError> {
    let PostgresPlace::Host(host) = &address.place else {
        return Ok(None);
    };
    if !address.tls {
        return Ok(None);
    }
    let files = Certificates::load(&settings.tls).map_err(|findings| {
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        OpenError::Unfit(texts.join("; "))
    })?;
    let connector = Connector::new(files.live(), &settings.tls, host);
    let connector = connector.ok_or_else(|| {
        OpenError::Unfit(format!(
            "`store.url`: no certificate can bear the name {host}"
        ))
    })?;
    Ok(Some((files, connector)))
}

/// One thread's handle.
#[derive(Debug)]
struct PostgresStore(Arc<Shared>);

impl Store for PostgresStore {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(self.0.run(key, operation))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let mut lent = self.0.pool.lend().await?;
            let asked = lent.query("SELECT 1", &[]).await;
            asked.map_err(|trouble: Trouble| StoreError::from(trouble))?;
            Ok(())
        })
    }

    fn listen(&self, key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(self.0.subscription.listen(key))
    }

    fn unlisten(&self, key: RecordKey) {
        self.0.subscription.unlisten(key);
    }
}
