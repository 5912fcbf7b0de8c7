//! Cleaning up has a bound (R22): many records end at once, and claims go on in between.

use std::time::Duration;

use redb::Database;
use tokio::time::Instant;

use super::*;
use crate::clock::SystemClock;
use crate::idempotency::transition::Claim;
use crate::idempotency::{Fingerprint, Owner, codec};

const BATCH: usize = 1_000;

fn claim() -> Claim {
    Claim {
        owner: Owner([7; 16]),
        fingerprint: Fingerprint {
            profile: 1,
            digest: [1; 32],
            parts: Arc::new([]),
        },
        lease: Duration::from_secs(30),
        retention: Duration::from_hours(24),
        waited: false,
    }
}

fn key(number: u64, first: u8) -> RecordKey {
    let mut key = [first; 32];
    key[24..].copy_from_slice(&number.to_be_bytes());
    RecordKey(key)
}

/// Fills a file below the store with records that have ended.
fn fill(path: &Path, count: u64) {
    let database = Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut records = transaction.open_table(tables::RECORDS).unwrap();
        let mut ends = transaction.open_table(tables::ENDS).unwrap();
        let record = codec::encode(&claim().record(1));
        for number in 0..count {
            let (key, ended_at) = (key(number, 1), 1 + number);
            let value = [&ended_at.to_be_bytes(), &record[..]].concat();
            records.insert(&key.0, value.as_slice()).unwrap();
            ends.insert((ended_at, &key.0), ()).unwrap();
        }
    }
    transaction.commit().unwrap();
}

fn open(path: &Path, max_records: u64) -> Arc<FileStore> {
    let store = FileStore::open(path, max_records, Vault::open(), Arc::new(SystemClock));
    Arc::new(store.unwrap())
}

/// Claims one after another until `over`: how many, the longest, and the most batches that any of
/// them waited for.
async fn claims(
    store: &FileStore,
    batches: &AtomicU64,
    over: impl Fn() -> bool,
) -> (u64, Duration, u64) {
    let (mut count, mut longest, mut most) = (0, Duration::ZERO, 0);
    while !over() {
        let (started, before) = (Instant::now(), batches.load(Ordering::Acquire));
        let claimed = store.apply(key(count, 2), Operation::Claim(claim())).await;
        assert!(
            matches!(claimed, Ok(Outcome::Acquired { .. })),
            "{claimed:?}"
        );
        longest = longest.max(started.elapsed());
        most = most.max(batches.load(Ordering::Acquire) - before);
        count += 1;
    }
    (count, longest, most)
}

#[tokio::test]
async fn many_expired_records_go_in_small_batches_with_claims_in_between() {
    let count = match std::env::var_os("RETRYSAFE_TEST_LONG") {
        Some(_) => 1_000_000,
        None => 200_000,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fill(&path, count);
    let store = open(&path, u64::MAX);
    let batches = Arc::new(AtomicU64::new(0));
    let alone = Arc::new(AtomicU64::new(0));
    let quiet = claims(&store, &batches, || {
        alone.fetch_add(1, Ordering::Relaxed) >= 50
    })
    .await;
    let sweeping = tokio::spawn({
        let (store, batches) = (store.clone(), batches.clone());
        async move {
            let mut swept = 0;
            loop {
                let now = store.sweep(usize::MAX).await.unwrap();
                assert!(now <= BATCH, "{now} in one batch");
                swept += now;
                batches.fetch_add(1, Ordering::Release);
                if now < BATCH {
                    return swept;
                }
            }
        }
    });
    let busy = claims(&store, &batches, || sweeping.is_finished()).await;
    let swept = sweeping.await.unwrap();
    println!(
        "{swept} swept in {} batches; longest claim {:?} of {} without, {:?} of {} with a sweep",
        batches.load(Ordering::Relaxed),
        quiet.1,
        quiet.0,
        busy.1,
        busy.0,
    );
    // What claims themselves reaped on their way is missing.
    assert!(swept as u64 <= count && swept as u64 > count / 2, "{swept}");
    assert!(busy.0 >= 50, "{} claims in between", busy.0);
    assert!(busy.2 <= 3, "a claim waited for {} batches", busy.2);
}

/// However many claims share a transaction, and however many records ended.
#[tokio::test]
async fn claims_that_need_room_do_not_sweep_everything_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    fill(&path, 20_000);
    let store = open(&path, 20_000);
    let before = store.commits();
    let waiting = (0..64).map(|number| store.apply(key(number, 3), Operation::Claim(claim())));
    for claimed in futures_in_order(waiting).await {
        assert!(
            matches!(claimed, Ok(Outcome::Acquired { .. })),
            "{claimed:?}"
        );
    }
    let transactions = store.commits() - before;
    let mut left = 0;
    loop {
        let now = store.sweep(usize::MAX).await.unwrap();
        left += now as u64;
        if now < BATCH {
            break;
        }
    }
    let removed = 20_000 - left;
    let allowed = transactions * (BATCH as u64 + 64);
    assert!(
        removed >= 64 && removed <= allowed,
        "{removed} in {transactions} transactions"
    );
}

/// All at once, so that they share transactions.
async fn futures_in_order<'a>(
    calls: impl Iterator<Item = StoreFuture<'a, Outcome>>,
) -> Vec<Result<Outcome, StoreError>> {
    let mut calls: Vec<_> = calls.map(|call| (Some(call), None)).collect();
    std::future::poll_fn(|cx| {
        for (call, answer) in &mut calls {
            let done = call.as_mut().map(|call| call.as_mut().poll(cx));
            if let Some(std::task::Poll::Ready(result)) = done {
                (*call, *answer) = (None, Some(result));
            }
        }
        if calls.iter().all(|(call, _)| call.is_none()) {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}
