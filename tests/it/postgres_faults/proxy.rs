//! PostgreSQL in trouble, seen through the proxy (R20, R24), and several replicas over one (R13).

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use crate::commands::{code, said};
use crate::support::client::{Client, pay, request};
use crate::support::pgbouncer::Pooler;
use crate::support::postgres::Postgres;
use crate::support::sidecar::{Plan, Sidecar, Tables, on_postgres, retrysafe};
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, eventually};

/// Pays until the store answers again.
fn pay_when_back(sidecar: &Sidecar, key: &str) -> crate::support::client::Answer {
    sidecar.wait_metric("retrysafe_store_up", |up| up == 1);
    pay(sidecar.addr, key, "x")
}

/// Pays until it is not the store that refuses: when a server went down is its own affair.
fn pay_through(sidecar: &Sidecar, key: &str) -> crate::support::client::Answer {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = pay_when_back(sidecar, key);
        if answer.status != 503 {
            return answer;
        }
        assert!(Instant::now() < until, "{}", answer.text());
    }
}

#[test]
fn stopped_before_the_claim_nothing_is_executed() {
    let Some(mut server) = Postgres::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    server.crash();
    for n in 0..5 {
        let began = Instant::now();
        let answer = pay(sidecar.addr, &format!("k-{n}"), "x");
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (503, "idempotency_store_unavailable")
        );
        assert!(began.elapsed() < Duration::from_secs(5), "it is bounded");
    }
    assert_eq!(upstream.calls(), 1);
    server.restart(&[]);
    assert_eq!(pay_when_back(&sidecar, "k-0").status, 201);
    assert_eq!(upstream.calls(), 2);
    let again = pay(sidecar.addr, "warm", "x");
    assert_eq!(
        (again.text().as_str(), again.is_replay()),
        ("{\"n\":1}", true)
    );
}

#[test]
fn stopped_between_execution_and_record_the_client_gets_the_truth_and_the_record_arrives() {
    let Some(mut server) = Postgres::start(&[]) else {
        return;
    };
    let (gate, upstream) = Upstream::gated();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    server.crash();
    gate.open();
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "n=1"));
    assert_eq!(answer.header("idempotency-status"), Some("unrecorded"));
    server.restart(&[]);
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    let again = pay_when_back(&sidecar, "k");
    assert_eq!((again.text().as_str(), again.is_replay()), ("n=1", true));
    assert_eq!(upstream.calls(), 1);
    // It kept what it had acknowledged: nothing had to be written anew.
    assert_eq!(sidecar.metric("retrysafe_reasserted_total"), 0);
}

#[test]
fn a_claim_that_hangs_is_taken_back_and_the_key_runs_later() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let locked = runtime.block_on(server.client());
    let run = |statement| runtime.block_on(locked.batch_execute(statement)).unwrap();
    run("BEGIN; LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE");
    assert_eq!(
        pay(sidecar.addr, "k", "x").code(),
        "idempotency_store_unavailable"
    );
    run("COMMIT");
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    let answer = pay_when_back(&sidecar, "k");
    assert_eq!((answer.status, answer.is_replay()), (201, false));
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn a_server_that_stands_still_is_left_and_found_again() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    assert_eq!(pay(sidecar.addr, "warm", "x").status, 201);
    server.pause();
    for n in 0..10 {
        let began = Instant::now();
        let answer = pay(sidecar.addr, &format!("k-{n}"), "x");
        assert_eq!(answer.code(), "idempotency_store_unavailable");
        assert!(began.elapsed() < Duration::from_secs(5), "it is bounded");
    }
    server.resume();
    sidecar.wait_metric("retrysafe_unconfirmed_operations", |waiting| waiting == 0);
    for n in 0..10 {
        let answer = pay_through(&sidecar, &format!("k-{n}"));
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{n}");
    }
    assert_eq!(upstream.calls(), 11);
    let sessions: u32 = server.sql_now(super::SESSIONS)[0].parse().unwrap();
    assert!(sessions <= 9, "{sessions} sessions");
}

