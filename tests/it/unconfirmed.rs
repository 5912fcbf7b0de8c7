//! What the store confirms late or never (R20, R24, R30, R31): records that wait for it, and what
//! the drain does with them.

use std::thread;

use socket2::{Domain, Socket, Type};

use crate::support::client::{Client, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Sidecar, Tables, on_redis};
use crate::support::upstream::{Upstream, reply};

/// Waits until nothing is unconfirmed and the store answers.
fn settled(sidecar: &Sidecar) {
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    sidecar.wait_metric("retrysafe_store_up", |up| up == 1);
}

#[test]
fn what_passed_without_a_confirmed_claim_is_recorded_when_the_store_is_back() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let rest = "[policy]\non_store_error = \"pass\"";
    let sidecar = on_redis(upstream.addr, &redis, rest).start();
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    redis.pause();
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!((answer.status, answer.text().as_str()), (201, "{\"n\":2}"));
    assert_eq!(answer.header("idempotency-status"), Some("unprotected"));
    assert_eq!(sidecar.metric("retrysafe_unprotected_requests_total"), 1);
    redis.resume();
    settled(&sidecar);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.text().as_str(), again.is_replay()),
        ("{\"n\":2}", true)
    );
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn a_settle_that_waits_gives_up_its_body_where_there_is_no_room_and_never_itself() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    // One such answer fits into the budget, a second copy that waits for the store does not.
    let body = "x".repeat(60 << 10);
    let (gate, upstream) = Upstream::gated_with(&body);
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        server: "buffer_budget = \"100KiB\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    redis.kill();
    gate.open();
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.text()), (201, body));
    assert_eq!(answer.header("idempotency-status"), Some("unrecorded"));
    let given_up = "retrysafe_not_kept_total{reason=\"budget\"}";
    sidecar.wait_metric(given_up, |count| count == 1);
    redis.restart(&[]);
    settled(&sidecar);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (410, "idempotency_response_not_kept")
    );
    assert_eq!(again.json()["original_status"], 201);
    assert_eq!(upstream.calls(), 1);
}

/// A sidecar whose only execution was answered and could not be recorded: Redis is gone.
fn unrecorded(redis: &mut Redis, drain: &str) -> (Upstream, Plan, Sidecar) {
    let (gate, upstream) = Upstream::gated();
    let url = redis.url();
    let server = format!("drain = \"{drain}\"");
    let tables = Tables {
        store_url: Some(&url),
        server: &server,
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables);
    let sidecar = plan.start();
    let addr = sidecar.addr;
    let client = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    redis.kill();
    gate.open();
    let answer = client.join().unwrap();
    assert_eq!(answer.header("idempotency-status"), Some("unrecorded"));
    (upstream, plan, sidecar)
}

#[test]
fn the_drain_sends_settles_that_waited_for_the_store() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let (upstream, plan, mut sidecar) = unrecorded(&mut redis, "25s");
    sidecar.signal("TERM");
    sidecar.wait_log("\"event\":\"draining\"");
    redis.restart(&[]);
    assert_eq!(sidecar.exit_code(), 0);
    let again = pay(plan.start().addr, "k", "x");
    assert_eq!((again.text().as_str(), again.is_replay()), ("n=1", true));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_record_that_the_drain_could_not_settle_is_said_in_the_exit_code() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let (_upstream, _plan, mut sidecar) = unrecorded(&mut redis, "300ms");
    sidecar.signal("TERM");
    assert_eq!(sidecar.exit_code(), 3);
    let drained = sidecar.wait_log("\"event\":\"drained\"");
    assert!(drained.contains("\"left_behind\":1"), "{drained}");
}

#[test]
fn what_was_not_sent_by_the_end_of_the_drain_is_released() {
    // Whose queue is full accepts nobody: the proxy goes on connecting.
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    let limit = std::time::Duration::from_millis(200);
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&addr, limit) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue never fills");
    }
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables {
        server: "drain = \"300ms\"",
        upstream: "connect_timeout = \"25s\"",
        ..Tables::default()
    };
    let plan = Plan::new(addr, &tables).folder(folder.path());
    let mut sidecar = plan.start();
    let proxy = sidecar.addr;
    let client = thread::spawn(move || pay(proxy, "k", "x"));
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 1);
    sidecar.signal("TERM");
    let told = client.join().unwrap();
    assert_eq!(
        (told.status, told.json()["outcome"].as_str()),
        (503, Some("not_executed"))
    );
    assert_eq!(told.json()["retryable"], true);
    assert_eq!(sidecar.exit_code(), 0);
    drop(sidecar);
    drop(queued);
    let upstream = Upstream::on(listener.into(), |_, _| vec![reply(201, &[], "ok")]);
    let again = pay(plan.start().addr, "k", "x");
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(upstream.seen()[0].header("idempotency-attempt"), Some("2"));
    assert_eq!(upstream.calls(), 1);
}
