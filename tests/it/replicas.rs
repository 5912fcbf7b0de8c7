//! Several proxies over one Redis (R13, R14, R18): duplicates across replicas, owners that die or
//! freeze.

use std::collections::HashSet;
use std::thread;

use crate::crashes::{assert_held_and_run_again, begin_one_of_each, killed_owner_upstream};
use crate::support::client::{self, Client, pay, request};
use crate::support::eventually;
use crate::support::redis::Redis;
use crate::support::sidecar::{Sidecar, on_redis};
use crate::support::upstream::{Act, Gate, Upstream, reply};

/// Two replicas in front of `upstream`.
fn two(redis: &Redis, upstream: &Upstream, rest: &str) -> [Sidecar; 2] {
    let plan = on_redis(upstream.addr, redis, rest);
    [plan.start(), plan.start()]
}

fn waiting(pair: &[Sidecar; 2]) -> u64 {
    pair.iter()
        .map(|sidecar| sidecar.metric("retrysafe_waiting"))
        .sum()
}

#[test]
fn two_hundred_over_two_replicas_are_one_execution_and_equal_answers() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let pair = two(&redis, &upstream, "");
    let addrs = [pair[0].addr, pair[1].addr];
    let tries: Vec<_> = (0..200)
        .map(|n| thread::spawn(move || pay(addrs[n % 2], "k", "x")))
        .collect();
    eventually("all wait", || waiting(&pair) == 199);
    gate.open();
    let answers: Vec<_> = tries
        .into_iter()
        .map(|handle| handle.join().unwrap())
        .collect();
    let bodies: HashSet<_> = answers
        .iter()
        .map(|answer| (answer.status, answer.text()))
        .collect();
    assert_eq!(bodies, HashSet::from([(201, "n=1".to_owned())]));
    assert_eq!(
        answers.iter().filter(|answer| answer.is_replay()).count(),
        199
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn with_mixed_bodies_over_two_replicas_the_losers_get_422() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let pair = two(&redis, &upstream, "");
    let addrs = [pair[0].addr, pair[1].addr];
    let tries: Vec<_> = (0..200)
        .map(|n| thread::spawn(move || (n % 3, pay(addrs[n % 2], "k", &format!("{}", n % 3)))))
        .collect();
    upstream.wait_calls(1);
    let winner: usize = String::from_utf8(upstream.seen()[0].body.clone())
        .unwrap()
        .parse()
        .unwrap();
    let rivals = (0..200).filter(|n| n % 3 == winner).count() as u64;
    eventually("the winner's twins wait", || waiting(&pair) == rivals - 1);
    gate.open();
    for handle in tries {
        let (body, answer) = handle.join().unwrap();
        if body == winner {
            assert_eq!((answer.status, answer.text().as_str()), (201, "n=1"));
        } else {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (422, "idempotency_key_reused")
            );
        }
    }
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_waiter_at_the_other_replica_is_woken_and_not_only_swept() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let pair = two(&redis, &upstream, "");
    let first = pair[0].addr;
    let first = thread::spawn(move || pay(first, "k", "x"));
    upstream.wait_calls(1);
    let second = pair[1].addr;
    let second = thread::spawn(move || pay(second, "k", "x"));
    eventually("subscribed", || redis.info("pubsub_channels") == "1");
    gate.open();
    assert_eq!(first.join().unwrap().text(), "n=1");
    assert!(second.join().unwrap().is_replay());
    eventually("unsubscribed", || redis.info("pubsub_channels") == "0");
}

#[test]
fn an_owner_killed_while_the_upstream_works_leaves_a_post_held_and_a_put_to_run_again() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = killed_owner_upstream();
    let mut pair = two(&redis, &upstream, "[policy]\nlease = \"600ms\"");
    let clients = begin_one_of_each(pair[0].addr, &upstream);
    pair[0].kill();
    assert_held_and_run_again(pair[1].addr, &upstream);
    gate.open();
    drop(clients);
}

