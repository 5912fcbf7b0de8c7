//! Redis in trouble, seen through the proxy (R20, R24): nothing is executed without a claim, and
//! what was executed is recorded as soon as the store is back.

use std::thread;

use crate::support::client::{Client, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Sidecar, Tables, on_redis};
use crate::support::upstream::{Reserved, Upstream, reply};

fn before(upstream: &Upstream, redis: &Redis, rest: &str) -> Sidecar {
    on_redis(upstream.addr, redis, rest).start()
}

/// Pays until the store answers again.
fn pay_when_back(sidecar: &Sidecar, key: &str) -> crate::support::client::Answer {
    sidecar.wait_metric("retrysafe_store_up", |up| up == 1);
    pay(sidecar.addr, key, "x")
}

#[test]
fn stopped_before_the_claim_nothing_is_executed() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    redis.kill();
    for n in 0..5 {
        let answer = pay(sidecar.addr, &format!("k-{n}"), "x");
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (503, "idempotency_store_unavailable")
        );
        // Not this request; but whether an earlier one was is what the record would say.
        assert_eq!(answer.json()["outcome"], "unknown");
        assert!(
            answer.json()["detail"]
                .as_str()
                .unwrap()
                .contains("new key")
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(upstream.calls(), 1);
    redis.restart(&[]);
    assert_eq!(pay_when_back(&sidecar, "k-0").status, 201);
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn stopped_between_execution_and_record_the_client_gets_the_truth_and_the_record_arrives() {
    for freezes in [true, false] {
        let Some(mut redis) = Redis::start(&[]) else {
            return;
        };
        let (gate, upstream) = Upstream::gated();
        let sidecar = before(&upstream, &redis, "");
        let mut client = Client::connect(sidecar.addr);
        client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
        upstream.wait_calls(1);
        if freezes {
            redis.pause();
        } else {
            // Its memory goes with it: the owner writes the record again (law 3).
            redis.kill();
        }
        gate.open();
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (201, "n=1"));
        assert_eq!(answer.header("idempotency-status"), Some("unrecorded"));
        if freezes {
            redis.resume();
        } else {
            redis.restart(&[]);
        }
        sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
        let again = pay_when_back(&sidecar, "k");
        assert_eq!((again.text().as_str(), again.is_replay()), ("n=1", true));
        assert_eq!(upstream.calls(), 1);
        let reasserted = sidecar.metric("retrysafe_reasserted_total");
        assert_eq!(reasserted, u64::from(!freezes));
    }
}

#[test]
fn a_claim_whose_reply_was_lost_is_taken_back_and_the_key_runs_later() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    redis.pause();
    assert_eq!(
        pay(sidecar.addr, "k", "x").code(),
        "idempotency_store_unavailable"
    );
    redis.resume();
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    let answer = pay_when_back(&sidecar, "k");
    assert_eq!((answer.status, answer.is_replay()), (201, false));
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn a_store_that_forgets_its_scripts_is_not_noticed() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    for n in 1..=5 {
        redis.cli(&["SCRIPT", "FLUSH"]);
        let answer = pay(sidecar.addr, &format!("k-{n}"), "x");
        assert_eq!(
            (answer.status, answer.header("idempotency-status")),
            (201, None)
        );
        redis.cli(&["SCRIPT", "FLUSH"]);
        assert!(pay(sidecar.addr, &format!("k-{n}"), "x").is_replay());
    }
    assert_eq!(upstream.calls(), 5);
}

#[test]
fn a_store_that_drops_its_clients_costs_one_refusal_at_most() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    for n in 1..=5 {
        let key = format!("k-{n}");
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let answer = pay(sidecar.addr, &key, "x");
        if answer.status == 503 {
            sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
            assert_eq!(pay_when_back(&sidecar, &key).status, 201);
        } else {
            assert_eq!(
                (answer.status, answer.header("idempotency-status")),
                (201, None)
            );
        }
        assert!(pay(sidecar.addr, &key, "x").is_replay());
    }
    assert_eq!(upstream.calls(), 5);
}

#[test]
fn a_store_that_sleeps_costs_a_deadline_and_no_double_execution() {
    let Some(redis) = Redis::start(&["--enable-debug-command", "local"]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    gate.open();
    let sidecar = before(&upstream, &redis, "");
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    let sleeping = redis.send(&["DEBUG", "SLEEP", "1"]);
    let addr = sidecar.addr;
    let tries: Vec<_> = (0..4)
        .map(|_| thread::spawn(move || pay(addr, "k", "x")))
        .collect();
    for handle in tries {
        let answer = handle.join().unwrap();
        assert!([201, 503].contains(&answer.status), "{answer:?}");
    }
    drop(sleeping);
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    let answer = pay_when_back(&sidecar, "k");
    assert_eq!(answer.status, 201);
    assert!(pay(sidecar.addr, "k", "x").is_replay());
    let seen = upstream.seen();
    let runs = seen
        .iter()
        .filter(|seen| seen.header("idempotency-key") == Some("k"));
    assert_eq!(runs.count(), 1);
}

#[test]
fn full_memory_refuses_claims_replays_what_is_there_and_records_what_runs() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    assert_eq!(pay(sidecar.addr, "old", "x").status, 201);
    let (gate, slow) = Upstream::gated_with("slow");
    let running = before(&slow, &redis, "");
    let addr = running.addr;
    let client = thread::spawn(move || pay(addr, "runs", "x"));
    slow.wait_calls(1);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = pay(sidecar.addr, "new", "x");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "idempotency_store_unavailable")
    );
    assert!(pay(sidecar.addr, "old", "x").is_replay());
    gate.open();
    let answer = client.join().unwrap();
    assert_eq!(
        (answer.text().as_str(), answer.header("idempotency-status")),
        ("slow", None)
    );
    assert!(pay(running.addr, "runs", "x").is_replay());
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(pay(sidecar.addr, "new", "x").status, 201);
    assert_eq!(slow.calls(), 1);
}

