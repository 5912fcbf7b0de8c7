//! What servers of different ages speak.
//!
//! Redis 6.2 knows neither `SET NX GET` nor flags of scripts, and hides an error inside a script
//! behind its own. Everything but finished work in full memory is as with later servers.

use redis::Value;
use retrysafe::store::{Delivery, StoreErrorKind};

use super::{Bench, key, name};
use crate::store_contract::operations::*;
use crate::support::redis::Flavour;

#[tokio::test]
async fn records_and_wake_ups_travel_in_the_newer_protocol() {
    for flavour in [Flavour::Installed, Flavour::Valkey] {
        let Some(bench) = Bench::start_flavour(flavour, &[]).await else {
            return;
        };
        bench.store.listen(key(1)).await.unwrap();
        assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
        let said = bench.server.cli(&["CLIENT", "LIST"]);
        let list = match said {
            Value::BulkString(octets) => String::from_utf8(octets).unwrap(),
            other => panic!("{other:?}"),
        };
        // The one that asks is the tests' own.
        let ours = list.lines().filter(|line| !line.contains("cmd=client"));
        let ours: Vec<_> = ours.collect();
        assert_eq!(ours.len(), 2, "{list}");
        for line in ours {
            assert!(line.contains(" resp=3"), "{line}");
        }
    }
}

#[tokio::test]
async fn an_old_server_says_full_for_settles_too() {
    let Some(bench) = Bench::start_flavour(Flavour::Redis62, &[]).await else {
        return;
    };
    assert_eq!(bench.says(1, claim('a')).await, "acquired 1");
    assert_eq!(bench.says(1, settle('a', 1, completed())).await, "stored");
    assert_eq!(bench.says(2, claim('a')).await, "acquired 1");
    bench.config("maxmemory", "1");
    let error = bench.error(9, claim('b')).await;
    assert_eq!(error.kind, StoreErrorKind::Full, "{error}");
    assert_eq!(error.delivery, Delivery::NotSent);
    assert_eq!(bench.says(1, claim('b')).await, "held completed a1");
    assert_eq!(bench.says(2, renew('a', 1, true)).await, "stored");
    // Nothing is lost: it is sent again until there is room.
    let error = bench.error(2, settle('a', 1, completed())).await;
    assert_eq!(error.kind, StoreErrorKind::Full, "{error}");
    bench.config("maxmemory", "0");
    assert_eq!(bench.says(2, settle('a', 1, completed())).await, "stored");
}

#[tokio::test]
async fn an_old_server_hides_what_is_unreadable_and_read_only() {
    let Some(bench) = Bench::start_flavour(Flavour::Redis62, &[]).await else {
        return;
    };
    bench.server.cli(&["LPUSH", &name(1), "not a record"]);
    for operation in [read(), claim('a'), renew('a', 1, true), abandon('a')] {
        let error = bench.error(1, operation.clone()).await;
        let kind = StoreErrorKind::Unreadable;
        assert_eq!(error.kind, kind, "{operation:?}: {error}");
    }
    assert_eq!(
        bench.says(2, settle('a', 1, completed())).await,
        "stored again"
    );
    bench.server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = bench.error(9, claim('b')).await;
    assert_eq!(error.kind, StoreErrorKind::Refused, "{error}");
    assert_eq!(bench.says(2, claim('b')).await, "held completed a1");
}
