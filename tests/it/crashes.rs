//! A proxy that is killed or stopped (R14, R18, R31), on the file store.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::client::{self, Client, pay, request};
use crate::support::sidecar::{Plan, Tables};
use crate::support::upstream::{Act, Gate, Upstream, reply};

fn key(seen: &crate::support::upstream::Seen) -> String {
    seen.header("idempotency-key").unwrap().to_owned()
}

#[test]
fn killed_in_mid_traffic_every_answered_request_replays_and_none_runs_twice() {
    let upstream = Upstream::start(|seen, n| vec![reply(201, &[], &format!("{n} {}", key(seen)))]);
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables {
        rest: "[policy]\nlease = \"1s\"",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).folder(folder.path());
    let mut sidecar = plan.start();
    let answered: Arc<Mutex<HashMap<String, Vec<u8>>>> = Arc::default();
    let asked: Arc<AtomicUsize> = Arc::default();
    let over: Arc<AtomicBool> = Arc::default();
    let addr = sidecar.addr;
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (answered, asked, over) = (answered.clone(), asked.clone(), over.clone());
            thread::spawn(move || {
                let mut client = Client::connect(addr);
                while !over.load(Ordering::Relaxed) {
                    let key = format!("k-{}", asked.fetch_add(1, Ordering::Relaxed));
                    client.try_write(&request("POST", "/pay", &[("Idempotency-Key", &key)], "x"));
                    let Some(answer) = client.answer() else {
                        return;
                    };
                    assert_eq!(answer.status, 201);
                    answered.lock().unwrap().insert(key, answer.body);
                }
            })
        })
        .collect();
    upstream.wait_calls(300);
    sidecar.kill();
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    drop(sidecar);
    let sidecar = plan.start();
    let answered = answered.lock().unwrap();
    assert!(answered.len() >= 200, "{} answered", answered.len());
    for (key, body) in answered.iter() {
        let again = pay(sidecar.addr, key, "x");
        assert!(again.is_replay(), "{key}");
        assert_eq!(&again.body, body, "{key}");
    }
    // Those under way when it died: once their lease lapsed they are held, never run again.
    let mut held = 0;
    for n in 0..asked.load(Ordering::Relaxed) {
        let key = format!("k-{n}");
        if !answered.contains_key(&key) {
            let answer = pay(sidecar.addr, &key, "x");
            held += usize::from(answer.status == 502);
            assert!(
                [201, 502].contains(&answer.status),
                "{key}: {}",
                answer.status
            );
        }
    }
    let mut runs: HashMap<String, usize> = HashMap::new();
    for seen in upstream.seen() {
        *runs.entry(key(&seen)).or_default() += 1;
    }
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    eprintln!("{} answered and replayed, {held} held", answered.len());
}

#[test]
fn once_the_lease_of_a_killed_owner_lapsed_a_post_is_held_and_a_put_runs_again() {
    let (gate, upstream) = killed_owner_upstream();
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables {
        rest: "[policy]\nlease = \"500ms\"",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).folder(folder.path());
    let mut sidecar = plan.start();
    let clients = begin_one_of_each(sidecar.addr, &upstream);
    sidecar.kill();
    drop(sidecar);
    // The duplicates wait until the leases have lapsed.
    assert_held_and_run_again(plan.start().addr, &upstream);
    gate.open();
    drop(clients);
}

/// An upstream whose first four calls do not end before the gate opens.
pub fn killed_owner_upstream() -> (Gate, Upstream) {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, n| match n {
        1..=4 => vec![Act::Wait(hold.clone())],
        _ => vec![reply(200, &[], "again")],
    });
    (gate, upstream)
}

fn sends(addr: SocketAddr, method: &str) -> client::Answer {
    client::send(addr, &keyed(method))
}

fn keyed(method: &str) -> Vec<u8> {
    request(method, "/pay", &[("Idempotency-Key", method)], "x")
}

