//! A lease and its record over their life (R20, R22): who is told what when the lease was lost, and
//! how long Redis keeps a record.

use std::thread;
use std::time::Duration;

use crate::support::client::{self, Client, pay, request};
use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::sidecar::{on_redis, retrysafe};
use crate::support::upstream::{Act, Gate, Upstream, reply};

const KEY: (&str, &str) = ("Idempotency-Key", "k");

#[test]
fn an_owner_whose_record_an_operator_decided_tells_the_truth_and_that_it_was_superseded() {
    for action in ["release", "forget"] {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let (gate, upstream) = Upstream::gated();
        let owner = on_redis(upstream.addr, &redis, "[policy]\nlease = \"600ms\"").start();
        let other = on_redis(upstream.addr, &redis, "").start();
        let mut client = Client::connect(owner.addr);
        client.write(&request("POST", "/pay", &[KEY], "x"));
        upstream.wait_calls(1);
        owner.signal("STOP");
        eventually("the lease lapses and the operator decides", || {
            let output = retrysafe(other.folder(), &["key", action, "k"]);
            output.status.success()
        });
        gate.open();
        owner.signal("CONT");
        let answer = client.answer().unwrap();
        assert_eq!(
            (answer.status, answer.text().as_str(), answer.is_replay()),
            (201, "n=1", false)
        );
        assert_eq!(answer.header("idempotency-status"), Some("superseded"));
        assert_eq!(owner.metric("retrysafe_leases_lost_total"), 1);
        // The operator's word stands: the next try executes.
        assert_eq!(pay(other.addr, "k", "x").text(), "n=2", "{action}");
        assert!(pay(owner.addr, "k", "x").is_replay());
        assert_eq!(upstream.calls(), 2);
    }
}

#[test]
fn an_owner_whose_successor_still_runs_has_its_client_wait_for_the_successors_answer() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (late, successor) = (Gate::default(), Gate::default());
    let gates = (late.clone(), successor.clone());
    let upstream = Upstream::start(move |_, n| match n {
        1 => vec![Act::Wait(gates.0.clone()), reply(200, &[], "late")],
        _ => vec![Act::Wait(gates.1.clone()), reply(200, &[], "successor")],
    });
    let owner = on_redis(upstream.addr, &redis, "[policy]\nlease = \"600ms\"").start();
    let other = on_redis(upstream.addr, &redis, "").start();
    let put = || request("PUT", "/pay", &[KEY], "x");
    let mut client = Client::connect(owner.addr);
    client.write(&put());
    upstream.wait_calls(1);
    owner.signal("STOP");
    let second = other.addr;
    let second = thread::spawn(move || client::send(second, &put()));
    upstream.wait_calls(2);
    late.open();
    owner.signal("CONT");
    owner.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    successor.open();
    let told = client.answer().unwrap();
    assert_eq!(
        (told.text().as_str(), told.is_replay()),
        ("successor", true)
    );
    assert_eq!(told.header("idempotency-status"), None);
    let second = second.join().unwrap();
    assert_eq!(
        (second.text().as_str(), second.is_replay()),
        ("successor", false)
    );
    assert_eq!(upstream.calls(), 2);
}

const MINUTE: Duration = Duration::from_mins(1);

/// What is kept for `expected` was written within the last minute.
#[track_caller]
fn assert_kept_for(redis: &Redis, expected: Duration) {
    let left = redis.kept_for();
    assert!(left <= expected && left + MINUTE > expected, "{left:?}");
}

#[test]
fn in_flight_a_record_is_kept_as_long_as_it_may_run_or_stay_unresolved_and_renewed_so() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    // give_up_after is 10 minutes.
    for (unresolved, expected) in [
        ("1h", MINUTE * 60),
        ("5m", MINUTE * 10 + Duration::from_millis(1200)),
    ] {
        redis.cli(&["FLUSHALL"]);
        let (gate, upstream) = Upstream::gated();
        let rest = format!("[policy]\nlease = \"600ms\"\nunresolved_ttl = \"{unresolved}\"");
        let sidecar = on_redis(upstream.addr, &redis, &rest).start();
        let mut client = Client::connect(sidecar.addr);
        client.write(&request("POST", "/pay", &[KEY], "x"));
        upstream.wait_calls(1);
        assert_kept_for(&redis, expected);
        redis.cli(&["PEXPIRE", &redis.records()[0], "60000"]);
        eventually("a renewal sets it anew", || redis.kept_for() > MINUTE);
        assert_kept_for(&redis, expected);
        gate.open();
        assert_eq!(client.answer().unwrap().status, 201);
    }
}

#[test]
fn each_state_is_kept_for_its_own_time() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let whole = reply(201, &[], "ok");
    let large = reply(201, &[], &"x".repeat(2048));
    for (name, act, hours) in [
        ("completed", whole, 2),
        ("not kept", large, 2),
        ("failed", reply(429, &[], "later"), 3),
        ("unresolved", Act::Close, 4),
    ] {
        redis.cli(&["FLUSHALL"]);
        let upstream = Upstream::start(move |_, _| vec![act.clone()]);
        let rest = "[policy]\nttl = \"2h\"\nfailed_ttl = \"3h\"\nunresolved_ttl = \"4h\"\n\
                    max_response = \"1KiB\"";
        let sidecar = on_redis(upstream.addr, &redis, rest).start();
        pay(sidecar.addr, "k", "x");
        eprintln!("{name}");
        assert_kept_for(&redis, MINUTE * 60 * hours);
        // A replay, or whatever a retry gets but a new execution, extends nothing.
        if name != "failed" {
            redis.cli(&["PEXPIRE", &redis.records()[0], "60000"]);
            pay(sidecar.addr, "k", "x");
            assert!(redis.kept_for() <= MINUTE, "{name}");
        }
    }
}
