//! What is the memory store's own: its bound and its sweep.

use std::time::Duration;

use retrysafe::idempotency::record::FailedWhy;
use retrysafe::idempotency::{Outcome, RecordKey};
use retrysafe::store::{Delivery, MemoryStore, Store, StoreErrorKind};

use super::operations::*;

fn key(number: u64) -> RecordKey {
    let mut octets = [0; 32];
    octets[..8].copy_from_slice(&number.to_be_bytes());
    octets[31] = u8::try_from(number % 251).unwrap();
    RecordKey(octets)
}

async fn full_store() -> MemoryStore {
    let store = MemoryStore::new(3);
    for number in 0..3 {
        store.apply(key(number), claim('a')).await.unwrap();
    }
    store
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_claims_and_nothing_else() {
    let store = full_store().await;
    let refused = store.apply(key(9), claim('b')).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Full);
    assert_eq!(refused.delivery, Delivery::NotSent);
    assert_eq!(store.apply(key(9), read()).await, Ok(Outcome::Absent));

    // What speaks of work already under way is kept beyond the bound.
    let again = Ok(Outcome::Stored { reasserted: true });
    let settled = store.apply(key(10), settle('b', 1, completed())).await;
    assert_eq!(settled, again);
    assert_eq!(store.apply(key(11), renew('b', 1, true)).await, again);
    assert_eq!(store.apply(key(12), abandon('b')).await, again);
    let first = store.apply(key(0), settle('a', 1, completed())).await;
    assert_eq!(first, Ok(Outcome::Stored { reasserted: false }));
    assert_eq!(store.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_full_store_still_lets_a_failed_record_be_claimed() {
    let store = full_store().await;
    let fail = settle('a', 1, failed(FailedWhy::NotSent));
    store.apply(key(1), fail).await.unwrap();
    let claimed = store.apply(key(1), claim('b')).await;
    assert_eq!(claimed, Ok(Outcome::Acquired { attempt: 2 }));
    assert_eq!(store.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_makes_room_unswept() {
    let store = full_store().await;
    tokio::time::advance(Duration::from_secs(IN_FLIGHT)).await;
    let claimed = store.apply(key(9), claim('b')).await;
    assert_eq!(claimed, Ok(Outcome::Acquired { attempt: 1 }));
    assert_eq!(store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_is_bounded_and_takes_only_what_has_expired() {
    let store = MemoryStore::new(u64::MAX);
    for number in 0..500 {
        store.apply(key(number), claim('a')).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(IN_FLIGHT / 2)).await;
    store.apply(key(7), renew('a', 1, false)).await.unwrap();
    assert_eq!(store.sweep(1_000), 0);
    tokio::time::advance(Duration::from_secs(IN_FLIGHT / 2)).await;
    assert_eq!(store.sweep(200), 200);
    assert_eq!(store.sweep(200), 200);
    assert_eq!(store.sweep(200), 99);
    assert_eq!(store.sweep(200), 0);
    assert_eq!(store.len(), 1);
    let held = store.apply(key(7), read()).await.unwrap();
    assert!(matches!(held, Outcome::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn writing_clears_what_has_expired() {
    let store = MemoryStore::new(u64::MAX);
    for number in 0..1_000 {
        store.apply(key(number), claim('a')).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(IN_FLIGHT)).await;
    for number in 1_000..3_000 {
        store.apply(key(number), claim('a')).await.unwrap();
    }
    assert!(store.len() < 2_300, "{} records", store.len());
    assert!(!store.is_empty());
    assert!(format!("{store:?}").contains("max_records"));
}

#[tokio::test(start_paused = true)]
async fn a_record_without_retention_is_gone_at_once() {
    let store = MemoryStore::new(u64::MAX);
    let mut record = record('a', 1, completed());
    record.retention = Duration::ZERO;
    let settle = retrysafe::idempotency::Operation::Settle { record };
    store.apply(key(1), settle).await.unwrap();
    assert_eq!(store.apply(key(1), read()).await, Ok(Outcome::Absent));
    store.sweep(10);
    assert!(store.is_empty());
}
