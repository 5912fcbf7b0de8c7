//! What lies at a record's place and is none, scripts that vanished, a memory that was lost, and
//! operations that overtake each other.

use retrysafe::store::StoreErrorKind;

use super::{Bench, apply, in_time, key, name};
use crate::store_contract::operations::*;

#[tokio::test]
async fn forgotten_scripts_are_taught_again() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=3 {
        bench.server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(bench.says(number, claim('a')).await, "acquired 1");
        assert_eq!(bench.says(number, renew('a', 1, true)).await, "stored");
        bench.server.cli(&["SCRIPT", "FLUSH"]);
        let settled = settle('a', 1, completed());
        assert_eq!(bench.says(number, settled).await, "stored");
        bench.server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(bench.says(number, read()).await, "held completed a1");
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_unreadable_and_never_absent() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    bench.server.cli(&["LPUSH", &name(1), "not a record"]);
    for operation in [
        read(),
        claim('a'),
        renew('a', 1, true),
        settle('a', 1, completed()),
        abandon('a'),
        take_over('b', seen('a', 1)),
    ] {
        let error = bench.error(1, operation.clone()).await;
        assert_eq!(
            error.kind,
            StoreErrorKind::Unreadable,
            "{operation:?}: {error}"
        );
    }
    // Nobody overwrote it.
    let kind = bench.server.cli(&["TYPE", &name(1)]);
    assert_eq!(kind, redis::Value::SimpleString("list".to_owned()));
}

#[tokio::test]
async fn a_spoilt_value_is_unreadable_and_never_absent() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    let spoil = |offset: &str, octet: &str| {
        bench.server.cli(&["SETRANGE", &name(1), offset, octet]);
    };
    // One octet of the fingerprint, which only the checksum protects.
    spoil("70", "\x7f");
    for operation in [
        read(),
        claim('b'),
        abandon('a'),
        take_over('b', seen('a', 1)),
    ] {
        let error = bench.error(1, operation.clone()).await;
        assert_eq!(
            error.kind,
            StoreErrorKind::Unreadable,
            "{operation:?}: {error}"
        );
    }
    // A version that no build knows: the scripts do not touch it either.
    spoil("0", "\x7f");
    for operation in [claim('b'), renew('a', 1, true), settle('a', 1, completed())] {
        let error = bench.error(1, operation.clone()).await;
        assert_eq!(
            error.kind,
            StoreErrorKind::Unreadable,
            "{operation:?}: {error}"
        );
    }
    for value in ["", "short"] {
        bench.server.cli(&["SET", &name(1), value]);
        for operation in [claim('b'), renew('a', 1, true), settle('a', 1, completed())] {
            let error = bench.error(1, operation).await;
            assert_eq!(error.kind, StoreErrorKind::Unreadable, "{value}: {error}");
        }
    }
}

#[tokio::test]
async fn a_record_without_an_end_is_as_good_as_new() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    // Only somebody else can have done this. It must not look lapsed.
    bench.server.cli(&["PERSIST", &name(1)]);
    assert_eq!(bench.says(1, claim('b')).await, "held in_flight a1");
    let taken = bench.says(1, take_over('b', seen('a', 1))).await;
    assert_eq!(taken, "held in_flight a1");
    assert_eq!(bench.says(1, renew('a', 1, true)).await, "stored");
    let ttl = bench.server.cli(&["TTL", &name(1)]);
    assert!(matches!(ttl, redis::Value::Int(1..)), "{ttl:?}");
}

#[tokio::test]
async fn a_store_that_lost_its_memory_is_told_again() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=3 {
        assert_eq!(bench.says(number, claim('a')).await, "acquired 1");
    }
    bench.server.cli(&["FLUSHALL"]);
    assert_eq!(bench.says(1, renew('a', 1, true)).await, "stored again");
    assert_eq!(bench.says(2, renew('a', 1, false)).await, "lease lost");
    let settled = settle('a', 1, completed());
    assert_eq!(bench.says(3, settled).await, "stored again");
    assert_eq!(bench.says(1, claim('b')).await, "held in_flight a1");
    assert_eq!(bench.says(3, claim('b')).await, "held completed a1");
}

