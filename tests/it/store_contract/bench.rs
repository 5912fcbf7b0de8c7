//! A store under test, and the power over its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use retrysafe::clock::Clock;
use retrysafe::idempotency::transition::Entry;
use retrysafe::idempotency::{Operation, Outcome, RecordKey, State, transition};
use retrysafe::store::{FileStore, MemoryStore, Store, StoreError};
use tokio::runtime::{Builder, Runtime};

use crate::support::postgres::{self, Postgres};
use crate::support::redis::{Flavour, Redis, stores};

/// All durations of these tests are multiples of this: a real server's own milliseconds vanish.
pub(crate) const GRAIN: u64 = 100;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `transition()` over a map: the specification itself.
    Specification,
    Memory,
    File,
    Redis(Flavour),
    Postgres,
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
            Self::File => 100,
            Self::Redis(_) => 200,
            Self::Postgres | Self::Tiered => 60,
        }
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
    Redis(Redis),
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
            Kind::File => {
                let clock = Arc::new(TestClock::default());
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("store.db");
                let store = FileStore::open(&path, u64::MAX, Arc::clone(&clock) as _).unwrap();
                (Arc::new(store), Time::Clock(clock, folder))
            }
            Kind::Redis(flavour) => {
                let server = Redis::start_flavour(flavour, &[])?;
                (stores(&server).handle(), Time::Redis(server))
            }
            Kind::Postgres => {
                // What is not on disk is not what these cases are about.
                let server = Postgres::start(&["synchronous_commit=off"])?;
                let store = postgres::stores(&server.url()).handle();
                (store, Time::Postgres(server))
            }
            Kind::Tiered => {
                let server = Postgres::start(&["synchronous_commit=off"])?;
                let cache = Redis::start(&[])?;
                // Copies live as long as their records.
                let stores =
                    postgres::tiered(&server, &cache, Duration::from_secs(10 * GRAIN * GRAIN));
                (stores.handle(), Time::Tiered(server, cache))
            }
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
            Time::Redis(server) => shorten(server, seconds),
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
