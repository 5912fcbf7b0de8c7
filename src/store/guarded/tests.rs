//! R24 on a store that does what each test says, in paused time.

use std::collections::VecDeque;

use super::*;
use crate::idempotency::Fingerprint;
use crate::idempotency::record::{FailedWhy, Owner, Record, State as RecordState};
use crate::idempotency::transition::{Claim, Held};

const TIMEOUT: Duration = Duration::from_millis(250);
const KEY: RecordKey = RecordKey([0; 32]);

/// What the store does at the next call; for ever `Fine` after the last.
#[derive(Debug, Clone, Copy)]
enum Act {
    Fine,
    Unavailable,
    Hangs,
    Full,
}

#[derive(Debug, Default)]
struct Scripted {
    acts: Mutex<VecDeque<Act>>,
    calls: AtomicUsize,
    finds: Mutex<Option<Held>>,
}

impl Scripted {
    fn then(&self, acts: &[Act]) {
        self.acts.lock().unwrap().extend(acts);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    async fn act<T>(&self, fine: T) -> Result<T, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Act::Fine);
        match act {
            Act::Fine => Ok(fine),
            Act::Unavailable => Err(StoreError::maybe_sent(StoreErrorKind::Unavailable, "gone")),
            Act::Full => Err(StoreError::not_sent(StoreErrorKind::Full, "full")),
            Act::Hangs => std::future::pending().await,
        }
    }
}

impl Store for Scripted {
    fn apply(&self, _key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        Box::pin(async move {
            let found = self.finds.lock().unwrap().clone();
            let fine = match (operation, found) {
                (_, Some(held)) => Outcome::Held(held),
                (Operation::Claim(_), None) => Outcome::Acquired { attempt: 1 },
                (_, None) => Outcome::Absent,
            };
            self.act(fine).await
        })
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.act(()))
    }

    fn listen(&self, _key: RecordKey) -> StoreFuture<'_, ()> {
        Box::pin(self.act(()))
    }

    fn unlisten(&self, _key: RecordKey) {}
}

fn guarded() -> (Arc<Scripted>, Arc<Guarded>) {
    let inner = Arc::new(Scripted::default());
    let breaker = Breaker::new(TIMEOUT, Arc::new(Metrics::new()), Loss::new(Duration::ZERO));
    (inner.clone(), Guarded::new(inner, breaker))
}

fn claim() -> Operation {
    let fingerprint = Fingerprint {
        profile: 0,
        digest: [0; 32],
        parts: Vec::new().into(),
    };
    let (lease, retention) = (Duration::from_secs(30), Duration::from_secs(90));
    Operation::Claim(Claim {
        owner: Owner([1; 16]),
        fingerprint,
        lease,
        retention,
        waited: false,
    })
}

async fn claims(store: &Guarded) -> Result<Outcome, StoreErrorKind> {
    store.apply(KEY, claim()).await.map_err(|error| error.kind)
}

