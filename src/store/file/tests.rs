//! A disk that fails, and a file that was tampered with. What a store must do over a good disk
//! stands in the store contract (`tests/it/store_contract`).

use std::io;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use redb::backends::FileBackend;
use redb::{Database, StorageBackend};

use super::*;
use crate::clock::SystemClock;
use crate::idempotency::record::State;
use crate::idempotency::transition::Claim;
use crate::idempotency::{Fingerprint, Owner, Record, codec};
use crate::store::Delivery;

const HEALTHY: u8 = 0;
const FULL: u8 = 1;
const SYNC_FAILS: u8 = 2;

/// A file whose disk can be made to fail.
#[derive(Debug)]
struct Faulty {
    file: FileBackend,
    fault: Arc<AtomicU8>,
}

impl Faulty {
    fn check(&self, at: u8, kind: io::ErrorKind) -> io::Result<()> {
        if self.fault.load(Ordering::Relaxed) == at {
            return Err(kind.into());
        }
        Ok(())
    }
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(FULL, io::ErrorKind::StorageFull)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check(SYNC_FAILS, io::ErrorKind::Other)?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(FULL, io::ErrorKind::StorageFull)?;
        self.file.write(offset, data)
    }
}

/// Opens a database on such a file.
fn faulty(path: &Path, fault: &Arc<AtomicU8>) -> Opener {
    let path = path.to_owned();
    let fault = Arc::clone(fault);
    Box::new(move || {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .unwrap();
        let file = FileBackend::new(file).unwrap();
        let fault = Arc::clone(&fault);
        Database::builder()
            .create_with_backend(Faulty { file, fault })
            .map_err(|error| OpenError::Unreachable(error.to_string()))
    })
}

struct Bench {
    store: FileStore,
    fault: Arc<AtomicU8>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let fault = Arc::new(AtomicU8::new(HEALTHY));
        let opener = faulty(&path, &fault);
        let store = FileStore::open_with(&path, opener, contents(), Arc::new(SystemClock)).unwrap();
        Self {
            store,
            fault,
            folder,
        }
    }

    fn set(&self, fault: u8) {
        self.fault.store(fault, Ordering::Relaxed);
    }

    async fn claim(&self, key: u8) -> Result<Outcome, StoreError> {
        let operation = Operation::Claim(claim());
        self.store.apply(RecordKey([key; 32]), operation).await
    }
}

fn claim() -> Claim {
    Claim {
        owner: Owner([7; 16]),
        fingerprint: fingerprint(),
        lease: Duration::from_secs(30),
        retention: Duration::from_hours(24),
        waited: false,
    }
}

fn fingerprint() -> Fingerprint {
    Fingerprint {
        profile: 1,
        digest: [1; 32],
        parts: Arc::new([]),
    }
}

const ACQUIRED: Result<Outcome, StoreError> = Ok(Outcome::Acquired { attempt: 1 });

#[tokio::test]
async fn a_full_disk_refuses_until_there_is_room_again() {
    let bench = Bench::new();
    assert_eq!(bench.claim(1).await, ACQUIRED);
    bench.set(FULL);
    let error = bench.claim(2).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Full, "{error}");
    // Nothing is acknowledged from a database that failed, reads neither.
    let error = bench.store.ping().await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Full, Delivery::NotSent)
    );
    bench.set(HEALTHY);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while let Err(error) = bench.claim(3).await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What was acknowledged is there; what was refused is not.
    let known = bench.claim(1).await;
    assert_eq!(known, ACQUIRED, "repeated by its owner");
    let read = |key| {
        let key = RecordKey([key; 32]);
        bench.store.apply(key, Operation::Read)
    };
    assert!(matches!(read(3).await, Ok(Outcome::Held(_))));
    assert_eq!(read(2).await, Ok(Outcome::Absent));
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let bench = Bench::new();
    assert_eq!(bench.claim(1).await, ACQUIRED);
    bench.set(SYNC_FAILS);
    let error = bench.claim(2).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Unavailable, Delivery::MaybeSent)
    );
    // The disk claims to be well again. What it holds is not known, so it is not believed.
    bench.set(HEALTHY);
    for key in [1, 2, 3] {
        let error = bench.claim(key).await.unwrap_err();
        assert_eq!(
            (error.kind, error.delivery),
            (StoreErrorKind::Unavailable, Delivery::NotSent)
        );
    }
    assert!(
        error.message.contains("look at the disk and restart"),
        "{error}"
    );
}

