//! A store under test, and the power over its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::clock::Clock;
use retrysafe::idempotency::transition::Entry;
use retrysafe::idempotency::{Operation, Outcome, RecordKey, State, transition};
use retrysafe::store::vault::{SealingKey, Vault, VaultSettings};
use retrysafe::store::{FileStore, MemoryStore, RedisStores, Settings, Store, StoreError};
use tokio::runtime::{Builder, Runtime};

use crate::support::postgres::{self, Postgres};
use crate::support::postgres_releases::Release;
use crate::support::redis::{Flavour, Redis, least_rights, settings_at};
use crate::support::redis_cluster::Cluster;
use crate::support::redis_groups::{self, Sentineled};

/// All durations of these tests are multiples of this: a real server's own milliseconds vanish.
pub(crate) const GRAIN: u64 = 100;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `transition()` over a map: the specification itself.
    Specification,
    Memory,
    File,
    /// The same with its records compressed and sealed.
    SealedFile,
    Redis(Flavour),
    /// A Redis whose records are compressed and sealed.
    SealedRedis,
    /// A master whose replica confirms what is written.
    Confirmed,
    /// A master that sentinels name.
    Sentinel,
    Cluster,
    Postgres(Release),
    SealedPostgres,
    /// PostgreSQL with Redis before it.
    Tiered,
}

impl Kind {
    /// Time stands still for the memory store; a paused clock would race a server's answer.
    pub(crate) fn runtime(self) -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.enable_all();
        if self == Self::Memory {
            builder.start_paused(true);
        }
        builder.build().unwrap()
    }

    /// How many random plays, each of some 30 steps, are worth their time.
    pub(crate) fn plays(self) -> u32 {
        match self {
            Self::Specification | Self::Memory => 1_000,
            Self::File | Self::SealedFile => 100,
            Self::Redis(_)
            | Self::SealedRedis
            | Self::Confirmed
            | Self::Sentinel
            | Self::Cluster => 200,
            Self::Postgres(_) | Self::SealedPostgres | Self::Tiered => 60,
        }
    }
}

/// On a server that does not wait for its disk: what is not on disk is not what these cases are about.
fn postgres_of(kind: Kind) -> Option<(Arc<dyn Store>, Time)> {
    let release = match kind {
        Kind::Postgres(release) => release,
        _ => Release::Installed,
    };
    let server = Postgres::start_release(release, &["synchronous_commit=off"])?;
    match kind {
        Kind::Tiered => {
            let cache = Redis::start(&[])?;
            // Copies live as long as their records.
            let lifetime = Duration::from_secs(10 * GRAIN * GRAIN);
            let stores = postgres::tiered(&server, &cache, lifetime);
            Some((stores.handle(), Time::Tiered(server, cache)))
        }
        Kind::SealedPostgres => {
            let store = postgres::sealed(&server.url(), sealing()).handle();
            Some((store, Time::Postgres(server)))
        }
        _ => {
            let store = postgres::stores(&server.url()).handle();
            Some((store, Time::Postgres(server)))
        }
    }
}

/// Everything is sealed, and what is not tiny is compressed.
fn sealing() -> VaultSettings {
    VaultSettings {
        keys: vec![SealingKey::new([3; 32])],
        accept_plaintext: false,
        compress_above: Some(64),
    }
}

fn vault(kind: Kind) -> Arc<Vault> {
    match kind {
        Kind::SealedFile => Vault::new(sealing()),
        _ => Vault::open(),
    }
}

/// A clock that only tests move.
#[derive(Debug, Default)]
pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap();
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn unix_millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store, its time, and fresh keys.
pub(crate) struct Bench {
    store: Arc<dyn Store>,
    time: Time,
    elapsed: AtomicU64,
    next_key: AtomicU64,
}

enum Time {
    Tokio,
    Clock(Arc<TestClock>, #[expect(dead_code)] tempfile::TempDir),
    /// Servers that hold records, and whatever else belongs to them.
    Redis(Vec<Redis>),
    Sentinel(Box<Sentineled>),
    Cluster(Cluster),
    Postgres(Postgres),
    Tiered(Postgres, Redis),
}

impl Bench {
    /// `None` where the store's server is not installed.
    pub(crate) fn new(kind: Kind) -> Option<Self> {
        let (store, time): (Arc<dyn Store>, _) = match kind {
            Kind::Specification => {
                let clock = Arc::new(TestClock::default());
                let store = Specification {
                    entries: Mutex::default(),
                    clock: Arc::clone(&clock),
                };
                (
                    Arc::new(store),
                    Time::Clock(clock, tempfile::tempdir().unwrap()),
                )
            }
            Kind::Memory => (Arc::new(MemoryStore::new(u64::MAX)), Time::Tokio),
            Kind::File | Kind::SealedFile => {
                let clock = Arc::new(TestClock::default());
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("store.db");
                let store =
                    FileStore::open(&path, u64::MAX, vault(kind), Arc::clone(&clock) as _).unwrap();
                (Arc::new(store), Time::Clock(clock, folder))
            }
            Kind::Redis(flavour) => {
                let server = Redis::start_flavour(flavour, &[])?;
                least_rights(&server, "");
                let settings = settings_at(as_sidecar(&server.url()));
                (open(&settings), Time::Redis(vec![server]))
            }
            Kind::SealedRedis => {
                let server = Redis::start(&[])?;
                let settings = Settings {
                    vault: sealing(),
                    ..settings_at(server.url())
                };
                (open(&settings), Time::Redis(vec![server]))
            }
            Kind::Confirmed => {
                let master = redis_groups::master(&[])?;
                let replica = redis_groups::replica_of(master.addr(), &[])?;
                least_rights(&master, "+wait");
                let settings = Settings {
                    wait_replicas: 1,
                    ..settings_at(as_sidecar(&master.url()))
                };
                (open(&settings), Time::Redis(vec![master, replica]))
            }
            Kind::Sentinel => {
                let group = Sentineled::start(None)?;
                least_rights(&group.servers[0], "+role");
                let settings = settings_at(as_sidecar(&group.url()));
                (open(&settings), Time::Sentinel(Box::new(group)))
            }
            Kind::Cluster => {
                let cluster = Cluster::start(0, &[])?;
                for node in &cluster.nodes {
                    least_rights(node, "+cluster|slots +asking");
                }
                let settings = settings_at(as_sidecar(&cluster.url()));
                (open(&settings), Time::Cluster(cluster))
            }
            Kind::Postgres(_) | Kind::SealedPostgres | Kind::Tiered => postgres_of(kind)?,
        };
        Some(Self {
            store,
            time,
            elapsed: AtomicU64::new(0),
            next_key: AtomicU64::new(1),
        })
    }