async fn reads(store: &Guarded) -> Result<Outcome, StoreErrorKind> {
    store
        .apply(KEY, Operation::Read)
        .await
        .map_err(|error| error.kind)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_the_deadline_and_may_have_been_applied() {
    let (inner, store) = guarded();
    inner.then(&[Act::Hangs]);
    let began = Instant::now();
    let error = store.apply(KEY, claim()).await.unwrap_err();
    assert_eq!(
        (error.kind, error.delivery),
        (StoreErrorKind::Timeout, crate::store::Delivery::MaybeSent)
    );
    assert_eq!(began.elapsed(), TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn while_open_nothing_is_sent_and_the_error_proves_it() {
    let (inner, store) = guarded();
    inner.then(&[Act::Unavailable]);
    assert_eq!(claims(&store).await, Err(StoreErrorKind::Unavailable));
    assert!(store.breaker.is_open());
    let error = store.apply(KEY, claim()).await.unwrap_err();
    let expected = (StoreErrorKind::BreakerOpen, crate::store::Delivery::NotSent);
    assert_eq!((error.kind, error.delivery), expected);
    assert_eq!(inner.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_failure_beside_successes_opens_nothing() {
    let (inner, store) = guarded();
    assert!(reads(&store).await.is_ok());
    inner.then(&[Act::Unavailable]);
    assert!(reads(&store).await.is_err());
    assert!(!store.breaker.is_open());
    tokio::time::advance(TIMEOUT).await;
    inner.then(&[Act::Unavailable]);
    assert!(reads(&store).await.is_err());
    assert!(
        store.breaker.is_open(),
        "none succeeded within the deadline"
    );
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_does_not_come_about_says_nothing_of_the_store() {
    let (inner, store) = guarded();
    assert!(claims(&store).await.is_ok());
    tokio::time::advance(TIMEOUT * 2).await;
    for act in [Act::Hangs, Act::Unavailable] {
        inner.then(&[act]);
        assert!(store.listen(KEY).await.is_err());
        assert!(!store.breaker.is_open(), "{act:?}");
    }
    inner.then(&[Act::Unavailable]);
    assert!(claims(&store).await.is_err());
    assert!(store.breaker.is_open());
    assert!(store.listen(KEY).await.is_err(), "not asked while open");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_sign_of_life() {
    let (inner, store) = guarded();
    inner.then(&[Act::Full, Act::Unavailable]);
    assert_eq!(claims(&store).await, Err(StoreErrorKind::Full));
    assert!(claims(&store).await.is_err());
    assert!(!store.breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn probes_back_off_from_100_ms_to_a_second_and_the_first_success_closes() {
    let (inner, store) = guarded();
    inner.then(&[Act::Unavailable; 7]);
    assert!(claims(&store).await.is_err());
    let prober = tokio::spawn(store.clone().probe());
    let mut at = Vec::new();
    let began = Instant::now();
    let mut seen = inner.calls();
    while store.breaker.is_open() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if inner.calls() > seen {
            seen = inner.calls();
            at.push(began.elapsed().as_millis() / 100);
        }
    }
    // 100, 200, 400, 800, then each second.
    assert_eq!(at, [1, 3, 7, 15, 25, 35, 45]);
    assert!(claims(&store).await.is_ok());
    prober.abort();
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_what_is_pending_goes_before_new_claims() {
    let (inner, store) = guarded();
    inner.then(&[Act::Unavailable]);
    assert!(claims(&store).await.is_err());
    let breaker = store.breaker.clone();
    let waiting = tokio::spawn(async move { breaker.closed(Duration::from_mins(1)).await });
    let prober = tokio::spawn(store.clone().probe());
    let pending = waiting.await.unwrap();
    assert!(!store.breaker.is_open());
    assert_eq!(claims(&store).await, Err(StoreErrorKind::BreakerOpen));
    assert!(
        reads(&store).await.is_ok(),
        "settles, renewals and reads pass"
    );
    drop(pending);
    assert!(claims(&store).await.is_ok());
    prober.abort();
}

#[tokio::test(start_paused = true)]
async fn claims_do_not_wait_longer_for_the_pending_than_one_deadline() {
    let (inner, store) = guarded();
    inner.then(&[Act::Unavailable]);
    assert!(claims(&store).await.is_err());
    let breaker = store.breaker.clone();
    let waiting = tokio::spawn(async move { breaker.closed(Duration::from_mins(1)).await });
    let prober = tokio::spawn(store.clone().probe());
    let _pending = waiting.await.unwrap();
    tokio::time::advance(TIMEOUT).await;
    assert!(claims(&store).await.is_ok());
    prober.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unfit_store_replays_and_claims_nothing() {
    let (inner, store) = guarded();
    store.breaker.set_unfit(true);
    assert_eq!(claims(&store).await, Err(StoreErrorKind::Refused));
    let record = Record {
        owner: Owner([1; 16]),
        attempt: 1,
        retention: Duration::from_secs(9),
        state: RecordState::Failed {
            why: FailedWhy::NotSent,
        },
    };
    *inner.finds.lock().unwrap() = Some(Held {
        record,
        age: Duration::ZERO,
    });
    assert!(matches!(claims(&store).await, Ok(Outcome::Held(_))));
    *inner.finds.lock().unwrap() = None;
    store.breaker.set_unfit(false);
    assert!(claims(&store).await.is_ok());
}