#[test]
fn an_owner_that_was_only_frozen_cannot_overwrite_its_successor() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, n| match n {
        1 => vec![Act::Wait(hold.clone()), reply(200, &[], "late")],
        _ => vec![reply(200, &[], "successor")],
    });
    let pair = two(&redis, &upstream, "[policy]\nlease = \"600ms\"");
    let put = || request("PUT", "/pay", &[("Idempotency-Key", "k")], "x");
    let mut frozen = Client::connect(pair[0].addr);
    frozen.write(&put());
    upstream.wait_calls(1);
    pair[0].signal("STOP");
    let second = client::send(pair[1].addr, &put());
    assert_eq!(
        (second.text().as_str(), second.is_replay()),
        ("successor", false)
    );
    gate.open();
    pair[0].signal("CONT");
    // R20: its own client gets what was recorded.
    let answer = frozen.answer().unwrap();
    assert_eq!(
        (answer.text().as_str(), answer.is_replay()),
        ("successor", true)
    );
    assert_eq!(pair[0].metric("retrysafe_leases_lost_total"), 1);
    for sidecar in &pair {
        let again = client::send(sidecar.addr, &put());
        assert_eq!(
            (again.text().as_str(), again.is_replay()),
            ("successor", true)
        );
    }
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn a_frozen_owner_that_was_answered_never_sends_again_whatever_its_successor_came_to() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let gates = [Gate::default(), Gate::default()];
    let [one, two_] = gates.clone();
    let upstream = Upstream::start(move |_, n| match n {
        1 => vec![Act::Wait(one.clone()), reply(200, &[], "late")],
        2 => vec![Act::Wait(two_.clone()), Act::Close],
        _ => vec![reply(200, &[], "third")],
    });
    let pair = two(&redis, &upstream, "[policy]\nlease = \"600ms\"");
    let put = request("PUT", "/pay", &[("Idempotency-Key", "k")], "x");
    let [mut frozen, mut second] = [Client::connect(pair[0].addr), Client::connect(pair[1].addr)];
    frozen.write(&put);
    upstream.wait_calls(1);
    pair[0].signal("STOP");
    second.write(&put);
    upstream.wait_calls(2);
    gates[0].open();
    pair[0].signal("CONT");
    // R20: it waits for its successor, whose outcome is lost.
    eventually("it waits", || waiting(&pair) == 1);
    gates[1].open();
    assert_eq!(second.answer().unwrap().code(), "upstream_connection_lost");
    let answer = frozen.answer().unwrap();
    assert_eq!(answer.text(), "late");
    assert_eq!(answer.header("idempotency-status"), Some("superseded"));
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn a_frozen_owner_of_a_held_post_repairs_its_record_when_it_comes_back() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let pair = two(&redis, &upstream, "[policy]\nlease = \"600ms\"");
    let mut frozen = Client::connect(pair[0].addr);
    frozen.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    pair[0].signal("STOP");
    assert_eq!(
        pay(pair[1].addr, "k", "x").code(),
        "idempotency_outcome_unknown"
    );
    gate.open();
    pair[0].signal("CONT");
    assert_eq!(frozen.answer().unwrap().text(), "n=1");
    let again = pay(pair[1].addr, "k", "x");
    assert_eq!((again.text().as_str(), again.is_replay()), ("n=1", true));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn the_lease_of_a_long_exchange_is_renewed() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let pair = two(
        &redis,
        &upstream,
        "[policy]\nlease = \"300ms\"\nin_flight_wait = \"1500ms\"",
    );
    let first = pair[0].addr;
    let first = thread::spawn(move || pay(first, "k", "x"));
    upstream.wait_calls(1);
    // Five leases long the duplicate finds it in flight, never lapsed.
    assert_eq!(
        pay(pair[1].addr, "k", "x").code(),
        "idempotency_request_in_progress"
    );
    gate.open();
    assert_eq!(first.join().unwrap().status, 201);
    assert_eq!(pair[0].metric("retrysafe_leases_lost_total"), 0);
}