#[tokio::test]
async fn a_claim_and_its_abandon_may_overtake_each_other() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    // Two connections, so nothing but the server orders the two.
    let other = bench.stores.handle();
    other.ping().await.unwrap();
    for number in 1..=200 {
        let (claimed, abandoned) = tokio::join!(
            bench.apply(number, claim('a')),
            apply(&other, number, abandon('a')),
        );
        let (claimed, abandoned) = (claimed.unwrap(), abandoned.unwrap());
        match claimed.as_str() {
            "acquired 1" => assert_eq!(abandoned, "stored"),
            other => assert_eq!(
                (other, abandoned.as_str()),
                ("held failed a0", "stored again")
            ),
        }
        // Whoever was first: the claim is dead, its owner cannot revive it, and the key is free.
        let again = bench.says(number, claim('a')).await;
        assert!(again.starts_with("held failed a"), "{again}");
        let next = bench.says(number, claim('b')).await;
        assert!(next.starts_with("acquired "), "{next}");
    }
}

/// Waits until the paused server has got that many commands it may not carry out yet. It will do
/// so in the order in which they came.
async fn held_back(bench: &Bench, commands: usize) {
    in_time("the server holds the commands", async || {
        let clients = bench.server.clients();
        clients.matches("flags=b").count() == commands
    })
    .await;
}

#[tokio::test]
async fn a_claim_between_look_and_abandon_is_abandoned_too() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(9, abandon('a')).await, "stored again");
    bench.server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let spawn = |operation| {
        let store = bench.stores.handle();
        tokio::spawn(async move { apply(&store, 1, operation).await })
    };
    let claiming = spawn(claim('a'));
    held_back(&bench, 1).await;
    let abandoning = spawn(abandon('a'));
    held_back(&bench, 2).await;
    bench.server.cli(&["CLIENT", "UNPAUSE"]);
    assert_eq!(claiming.await.unwrap().unwrap(), "acquired 1");
    assert_eq!(abandoning.await.unwrap().unwrap(), "stored");
    assert_eq!(bench.says(1, read()).await, "held failed a1");
}

#[tokio::test]
async fn a_renewal_between_look_and_takeover_keeps_the_lease() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    assert_eq!(bench.says(9, take_over('b', seen('a', 1))).await, "absent");
    assert_eq!(bench.says(9, renew('b', 1, false)).await, "lease lost");
    // Two leases and more have passed.
    let left = (IN_FLIGHT - 2 * LEASE - 100) * 1_000;
    bench.server.cli(&["PEXPIRE", &name(1), &left.to_string()]);
    // Reading goes on, writing waits: first the renewal, then the takeover that saw it lapsed.
    bench.server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let renewing = {
        let store = bench.stores.handle();
        tokio::spawn(async move { apply(&store, 1, renew('a', 1, true)).await })
    };
    held_back(&bench, 1).await;
    let taking = {
        let store = bench.stores.handle();
        tokio::spawn(async move { apply(&store, 1, take_over('b', seen('a', 1))).await })
    };
    held_back(&bench, 2).await;
    bench.server.cli(&["CLIENT", "UNPAUSE"]);
    assert_eq!(renewing.await.unwrap().unwrap(), "stored");
    assert_eq!(taking.await.unwrap().unwrap(), "held in_flight a1");
}

#[tokio::test]
async fn one_of_many_takes_over() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=20 {
        let lost = settle('a', 1, unresolved());
        assert_eq!(bench.says(number, lost).await, "stored again");
        let mut contenders = tokio::task::JoinSet::new();
        for letter in 'b'..='k' {
            let store = bench.stores.handle();
            contenders.spawn(async move {
                let operation = take_over(letter, seen('a', 1));
                words(&store.apply(key(number), operation).await.unwrap())
            });
        }
        let outcomes = contenders.join_all().await;
        let winners = outcomes.iter().filter(|said| *said == "acquired 2").count();
        assert_eq!(winners, 1, "{outcomes:?}");
    }
}

#[tokio::test]
async fn a_failed_record_is_claimed_by_one_of_many() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    for number in 1..=20 {
        assert_eq!(bench.says(number, abandon('a')).await, "stored again");
        let mut contenders = tokio::task::JoinSet::new();
        for letter in 'b'..='k' {
            let store = bench.stores.handle();
            contenders.spawn(async move {
                let outcome = store.apply(key(number), claim(letter)).await;
                words(&outcome.unwrap())
            });
        }
        let outcomes = contenders.join_all().await;
        let winners = outcomes.iter().filter(|said| *said == "acquired 1").count();
        assert_eq!(winners, 1, "{outcomes:?}");
    }
}
