//! R34: `retrysafe key` on real stores: a held key is looked at, released, resolved, forgotten.

use crate::commands::{code, said};
use crate::support::client::{self, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Sidecar, Tables, retrysafe as run, sidecar};
use crate::support::upstream::{Act, Gate, Upstream, reply};

/// A sidecar on Redis whose first call is never answered and given up soon.
fn unresolved(redis: &Redis) -> (Upstream, Sidecar, Gate) {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, n| match n {
        1 => vec![Act::Wait(hold.clone()), Act::Close],
        _ => vec![reply(201, &[], "ran")],
    });
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        upstream: "answer_within = \"100ms\"\ngive_up_after = \"100ms\"",
        rest: "[policy]\nscope = [\"header:x-tenant\"]",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(tenant_pays(&sidecar).status, 504);
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    assert_eq!(tenant_pays(&sidecar).json()["outcome"], "unknown");
    (upstream, sidecar, gate)
}

fn tenant_pays(sidecar: &Sidecar) -> client::Answer {
    let headers = [("Idempotency-Key", "k"), ("X-Tenant", "acme")];
    client::send(sidecar.addr, &request("POST", "/pay", &headers, "x"))
}

const SCOPE: [&str; 2] = ["--scope", "header:x-tenant=acme"];

#[test]
fn a_held_key_is_shown_and_released_and_runs_again() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (upstream, sidecar, _gate) = unresolved(&redis);
    let shown = run(sidecar.folder(), &["key", "show", "k", SCOPE[0], SCOPE[1]]);
    let text = said(&shown);
    assert_eq!(code(&shown), 0, "{text}");
    for line in ["state     unresolved", "attempt   1", "why       gave_up"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert_eq!(
        code(&run(sidecar.folder(), &["key", "show", "k"])),
        1,
        "another scope"
    );
    let released = run(
        sidecar.folder(),
        &["key", "release", "\"k\"", SCOPE[0], SCOPE[1]],
    );
    assert_eq!(code(&released), 0, "{}", said(&released));
    assert!(
        said(&released).contains("audit action=release"),
        "{}",
        said(&released)
    );
    let answer = tenant_pays(&sidecar);
    assert_eq!((answer.status, answer.text().as_str()), (201, "ran"));
    assert_eq!(upstream.seen()[1].header("idempotency-attempt"), Some("2"));
    let again = run(
        sidecar.folder(),
        &["key", "release", "k", SCOPE[0], SCOPE[1]],
    );
    assert_eq!(code(&again), 1);
    assert!(
        said(&again).contains("completed, not unresolved"),
        "{}",
        said(&again)
    );
}

#[test]
fn a_held_key_that_was_executed_is_gone_for_retries_and_forgotten_runs_again() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (upstream, sidecar, _gate) = unresolved(&redis);
    let folder = sidecar.folder();
    let executed = run(
        folder,
        &[
            "key", "executed", "k", "--status", "201", SCOPE[0], SCOPE[1],
        ],
    );
    assert_eq!(code(&executed), 0, "{}", said(&executed));
    let gone = tenant_pays(&sidecar);
    assert_eq!(
        (gone.status, gone.code().as_str()),
        (410, "idempotency_response_not_kept")
    );
    assert_eq!(gone.json()["original_status"], 201);
    assert_eq!(upstream.calls(), 1);
    assert_eq!(
        code(&run(folder, &["key", "forget", "k", SCOPE[0], SCOPE[1]])),
        0
    );
    assert_eq!(tenant_pays(&sidecar).text(), "ran");
}

#[test]
fn what_is_in_flight_is_not_the_operators() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream =
        Upstream::start(move |_, _| vec![Act::Wait(hold.clone()), reply(201, &[], "ok")]);
    let url = redis.url();
    let tables = Tables {
        store_url: Some(&url),
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let addr = sidecar.addr;
    let first = std::thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    for action in ["release", "executed", "forget"] {
        let output = run(sidecar.folder(), &["key", action, "k"]);
        assert_eq!(code(&output), 1, "{action}");
        assert!(said(&output).contains("in flight"), "{}", said(&output));
    }
    gate.open();
    assert_eq!(first.join().unwrap().status, 201);
}

#[test]
fn the_file_store_is_looked_at_only_while_no_proxy_runs() {
    let upstream = Upstream::counting();
    let mut running = sidecar(upstream.addr, "");
    pay(running.addr, "k", "x");
    let busy = run(running.folder(), &["key", "show", "k"]);
    assert_eq!(code(&busy), 1);
    assert!(said(&busy).contains("stop it first"), "{}", said(&busy));
    running.signal("TERM");
    assert_eq!(running.exit_code(), 0);
    let shown = run(running.folder(), &["key", "show", "k"]);
    assert_eq!(code(&shown), 0, "{}", said(&shown));
    assert!(
        said(&shown).contains("state     completed"),
        "{}",
        said(&shown)
    );
    let record = said(&shown);
    let record = record
        .lines()
        .find_map(|line| line.strip_prefix("record    "))
        .unwrap();
    assert_eq!(
        code(&run(running.folder(), &["key", "show", "--record", record])),
        0
    );
    assert_eq!(code(&run(running.folder(), &["key", "show", "unknown"])), 1);
    assert_eq!(
        code(&run(running.folder(), &["key", "show", "--record", "zz"])),
        2
    );
}

#[test]
fn a_memory_store_cannot_be_looked_into() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nurl = \"memory:\"\n";
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let output = run(folder.path(), &["key", "show", "k"]);
    assert_eq!(code(&output), 2);
    assert!(
        said(&output).contains("its own process"),
        "{}",
        said(&output)
    );
}
