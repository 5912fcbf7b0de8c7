//! PostgreSQL with a cache: what the cache may say, and what it may not.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use retrysafe::idempotency::record::FailedWhy;
use retrysafe::idempotency::transition::OperateOn;
use retrysafe::idempotency::{Operation, codec};
use retrysafe::store::{Delivery, Store, StoreErrorKind};

use super::{SESSIONS, apply, key};
use crate::commands::{code, said};
use crate::store_contract::operations::*;
use crate::support::client::pay;
use crate::support::in_time;
use crate::support::postgres::{Postgres, stores, tiered};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Tables, retrysafe};
use crate::support::upstream::Upstream;

struct Bench {
    server: Postgres,
    cache: Redis,
    store: Arc<dyn Store>,
    /// The deciding store alone.
    plain: Arc<dyn Store>,
}

const TTL: Duration = Duration::from_mins(1);

impl Bench {
    async fn start() -> Option<Self> {
        let server = Postgres::start(&["log_statement=all"])?;
        let cache = Redis::start(&[])?;
        let stores = tiered(&server, &cache, TTL);
        assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
        Some(Self {
            store: stores.handle(),
            plain: self::stores(&server.url()).handle(),
            server,
            cache,
        })
    }

    async fn says(&self, number: u8, operation: Operation) -> String {
        apply(&self.store, number, operation).await.unwrap()
    }

    /// A completed record of owner `a`, and a copy of it.
    async fn cached(&self, number: u8) {
        self.says(number, claim('a')).await;
        self.says(number, settle('a', 1, completed())).await;
        assert!(!self.has_copy(number), "nothing is copied from a settle");
        assert_eq!(self.says(number, claim('b')).await, "held completed a1");
        assert!(self.has_copy(number));
    }

    fn has_copy(&self, number: u8) -> bool {
        matches!(self.get(number), Value::BulkString(copy) if copy.len() > 54)
    }

    fn get(&self, number: u8) -> Value {
        self.cache.cli(&["GET", &name(number)])
    }

    fn put(&self, number: u8, octets: &[u8]) {
        let mut set = redis::cmd("SET");
        set.arg(name(number)).arg(octets);
        let client = redis::Client::open(self.cache.url()).unwrap();
        set.exec(&mut client.get_connection().unwrap()).unwrap();
    }

    /// Statements that the server was asked so far.
    fn statements(&self) -> usize {
        let log = self.server.log();
        log.lines()
            .filter(|line| line.contains("execute <unnamed>"))
            .count()
    }
}

fn name(number: u8) -> String {
    format!("test:cache:{}", key(number))
}

fn forget(letter: char) -> Operation {
    release(letter, seen('a', 1), OperateOn::Any)
}

#[tokio::test]
async fn a_replay_from_the_cache_asks_the_server_nothing() {
    let Some(bench) = Bench::start().await else {
        return;
    };
    bench.cached(1).await;
    let before = bench.statements();
    for letter in 'c'..'m' {
        assert_eq!(bench.says(1, claim(letter)).await, "held completed a1");
    }
    assert_eq!(bench.statements(), before);
    // Whoever asks what is, and not for a replay, gets it from where it is decided.
    assert_eq!(bench.says(1, read()).await, "held completed a1");
    assert_eq!(bench.statements(), before + 1);
}

