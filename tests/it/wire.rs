//! What goes over the wire to Redis, and what never goes anywhere (logs, metrics).

use std::thread;

use crate::support::client::{self, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Tables};
use crate::support::upstream::{Act, Gate, Upstream, reply};

/// The commands a server got, by its own count; scripts' inner calls are taken off.
fn calls(redis: &Redis, command: &str) -> u64 {
    let redis::Value::BulkString(text) = redis.cli(&["INFO", "commandstats"]) else {
        panic!()
    };
    let text = String::from_utf8(text).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_first_execution_is_a_claim_and_a_settle_a_replay_one_claim_and_the_rest_nothing() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        server: "threads = 1",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    pay(sidecar.addr, "warm", "x");
    let counted = |work: &dyn Fn()| {
        let commands = ["set", "evalsha", "eval", "publish", "get", "pexpire"];
        let before = commands.map(|command| calls(&redis, command));
        work();
        let after = commands.map(|command| calls(&redis, command));
        let [set, evalsha, eval, publish, get, pexpire] =
            std::array::from_fn(|at| after[at] - before[at]);
        // A settle is one script, which reads the head and sets the record.
        (set, evalsha, eval, publish, get + pexpire)
    };
    let first = counted(&|| assert_eq!(pay(sidecar.addr, "k", "x").status, 201));
    assert_eq!(
        first,
        (1 + 1, 1, 0, 1, 0),
        "SET (claim), EVALSHA with its own SET, PUBLISH"
    );
    let replay = counted(&|| assert!(pay(sidecar.addr, "k", "x").is_replay()));
    assert_eq!(replay, (1, 0, 0, 0, 0), "SET ... NX GET");
    let mismatch = counted(&|| assert_eq!(pay(sidecar.addr, "k", "y").status, 422));
    assert_eq!(mismatch, (1, 0, 0, 0, 0));
    let uncovered = counted(&|| assert_eq!(client::get(sidecar.addr, "/").status, 201));
    assert_eq!(uncovered, (0, 0, 0, 0, 0));
}

#[test]
fn a_client_gone_while_the_claim_is_under_way_leaves_one_execution_at_most() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        store: "timeout = \"5s\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    pay(sidecar.addr, "warm", "x");
    redis.pause();
    let mut client = client::Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 1);
    client.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    redis.resume();
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    assert_eq!(
        upstream.calls(),
        1,
        "nobody waited any more: not dispatched"
    );
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn no_body_credential_or_raw_key_is_ever_logged_or_measured() {
    let Some(redis) = Redis::start(&["--requirepass", "canary-password"]) else {
        return;
    };
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, n| match n {
        1 => vec![reply(
            201,
            &[("Set-Cookie", "sid=canary-cookie")],
            "canary-answer",
        )],
        2 => vec![Act::Close],
        _ => vec![Act::Wait(hold.clone()), reply(201, &[], "canary-answer")],
    });
    let url = format!("redis://:canary-password@{}", redis.addr());
    let tables = Tables {
        store_url: Some(&url),
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).env("RETRYSAFE__LOG__LEVEL", "trace");
    let sidecar = plan.start();
    let addr = sidecar.addr;
    let send = move |key: &str, body: &str| {
        let fields = [
            ("Idempotency-Key", key),
            ("Authorization", "Bearer canary-token"),
        ];
        client::send(addr, &request("POST", "/pay?canary-query=1", &fields, body))
    };
    assert_eq!(send("canary-key-1", "canary-body").status, 201);
    assert!(send("canary-key-1", "canary-body").is_replay());
    assert_eq!(send("canary-key-1", "canary-other").status, 422);
    assert_eq!(send("canary-key-2", "canary-body").status, 502);
    assert_eq!(send("canary key", "canary-body").status, 400);
    let first = thread::spawn(move || send("canary-key-3", "canary-body"));
    upstream.wait_calls(3);
    let waiter = thread::spawn(move || send("canary-key-3", "canary-body"));
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 1);
    gate.open();
    first.join().unwrap();
    waiter.join().unwrap();
    let told = sidecar.log().join("\n") + &sidecar.metrics();
    assert!(told.contains("\"outcome\":\"replayed\""), "{told}");
    let leaks: Vec<_> = told
        .lines()
        .filter(|line| line.contains("canary"))
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
