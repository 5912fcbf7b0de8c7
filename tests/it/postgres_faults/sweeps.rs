//! Cleaning up has a bound (R22): many records end at once, and claims go on in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use retrysafe::idempotency::RecordKey;
use retrysafe::store::Store;
use tokio::time::Instant;

use super::Bench;
use crate::store_contract::operations::claim;

const BATCH: usize = 1_000;

/// What one claim after another met.
#[derive(Debug, Default)]
struct Met {
    claims: u64,
    longest: Duration,
}

async fn claims(store: &Arc<dyn Store>, first: u8, over: impl Fn(u64) -> bool) -> Met {
    let mut met = Met::default();
    while !over(met.claims) {
        let mut key = [first; 32];
        key[24..].copy_from_slice(&met.claims.to_be_bytes());
        let started = Instant::now();
        store.apply(RecordKey(key), claim('a')).await.unwrap();
        met.longest = met.longest.max(started.elapsed());
        met.claims += 1;
    }
    met
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_expired_records_go_in_small_batches_with_claims_in_between() {
    let count = match std::env::var_os("RETRYSAFE_TEST_LONG") {
        Some(_) => 1_000_000,
        None => 200_000,
    };
    let Some(bench) = Bench::start(&["synchronous_commit=off"]).await else {
        return;
    };
    let fill = format!(
        "INSERT INTO retrysafe_records
         SELECT sha256(n::text::bytea), 4, '', 1, 1000, n, '' FROM generate_series(1, {count}) AS n"
    );
    bench.server.sql(&fill).await;
    let batches = Arc::new(AtomicU64::new(0));
    let quiet = claims(&bench.store, 1, |claims| claims == 50).await;
    let store = Arc::clone(&bench.store);
    let sweeping = tokio::spawn({
        let batches = batches.clone();
        async move {
            let mut swept = 0;
            loop {
                let now = bench.stores.sweep(usize::MAX).await.unwrap();
                assert!(now <= BATCH, "{now} in one batch");
                swept += now;
                batches.fetch_add(1, Ordering::Release);
                if now < BATCH {
                    return (swept, bench);
                }
            }
        }
    });
    let busy = claims(&store, 2, |_| sweeping.is_finished()).await;
    let (swept, _bench) = sweeping.await.unwrap();
    println!(
        "{swept} swept in {} batches; longest claim {:?} of {} without, {:?} of {} with a sweep",
        batches.load(Ordering::Relaxed),
        quiet.longest,
        quiet.claims,
        busy.longest,
        busy.claims,
    );
    assert_eq!(swept, count);
    // They have sessions of their own, and wait for no batch.
    assert!(busy.claims >= 50, "{} claims in between", busy.claims);
}