/// Sends a POST, PATCH, PUT and DELETE, and waits until the upstream works on all of them.
pub fn begin_one_of_each(addr: SocketAddr, upstream: &Upstream) -> Vec<Client> {
    let begin = |method: &&str| {
        let mut client = Client::connect(addr);
        client.write(&keyed(method));
        client
    };
    let clients = ["POST", "PATCH", "PUT", "DELETE"].iter().map(begin);
    let clients = clients.collect();
    upstream.wait_calls(4);
    clients
}

/// What becomes of them once their owner was killed.
pub fn assert_held_and_run_again(addr: SocketAddr, upstream: &Upstream) {
    for method in ["POST", "PATCH"] {
        for _ in 0..2 {
            let held = sends(addr, method);
            assert_eq!(
                (held.status, held.code().as_str()),
                (502, "idempotency_outcome_unknown"),
                "{method}"
            );
        }
    }
    for (ran, method) in [(4, "PUT"), (5, "DELETE")] {
        let again = sends(addr, method);
        assert_eq!((again.status, again.text().as_str()), (200, "again"));
        let seen = &upstream.seen()[ran];
        assert_eq!(seen.method, method);
        assert_eq!(seen.header("idempotency-attempt"), Some("2"));
    }
    assert_eq!(upstream.calls(), 6);
}

#[test]
fn sigterm_lets_exchanges_finish_and_waiters_go() {
    let (gate, upstream) = Upstream::gated_with("done");
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(upstream.addr, &Tables::default()).folder(folder.path());
    let mut sidecar = plan.start();
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let waiter = thread::spawn(move || pay(addr, "k", "x"));
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    sidecar.signal("TERM");
    sidecar.wait_log("\"event\":\"draining\"");
    assert_eq!(client::get(sidecar.health, "/readyz").status, 503);
    assert_eq!(client::get(sidecar.health, "/livez").status, 200);
    let waiter = waiter.join().unwrap();
    assert_eq!(
        (waiter.status, waiter.code().as_str()),
        (409, "idempotency_request_in_progress")
    );
    gate.open();
    assert_eq!(first.join().unwrap().text(), "done");
    assert_eq!(sidecar.exit_code(), 0);
    drop(sidecar);
    assert!(pay(plan.start().addr, "k", "x").is_replay());
}

#[test]
fn what_does_not_finish_in_the_drain_is_cut_and_left_unresolved() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| vec![Act::Wait(hold.clone())]);
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables {
        server: "drain = \"300ms\"",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).folder(folder.path());
    let mut sidecar = plan.start();
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    sidecar.signal("TERM");
    assert_eq!(first.join().unwrap().code(), "idempotency_outcome_unknown");
    assert_eq!(sidecar.exit_code(), 3);
    drop(sidecar);
    let again = pay(plan.start().addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (502, "idempotency_outcome_unknown")
    );
    assert_eq!(upstream.calls(), 1);
    gate.open();
}

#[test]
fn an_upstream_that_breaks_during_the_drain_is_told_by_the_exit_code() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| vec![Act::Wait(hold.clone()), Act::Close]);
    let mut sidecar = Plan::new(upstream.addr, &Tables::default()).start();
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    sidecar.signal("TERM");
    sidecar.wait_log("\"event\":\"draining\"");
    gate.open();
    assert_eq!(first.join().unwrap().code(), "upstream_connection_lost");
    assert_eq!(sidecar.exit_code(), 3);
}

#[test]
fn a_second_signal_ends_at_once() {
    let upstream = Upstream::start(|_, _| vec![Act::Wait(Gate::default())]);
    let mut sidecar = Plan::new(upstream.addr, &Tables::default()).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    sidecar.signal("TERM");
    sidecar.wait_log("\"event\":\"draining\"");
    sidecar.signal("TERM");
    assert_eq!(sidecar.exit_code(), 3);
}
