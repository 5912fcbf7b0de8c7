//! What is the file store's own: durability, the lock, group commit, its bound and its sweep.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retrysafe::idempotency::{Outcome, RecordKey};
use retrysafe::store::vault::Vault;
use retrysafe::store::{Delivery, FileStore, OpenError, Store, StoreErrorKind};
use tokio::task::JoinSet;

use super::bench::TestClock;
use super::operations::*;

fn key(number: u64) -> RecordKey {
    let mut octets = [0; 32];
    octets[..8].copy_from_slice(&number.to_be_bytes());
    RecordKey(octets)
}

fn open(path: &Path, max_records: u64, clock: &Arc<TestClock>) -> FileStore {
    FileStore::open(path, max_records, Vault::open(), Arc::clone(clock) as _).unwrap()
}

/// Claims `keys` at once.
async fn claim_all(store: &Arc<FileStore>, keys: std::ops::Range<u64>) {
    let mut claims = JoinSet::new();
    for number in keys {
        let store = Arc::clone(store);
        claims.spawn(async move { store.apply(key(number), claim('a')).await.unwrap() });
    }
    for outcome in claims.join_all().await {
        assert_eq!(outcome, Outcome::Acquired { attempt: 1 });
    }
}

#[tokio::test]
async fn a_reopened_file_keeps_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let clock = Arc::new(TestClock::default());
    clock.set(1_000_000);
    let store = open(&path, 100, &clock);
    store.apply(key(1), claim('a')).await.unwrap();
    store.apply(key(2), claim('a')).await.unwrap();
    let settled = settle('a', 1, completed());
    store.apply(key(2), settled).await.unwrap();
    drop(store);

    clock.advance(Duration::from_mins(5));
    let store = open(&path, 100, &clock);
    let words_of = async |number| words(&store.apply(key(number), claim('b')).await.unwrap());
    assert_eq!(words_of(1).await, "held in_flight a1 300s");
    assert_eq!(words_of(2).await, "held completed a1 300s");
    // Nothing but this program and its user may read other people's answers.
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_second_process_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let clock = Arc::new(TestClock::default());
    let store = open(&path, 100, &clock);
    let error = FileStore::open(&path, 100, Vault::open(), Arc::clone(&clock) as _).unwrap_err();
    let OpenError::InUse(message) = error else {
        panic!("{error}");
    };
    assert!(message.starts_with(path.to_str().unwrap()), "{message}");
    assert!(message.contains("Stop that process"), "{message}");
    drop(store);
    // Dropping it has released the lock.
    drop(open(&path, 100, &clock));
    // Nothing but the file is left over from creating it.
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

#[tokio::test]
async fn what_cannot_be_a_store_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let refused = |path: &Path| {
        let error = FileStore::open(path, 100, Vault::open(), Arc::clone(&clock) as _).unwrap_err();
        let OpenError::Unfit(message) = error else {
            panic!("{error}");
        };
        message
    };
    let missing = refused(&folder.path().join("no/such/store.db"));
    assert!(missing.contains("its folder does not exist"), "{missing}");
    let text = folder.path().join("config.toml");
    std::fs::write(&text, "[store]\n".repeat(100)).unwrap();
    let text = refused(&text);
    assert!(text.contains("is no store of this program"), "{text}");
    let folder = refused(folder.path());
    assert!(folder.contains("cannot be opened for writing"), "{folder}");
}

#[tokio::test]
async fn many_operations_share_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(open(&folder.path().join("store.db"), 10_000, &clock));
    let before = store.commits();
    claim_all(&store, 0..1_000).await;
    let commits = store.commits() - before;
    println!("1,000 claims at once: {commits} commits");
    assert!(commits <= 50, "{commits} commits for 1,000 claims at once");
}

#[tokio::test]
async fn what_changes_nothing_is_not_committed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = open(&folder.path().join("store.db"), 100, &clock);
    store.apply(key(1), claim('a')).await.unwrap();
    let settled = settle('a', 1, completed());
    store.apply(key(1), settled.clone()).await.unwrap();
    let before = store.commits();
    for _ in 0..100 {
        let replay = store.apply(key(1), claim('b')).await.unwrap();
        assert_eq!(words(&replay), "held completed a1");
        store.apply(key(1), settled.clone()).await.unwrap();
        store.apply(key(2), read()).await.unwrap();
        store.ping().await.unwrap();
        assert_eq!(store.sweep(100).await, Ok(0));
    }
    assert_eq!(store.commits(), before);
}

#[tokio::test]
async fn a_full_store_refuses_claims_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(open(&folder.path().join("store.db"), 3, &clock));
    claim_all(&store, 0..3).await;
    let refused = store.apply(key(9), claim('b')).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Full);
    assert_eq!(refused.delivery, Delivery::NotSent);
    let again = Ok(Outcome::Stored { reasserted: true });
    let settled = store.apply(key(10), settle('b', 1, completed())).await;
    assert_eq!(settled, again);
    assert_eq!(store.apply(key(11), abandon('b')).await, again);
    clock.advance(Duration::from_secs(IN_FLIGHT));
    let claimed = store.apply(key(9), claim('b')).await;
    assert_eq!(claimed, Ok(Outcome::Acquired { attempt: 1 }));
}

#[tokio::test]
async fn a_sweep_is_bounded_and_takes_only_what_has_expired() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(open(&folder.path().join("store.db"), 10_000, &clock));
    claim_all(&store, 0..2_500).await;
    clock.advance(Duration::from_secs(IN_FLIGHT / 2));
    store.apply(key(7), renew('a', 1, false)).await.unwrap();
    assert_eq!(store.sweep(5_000).await, Ok(0));
    clock.advance(Duration::from_secs(IN_FLIGHT / 2));
    assert_eq!(store.sweep(100).await, Ok(100));
    // However much is asked for, one transaction takes a thousand.
    assert_eq!(store.sweep(5_000).await, Ok(1_000));
    assert_eq!(store.sweep(5_000).await, Ok(1_000));
    assert_eq!(store.sweep(5_000).await, Ok(399));
    assert_eq!(store.sweep(5_000).await, Ok(0));
    let held = store.apply(key(7), read()).await.unwrap();
    assert_eq!(words(&held), "held in_flight a1 500s");
}

#[tokio::test]
async fn time_never_runs_backwards_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    clock.set(9_000_000);
    let store = open(&folder.path().join("store.db"), 100, &clock);
    store.apply(key(1), claim('a')).await.unwrap();
    clock.advance(Duration::from_mins(5));
    store.apply(key(1), read()).await.unwrap();
    clock.set(0);
    let held = store.apply(key(1), read()).await.unwrap();
    assert_eq!(words(&held), "held in_flight a1 300s");
}

#[tokio::test]
async fn callers_that_leave_disturb_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock::default());
    let store = Arc::new(open(&folder.path().join("store.db"), 10_000, &clock));
    let mut claims = JoinSet::new();
    for number in 0..500 {
        let store = Arc::clone(&store);
        claims.spawn(async move { store.apply(key(number), claim('a')).await });
    }
    tokio::task::yield_now().await;
    claims.shutdown().await;
    // Whatever became of them, each key is either free or theirs, and the writer is alive.
    for number in 0..500 {
        let outcome = store.apply(key(number), claim('b')).await.unwrap();
        let outcome = words(&outcome);
        assert!(
            outcome == "acquired 1" || outcome == "held in_flight a1",
            "{outcome}"
        );
    }
}