#[test]
fn what_rests_on_a_commit_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let fault = Arc::new(AtomicU8::new(HEALTHY));
    let opener = faulty(&folder.path().join("store.db"), &fault);
    let database = opener().unwrap();
    let commits = Arc::new(AtomicU64::new(0));
    let mut writer = Writer::new(database, opener, contents(), Arc::new(SystemClock), commits);
    let mut run = |operations: Vec<(u8, Operation)>| {
        let mut answers = Vec::new();
        let mut batch = Vec::new();
        for (key, operation) in operations {
            let (reply, answer) = oneshot::channel();
            let key = RecordKey([key; 32]);
            let task = Task::Apply { key, operation };
            batch.push(Command { task, reply });
            answers.push(answer);
        }
        writer.handle(batch);
        let answers = answers.into_iter();
        answers
            .map(|mut answer| answer.try_recv().unwrap())
            .collect()
    };
    let claimed: Vec<_> = run(vec![(1, Operation::Claim(claim()))]);
    assert!(claimed[0].is_ok());
    fault.store(SYNC_FAILS, Ordering::Relaxed);
    let answers = run(vec![
        (1, Operation::Read),
        (2, Operation::Read),
        (2, Operation::Claim(claim())),
        (2, Operation::Read),
        (2, Operation::Claim(claim())),
        (1, Operation::Read),
    ]);
    // The claim was never durable, so nobody may have seen it; what others did before is.
    let seen: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(seen, [true, true, false, false, false, true]);
}

/// Puts octets where a record belongs, as a faulty disk or a newer build would.
fn tamper(path: &Path, key: u8, value: &[u8]) {
    let database = Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(tables::RECORDS).unwrap();
        records.insert(&[key; 32], value).unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_and_never_absent() {
    let Bench { store, folder, .. } = Bench::new();
    drop(store);
    let path = folder.path().join("store.db");
    let record = Record {
        owner: Owner([7; 16]),
        attempt: 1,
        retention: Duration::from_hours(24),
        state: State::InFlight {
            fingerprint: fingerprint(),
            lease: Duration::from_secs(30),
        },
    };
    let whole = [
        u64::MAX.to_be_bytes().as_slice(),
        &codec::encode(&record)[..],
    ]
    .concat();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut newer = whole.clone();
    newer[8] = 2;
    tamper(&path, 1, &flipped);
    tamper(&path, 2, &newer);
    tamper(&path, 3, &whole[..whole.len() - 1]);
    tamper(&path, 4, &whole[..5]);
    tamper(&path, 5, &whole);
    // Past its end it is nobody's, readable or not.
    tamper(&path, 6, &[&1_u64.to_be_bytes()[..], b"garbage"].concat());

    let store = FileStore::open(&path, 1_000, Vault::open(), Arc::new(SystemClock)).unwrap();
    for key in 1..=4 {
        for operation in [
            Operation::Read,
            Operation::Claim(claim()),
            Operation::Abandon {
                owner: Owner([7; 16]),
            },
        ] {
            let error = store
                .apply(RecordKey([key; 32]), operation)
                .await
                .unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Unreadable, "{key}: {error}");
        }
    }
    let intact = store.apply(RecordKey([5; 32]), Operation::Read).await;
    assert!(matches!(intact, Ok(Outcome::Held(_))));
    let ended = store.apply(RecordKey([6; 32]), Operation::Read).await;
    assert_eq!(ended, Ok(Outcome::Absent));
}

fn contents() -> Contents {
    Contents {
        max_records: 1_000,
        vault: Vault::open(),
    }
}