#[tokio::test]
async fn what_is_not_final_is_never_copied_and_never_believed() {
    let Some(bench) = Bench::start().await else {
        return;
    };
    for (number, state) in [
        (2, unresolved()),
        (3, failed(FailedWhy::NotSent)),
        (4, failed_by_status()),
    ] {
        bench.says(number, claim('a')).await;
        assert_eq!(bench.says(number, claim('b')).await, "held in_flight a1");
        bench.says(number, settle('a', 1, state.clone())).await;
        drop(apply(&bench.store, number, claim_waited('b')).await);
        assert_eq!(bench.get(number), Value::Nil, "{number}");
        // Nor is it believed where somebody else left it: the server decides.
        bench.put(number, &codec::encode(&record('x', 9, state)));
        let here = bench.says(number, claim_waited('c')).await;
        assert_eq!(
            here,
            apply(&bench.plain, number, claim_waited('c'))
                .await
                .unwrap()
        );
        assert!(!here.contains("x9"), "{here}");
    }
    // What cannot be read at all, likewise.
    bench.says(5, claim('a')).await;
    for spoilt in [
        b"garbage".as_slice(),
        b"",
        &codec::encode(&record('x', 9, completed()))[..80],
    ] {
        bench.put(5, spoilt);
        assert_eq!(bench.says(5, claim('b')).await, "held in_flight a1");
    }
}

#[tokio::test]
async fn a_copy_ends_with_its_record_and_with_its_time() {
    let Some(bench) = Bench::start().await else {
        return;
    };
    bench.cached(1).await;
    let left = |number| match bench.cache.cli(&["PTTL", &name(number)]) {
        Value::Int(left) => left,
        other => panic!("{other:?}"),
    };
    assert!((1..=60_000).contains(&left(1)), "{}", left(1));
    // A record that ends before.
    bench.says(2, claim('a')).await;
    let short = retrysafe::idempotency::Record {
        retention: Duration::from_secs(20),
        ..record('a', 1, completed())
    };
    let settled = Operation::Settle { record: short };
    bench.says(2, settled).await;
    assert_eq!(bench.says(2, claim('b')).await, "held completed a1");
    assert!((1..=20_000).contains(&left(2)), "{}", left(2));
}

#[tokio::test]
async fn a_copy_that_comes_late_is_no_younger_than_the_look_that_missed_it() {
    let Some(bench) = Bench::start().await else {
        return;
    };
    bench.says(1, claim('a')).await;
    bench.says(1, settle('a', 1, completed())).await;
    let short = tiered(&bench.server, &bench.cache, Duration::from_millis(500)).handle();
    assert_eq!(apply(&short, 2, claim('a')).await.unwrap(), "acquired 1");
    let locked = bench.server.client().await;
    let lock = "BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE";
    locked.batch_execute(lock).await.unwrap();
    let claimed = {
        let store = Arc::clone(&short);
        tokio::spawn(async move { apply(&store, 1, claim('b')).await })
    };
    let waiting = format!("{SESSIONS} AND wait_event_type = 'Lock'");
    in_time("the claim has looked and waits", async || {
        bench.server.sql(&waiting).await == ["1"]
    })
    .await;
    // By then nobody may use a copy any more.
    bench.cache.cli(&["SET", "clock", "x", "PX", "600"]);
    in_time("its time is over", async || {
        bench.cache.cli(&["GET", "clock"]) == Value::Nil
    })
    .await;
    locked.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claimed.await.unwrap().unwrap(), "held completed a1");
    assert_eq!(bench.get(1), Value::Nil);
    // In time, it is left.
    assert_eq!(
        apply(&bench.store, 1, claim('c')).await.unwrap(),
        "held completed a1"
    );
    assert!(bench.has_copy(1));
}

#[tokio::test]
async fn an_empty_a_lost_and_a_silent_cache_let_nothing_run_twice() {
    let Some(mut bench) = Bench::start().await else {
        return;
    };
    bench.cached(1).await;
    bench.cache.cli(&["FLUSHALL"]);
    assert_eq!(bench.says(1, claim('c')).await, "held completed a1");
    assert!(bench.has_copy(1), "copied anew");
    bench.cache.pause();
    for number in 1..=3 {
        let expected = if number == 1 {
            "held completed a1"
        } else {
            "acquired 1"
        };
        assert_eq!(bench.says(number, claim('d')).await, expected);
    }
    bench.cache.resume();
    bench.cache.kill();
    for number in 1..=3 {
        let expected = if number == 1 {
            "held completed a1"
        } else {
            "held in_flight d1"
        };
        assert_eq!(bench.says(number, claim('e')).await, expected);
    }
    bench.cache.restart(&[]);
    in_time("it is used again", async || {
        bench.says(1, claim('f')).await;
        bench.has_copy(1)
    })
    .await;
}