#[test]
fn a_killed_session_takes_all_others_along_and_nothing_is_lost() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    server.kill_a_session();
    // The server starts over by itself.
    let answer = pay_through(&sidecar, "k");
    assert_eq!(
        (answer.text().as_str(), answer.is_replay()),
        ("{\"n\":1}", true)
    );
    assert_eq!(pay_through(&sidecar, "k-2").status, 201);
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn terminated_sessions_cost_at_most_an_answer() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    let mut executed = 0;
    for n in 0..30 {
        if n % 3 == 0 {
            server.sql_now(super::TERMINATE);
        }
        let key = format!("k-{n}");
        assert_eq!(pay_through(&sidecar, &key).status, 201);
        executed += 1;
        assert_eq!(upstream.calls(), executed, "{key}");
    }
}

/// Two replicas, over whatever is at `url`.
fn two(upstream: &Upstream, url: &str) -> [Sidecar; 2] {
    let tables = Tables {
        store_url: Some(url),
        // A hundred at once on a busy machine are no outage.
        store: "timeout = \"10s\"",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables);
    [plan.start(), plan.start()]
}

fn many_over_two(url: &str) {
    let (gate, upstream) = Upstream::gated();
    let pair = two(&upstream, url);
    let addrs = [pair[0].addr, pair[1].addr];
    let tries: Vec<_> = (0..100)
        .map(|n| thread::spawn(move || pay(addrs[n % 2], "k", "x")))
        .collect();
    let waiting = || -> u64 {
        let waits = |sidecar: &Sidecar| sidecar.metric("retrysafe_waiting");
        pair.iter().map(waits).sum()
    };
    eventually("all wait", || waiting() == 99);
    gate.open();
    let answers: Vec<_> = tries.into_iter().map(|one| one.join().unwrap()).collect();
    let bodies: HashSet<_> = answers.iter().map(|one| (one.status, one.text())).collect();
    assert_eq!(bodies, HashSet::from([(201, "n=1".to_owned())]));
    assert_eq!(answers.iter().filter(|one| one.is_replay()).count(), 99);
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_hundred_over_two_replicas_are_one_execution_and_equal_answers() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    many_over_two(&server.url());
}

#[test]
fn the_same_through_a_pooler() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let Some(pooler) = Pooler::start(&server) else {
        return;
    };
    many_over_two(&pooler.url());
}

#[test]
fn an_operator_prepares_the_store_and_resolves_keys() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[upstream]\nurl = \"http://127.0.0.1:1\"\n[store]\nurl = \"{}\"\ntimeout = \"5s\"\n",
        server.url()
    );
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let run = |arguments: &[&str]| retrysafe(folder.path(), arguments);

    let printed = run(&["store", "init", "--print"]);
    assert_eq!(code(&printed), 0, "{}", said(&printed));
    let sql = String::from_utf8(printed.stdout).unwrap();
    assert!(sql.contains("GRANT SELECT"), "{sql}");
    // What is printed is what is created.
    server.sql_now(&sql);
    for _ in 0..2 {
        let output = run(&["store", "init"]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(said(&output).contains("is there"), "{}", said(&output));
    }

    let missing = run(&["key", "show", "k"]);
    assert_eq!(code(&missing), 1, "{}", said(&missing));
    let upstream = Upstream::counting();
    let sidecar = on_postgres(upstream.addr, &server, "").start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    let shown = run(&["key", "show", "k"]);
    assert!(said(&shown).contains("completed"), "{}", said(&shown));
    let gone = run(&["key", "forget", "k"]);
    assert_eq!(code(&gone), 0, "{}", said(&gone));
    assert_eq!(pay(sidecar.addr, "k", "x").text(), "{\"n\":2}");
}

#[test]
fn a_store_that_needs_no_table_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[upstream]\nurl = \"http://127.0.0.1:1\"\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let output = retrysafe(folder.path(), &["store", "init"]);
    assert_eq!(code(&output), 2, "{}", said(&output));
    assert!(said(&output).contains("file:retrysafe.db"));
}