#[test]
fn a_read_only_replica_refuses_claims_and_replays_what_is_there() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let Some(primary) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "");
    assert_eq!(pay(sidecar.addr, "old", "x").status, 201);
    // A replica of nobody reachable keeps its data and takes no writes.
    let gone = primary.addr();
    drop(primary);
    let (ip, port) = (gone.ip().to_string(), gone.port().to_string());
    redis.cli(&["REPLICAOF", &ip, &port]);
    assert_eq!(
        pay(sidecar.addr, "new", "x").code(),
        "idempotency_store_unavailable"
    );
    assert!(pay(sidecar.addr, "old", "x").is_replay());
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(pay(sidecar.addr, "new", "x").status, 201);
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn pass_executes_unprotected_and_says_so() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = before(&upstream, &redis, "[policy]\non_store_error = \"pass\"");
    assert!(
        pay(sidecar.addr, "k", "x")
            .header("idempotency-status")
            .is_none()
    );
    redis.kill();
    for _ in 0..2 {
        let answer = pay(sidecar.addr, "other", "x");
        assert_eq!(
            (answer.status, answer.header("idempotency-status")),
            (201, Some("unprotected"))
        );
    }
    assert_eq!(upstream.calls(), 3);
    assert_eq!(sidecar.metric("retrysafe_unprotected_requests_total"), 2);
    redis.restart(&[]);
    sidecar.wait_metric("retrysafe_store_up", |up| up == 1);
}

#[test]
fn a_record_that_cannot_be_read_is_an_error_and_never_absent() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    for rest in ["", "[policy]\non_store_error = \"pass\""] {
        let sidecar = before(&upstream, &redis, rest);
        redis.cli(&["FLUSHALL"]);
        pay(sidecar.addr, "k", "x");
        let calls = upstream.calls();
        redis.cli(&["SETRANGE", &redis.records()[0], "60", "broken"]);
        assert_eq!(
            pay(sidecar.addr, "k", "x").code(),
            "idempotency_store_unavailable"
        );
        assert_eq!(upstream.calls(), calls);
        sidecar.wait_log("unreadable_record");
    }
}

#[test]
fn an_evicting_redis_is_refused_at_the_start_unless_that_is_allowed() {
    let Some(redis) = Redis::start(&["--maxmemory-policy", "allkeys-lru"]) else {
        return;
    };
    let upstream = Upstream::counting();
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        ..Tables::default()
    };
    let (code, said) = Plan::new(upstream.addr, &tables).fails();
    assert_eq!(code, 78, "{said}");
    assert!(
        said.contains("CONFIG SET maxmemory-policy noeviction"),
        "{said}"
    );
    let tables = Tables {
        store: "allow_eviction = true",
        ..tables
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    assert!(sidecar.log().iter().any(|line| line.contains("evict")));
}

#[test]
fn without_a_store_it_starts_unless_it_must_be_ready() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    redis.kill();
    let upstream = Upstream::counting();
    let plan = on_redis(upstream.addr, &redis, "");
    let (code, _said) = plan.clone().arg("--require-ready").fails();
    assert_eq!(code, 69);
    let sidecar = plan.start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 503);
    redis.restart(&[]);
    assert_eq!(pay_when_back(&sidecar, "k").status, 201);
}

#[test]
fn a_record_lost_before_anything_was_sent_is_claimed_again() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let slow = Reserved::new(std::net::Ipv4Addr::LOCALHOST.into());
    let _first = slow.hold_up();
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        rest: "[policy]\nlease = \"600ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(slow.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    let claimed = || redis.cli(&["DBSIZE"]) == redis::Value::Int(1);
    crate::support::eventually("claimed", claimed);
    redis.cli(&["FLUSHALL"]);
    sidecar.wait_metric("retrysafe_leases_lost_total", |lost| lost >= 1);
    let upstream = slow.start(None, |_, _| vec![reply(201, &[], "once")]);
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "once"));
    assert!(pay(sidecar.addr, "k", "x").is_replay());
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_duplicate_of_a_running_request_is_never_told_that_nothing_was_executed() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let sidecar = before(&upstream, &redis, "[policy]\nin_flight_wait = \"2s\"");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let waiter = thread::spawn(move || pay(addr, "k", "x"));
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    redis.kill();
    let before_409 = waiter.join().unwrap();
    let late = pay(addr, "k", "x");
    for answer in [before_409, late] {
        assert_eq!(answer.code(), "idempotency_store_unavailable");
        assert_eq!(answer.json()["outcome"], "unknown");
        assert_eq!(answer.json()["retryable"], true);
    }
    gate.open();
    assert_eq!(first.join().unwrap().text(), "n=1");
}