#[tokio::test]
async fn what_an_operator_took_back_is_not_repeated() {
    let Some(bench) = Bench::start().await else {
        return;
    };
    bench.cached(1).await;
    assert_eq!(bench.says(1, forget('o')).await, "stored");
    assert!(!bench.has_copy(1));
    assert_eq!(bench.says(1, claim('c')).await, "acquired 2");
    bench.says(1, settle('c', 2, not_kept())).await;
    // No copy is left there while one of before may still be on its way.
    assert_eq!(
        bench.says(1, claim('d')).await,
        "held completed_not_kept c2"
    );
    assert!(!bench.has_copy(1));
    let Value::Int(left) = bench.cache.cli(&["PTTL", &name(1)]) else {
        panic!("a number");
    };
    assert!(
        (60_001..=120_000).contains(&left),
        "twice the time of a copy: {left}"
    );
}

#[tokio::test]
async fn an_operator_is_refused_where_the_cache_cannot_be_told() {
    let Some(mut bench) = Bench::start().await else {
        return;
    };
    bench.cached(1).await;
    bench.cache.kill();
    let error = bench.store.apply(key(1), forget('o')).await.unwrap_err();
    assert_eq!(error.delivery, Delivery::NotSent, "{error}");
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    assert!(error.message.contains("nothing was changed"), "{error}");
    assert_eq!(
        apply(&bench.plain, 1, read()).await.unwrap(),
        "held completed a1"
    );
    bench.cache.restart(&[]);
    in_time("it can be told", async || {
        bench.store.apply(key(1), forget('o')).await.is_ok()
    })
    .await;
    assert_eq!(bench.says(1, claim('c')).await, "acquired 2");
}

#[test]
fn through_the_proxy_another_body_is_refused_from_the_cache_too() {
    let (Some(server), Some(mut cache)) = (Postgres::start(&[]), Redis::start(&[])) else {
        return;
    };
    let upstream = Upstream::counting();
    let lines = format!(
        "cache = \"{}\"\ncache_ttl = \"5m\"\ntimeout = \"2s\"\n",
        cache.url()
    );
    let url = server.url();
    let tables = Tables {
        store_url: Some(&url),
        store: &lines,
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    for _ in 0..3 {
        let again = pay(sidecar.addr, "k", "x");
        assert_eq!(
            (again.text().as_str(), again.is_replay()),
            ("{\"n\":1}", true)
        );
        assert_eq!(pay(sidecar.addr, "k", "y").code(), "idempotency_key_reused");
    }
    assert_eq!(cache.cli(&["DBSIZE"]), Value::Int(1));

    // An operator's word reaches the cache, and stays for twice the time of a copy.
    let folder = tempfile::tempdir().unwrap();
    let config =
        format!("[upstream]\nurl = \"http://127.0.0.1:1\"\n[store]\nurl = \"{url}\"\n{lines}");
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let gone = retrysafe(folder.path(), &["key", "forget", "k"]);
    assert_eq!(code(&gone), 0, "{}", said(&gone));
    let kept = "SELECT retention FROM retrysafe_records WHERE state = 4";
    assert_eq!(server.sql_now(kept), ["600000"]);
    assert_eq!(pay(sidecar.addr, "k", "y").text(), "{\"n\":2}");
    cache.kill();
    let again = pay(sidecar.addr, "k", "y");
    assert_eq!(
        (again.text().as_str(), again.is_replay()),
        ("{\"n\":2}", true)
    );
    assert_eq!(upstream.calls(), 2);
}
