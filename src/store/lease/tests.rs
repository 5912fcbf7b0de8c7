//! R14, R15, R20, R22 in paused time, on a store that notes what it is asked.

use std::sync::Mutex;

use tokio::time::advance;

use super::*;
use crate::idempotency::Fingerprint;
use crate::idempotency::record::{FailedWhy, Owner};
use crate::store::StoreFuture;

const KEY: RecordKey = RecordKey([7; 32]);
const LENGTH: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(100);
const TTL: Duration = Duration::from_secs(5);

/// Answers every operation alike, and notes it.
#[derive(Debug)]
struct Noting {
    asked: Mutex<Vec<Operation>>,
    answer: Mutex<Result<Outcome, StoreError>>,
}

impl Store for Noting {
    fn apply(&self, key: RecordKey, operation: Operation) -> StoreFuture<'_, Outcome> {
        assert_eq!(key, KEY);
        self.asked.lock().unwrap().push(operation);
        let answer = self.answer.lock().unwrap().clone();
        Box::pin(std::future::ready(answer))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        unreachable!("no lease pings")
    }

    fn listen(&self, _key: RecordKey) -> StoreFuture<'_, ()> {
        unreachable!("no lease listens")
    }

    fn unlisten(&self, _key: RecordKey) {}
}

impl Noting {
    fn answers(&self, answer: Result<Outcome, StoreError>) {
        *self.answer.lock().unwrap() = answer;
    }

    fn last(&self) -> Operation {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

fn wanted() -> Claim {
    let fingerprint = Fingerprint {
        profile: 0,
        digest: [0; 32],
        parts: Vec::new().into(),
    };
    Claim {
        owner: Owner([1; 16]),
        fingerprint,
        lease: LENGTH,
        retention: RETENTION,
        waited: false,
    }
}

const STORED: Outcome = Outcome::Stored { reasserted: false };

fn failed() -> State {
    State::Failed {
        why: FailedWhy::NotSent,
    }
}

fn silent() -> StoreError {
    StoreError::maybe_sent(StoreErrorKind::Timeout, "no answer")
}

/// A lease whose claim was confirmed.
async fn acquired() -> (Arc<Noting>, Lease) {
    let noting = Arc::new(Noting {
        asked: Mutex::default(),
        answer: Mutex::new(Ok(Outcome::Acquired { attempt: 2 })),
    });
    let store: Arc<dyn Store> = noting.clone();
    let Claimed::Acquired(lease) = claim(&store, KEY, wanted(), None).await.unwrap() else {
        panic!("it is free");
    };
    noting.answers(Ok(STORED));
    (noting, lease)
}

/// Renews; what the lease makes of the answer.
async fn renew(lease: &mut Lease) -> Result<Settled, StoreError> {
    let (sent_at, outcome) = lease.renewal().await;
    lease.renewed(sent_at, outcome)
}

#[tokio::test(start_paused = true)]
async fn a_claim_allows_a_dispatch_for_half_a_lease_since_it_was_sent() {
    let (_noting, lease) = acquired().await;
    assert_eq!(lease.attempt(), 2);
    advance((LENGTH / 2).saturating_sub(Duration::from_millis(1))).await;
    assert!(lease.may_dispatch());
    advance(Duration::from_millis(1)).await;
    assert!(!lease.may_dispatch());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_when_it_was_sent_and_not_from_its_answer() {
    let (_noting, mut lease) = acquired().await;
    let claimed_at = Instant::now();
    assert_eq!(lease.renew_at(), claimed_at + LENGTH / 3);
    assert_eq!(lease.third(), LENGTH / 3);
    advance(Duration::from_secs(10)).await;
    let (sent_at, outcome) = lease.renewal().await;
    advance(Duration::from_secs(8)).await;
    assert_eq!(
        lease.renewed(sent_at, outcome),
        Ok(Settled::Stored { reasserted: false })
    );
    assert_eq!(lease.renew_at(), sent_at + LENGTH / 3);
    assert!(lease.may_dispatch());
    advance(Duration::from_secs(7)).await;
    assert!(!lease.may_dispatch(), "15 seconds since it was sent");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_too_old_at_nine_tenths_of_its_retention_and_a_renewal_extends_it() {
    let (noting, mut lease) = acquired().await;
    advance(Duration::from_secs(89)).await;
    assert!(!lease.is_too_old());
    noting.answers(Err(silent()));
    assert_eq!(renew(&mut lease).await, Err(silent()));
    noting.answers(Ok(Outcome::LeaseLost));
    assert_eq!(renew(&mut lease).await, Ok(Settled::LeaseLost));
    advance(Duration::from_secs(2)).await;
    assert!(lease.is_too_old(), "no confirmed renewal");
    noting.answers(Ok(Outcome::Stored { reasserted: true }));
    assert_eq!(
        renew(&mut lease).await,
        Ok(Settled::Stored { reasserted: true })
    );
    assert!(!lease.is_too_old());
    advance(Duration::from_secs(89)).await;
    assert!(!lease.is_too_old());
    advance(Duration::from_secs(2)).await;
    assert!(lease.is_too_old());
}

#[tokio::test(start_paused = true)]
async fn a_settling_is_too_old_at_nine_tenths_of_the_retention_it_had_in_flight() {
    let (noting, lease) = acquired().await;
    advance(Duration::from_secs(50)).await;
    let mut settling = lease.settle(failed(), TTL);
    advance(Duration::from_secs(39)).await;
    assert!(!settling.is_too_old(), "the last confirmation is the claim");
    advance(Duration::from_secs(2)).await;
    assert!(settling.is_too_old());
    noting.answers(Err(silent()));
    settling.renew().await;
    assert!(settling.is_too_old(), "not confirmed");
    noting.answers(Ok(STORED));
    settling.renew().await;
    assert!(!settling.is_too_old());
    let Operation::Renew { record, dispatched } = noting.last() else {
        panic!("a renewal");
    };
    assert!(dispatched && record == wanted().record(2));
}

#[tokio::test(start_paused = true)]
async fn every_try_of_a_settle_sends_the_same_record() {
    let (noting, lease) = acquired().await;
    let settling = lease.settle(failed(), TTL);
    noting.answers(Err(silent()));
    for _ in 0..3 {
        assert_eq!(settling.attempt().await, Err(silent()));
        advance(Duration::from_secs(5)).await;
    }
    noting.answers(Ok(STORED));
    assert_eq!(
        settling.attempt().await,
        Ok(Settled::Stored { reasserted: false })
    );
    let record = Record {
        owner: wanted().owner,
        attempt: 2,
        retention: TTL,
        state: failed(),
    };
    let asked = noting.asked.lock().unwrap();
    assert_eq!(asked.len(), 5);
    for operation in asked.iter().skip(1) {
        let record = record.clone();
        assert_eq!(operation, &Operation::Settle { record });
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_says_whether_the_request_may_have_gone_out() {
    let (noting, mut lease) = acquired().await;
    let mut said = Vec::new();
    for step in 0..3 {
        match step {
            0 => {}
            1 => lease.dispatched(),
            _ => lease.undispatched(),
        }
        let _renewed = renew(&mut lease).await.unwrap();
        let Operation::Renew { dispatched, .. } = noting.last() else {
            panic!("a renewal");
        };
        said.push(dispatched);
    }
    assert_eq!(said, [false, true, false]);
}