    /// A key nobody used yet.
    pub(crate) fn key(&self) -> RecordKey {
        let number = self.next_key.fetch_add(1, Ordering::Relaxed);
        let mut octets = [0xa5; 32];
        octets[..8].copy_from_slice(&number.to_be_bytes());
        RecordKey(octets)
    }

    /// Applies, with ages made comparable.
    pub(crate) async fn apply(
        &self,
        key: RecordKey,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        self.store.apply(key, operation).await.map(comparable)
    }

    /// Lets time pass for every record.
    pub(crate) async fn advance(&self, seconds: u64) {
        assert_eq!(seconds % GRAIN, 0, "durations are multiples of the grain");
        let by = Duration::from_secs(seconds);
        self.elapsed.fetch_add(seconds * 1_000, Ordering::Relaxed);
        match &self.time {
            Time::Tokio => tokio::time::advance(by).await,
            Time::Clock(clock, _) => clock.advance(by),
            Time::Redis(servers) => shorten(&servers[0], seconds),
            Time::Sentinel(group) => shorten(&group.servers[0], seconds),
            Time::Cluster(cluster) => {
                for node in cluster.masters() {
                    shorten(node, seconds);
                }
            }
            Time::Postgres(server) => shift(server, seconds).await,
            Time::Tiered(server, cache) => {
                shorten(cache, seconds);
                shift(server, seconds).await;
            }
        }
    }

    /// Milliseconds that have passed, for the specification beside it.
    pub(crate) fn now(&self) -> u64 {
        self.elapsed.load(Ordering::Relaxed)
    }
}

/// Records are kept with the rights that the documents name.
fn as_sidecar(url: &str) -> String {
    url.replacen("://", "://sidecar:pw@", 1)
}

fn open(settings: &Settings) -> Arc<dyn Store> {
    let stores = RedisStores::new(settings, Arc::new(|_| {})).unwrap();
    stores.handle()
}

/// A server's clock cannot be moved; what every key has left can.
fn shorten(server: &Redis, seconds: u64) {
    const SCRIPT: &str = "
        for _, key in ipairs(redis.call('KEYS', '*')) do
            redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1])
        end";
    server.cli(&["EVAL", SCRIPT, "0", &(seconds * 1_000).to_string()]);
}

/// The same with rows.
async fn shift(server: &Postgres, seconds: u64) {
    let by = seconds * 1_000;
    // The first use of the store makes the table; time may pass before.
    let shift = format!(
        "DO $$ BEGIN IF to_regclass('retrysafe_records') IS NOT NULL THEN \
         UPDATE retrysafe_records SET ends_at = ends_at - {by}; END IF; END $$"
    );
    server.sql(&shift).await;
}

/// Ages in whole grains; none for completed records, where the contract leaves it open.
pub(crate) fn comparable(mut outcome: Outcome) -> Outcome {
    if let Outcome::Held(held) | Outcome::Refused(held) = &mut outcome {
        let grains = held.age.as_secs() / GRAIN;
        held.age = match held.record.state {
            State::Completed { .. } | State::NotKept { .. } => Duration::ZERO,
            _ => Duration::from_secs(grains * GRAIN),
        };
    }
    outcome
}

/// The specification as a store.
#[derive(Debug)]
struct Specification {
    entries: Mutex<HashMap<RecordKey, Entry>>,
    clock: Arc<TestClock>,
}

impl Store for Specification {
    fn apply(
        &self,
        key: RecordKey,
        operation: Operation,
    ) -> retrysafe::store::StoreFuture<'_, Outcome> {
        let mut entries = self.entries.lock().unwrap();
        let entry = entries.remove(&key);
        let (entry, outcome) = transition(entry, operation, self.clock.unix_millis());
        if let Some(entry) = entry {
            entries.insert(key, entry);
        }
        Box::pin(std::future::ready(Ok(outcome)))
    }

    fn ping(&self) -> retrysafe::store::StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn listen(&self, _key: RecordKey) -> retrysafe::store::StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unlisten(&self, _key: RecordKey) {}
}
