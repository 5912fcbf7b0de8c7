//! The commands as a person runs them: what they print, and their exit codes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::support::client::{self, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Plan, Sidecar, Tables, on_redis, retrysafe as run, sidecar};
use crate::support::upstream::{Act, Gate, Upstream, reply};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn the_demo_plays_everything_and_says_how_many_payments_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["demo"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        text.ends_with("10 requests were sent, 5 payments were made.\n"),
        "{text}"
    );
    for told in [
        "Idempotent-Replayed: true",
        "422 idempotency_key_reused",
        "outcome \"unknown\"",
    ] {
        assert!(text.contains(told), "{told} is missing in\n{text}");
    }
    assert!(
        !text.contains('\u{1b}'),
        "no colour where there is no terminal"
    );
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "it leaves no file"
    );
}

#[test]
fn the_demo_can_be_kept_and_serves_until_it_is_interrupted() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .args(["demo", "--keep"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut curl = || {
        told.find_map(|line| {
            line.unwrap()
                .strip_prefix("  curl -i http://")
                .map(str::to_owned)
        })
        .expect("a curl line")
    };
    let lines = [curl(), curl(), curl()];
    assert!(lines[0].contains("Idempotency-Key: mine-1") && lines[0].contains("{\"amount\":10}"));
    assert!(lines[1].contains("Idempotency-Key: mine-1") && lines[1].contains("{\"amount\":99}"));
    assert!(!lines[2].contains("Idempotency-Key"));
    let addr = lines[0].split('/').next().unwrap().parse().unwrap();
    // What the lines say, played: paid, repeated, refused, refused.
    let pays =
        |key: &[_], amount: &str| client::send(addr, &request("POST", "/payments", key, amount));
    let mine = [("Idempotency-Key", "mine-1")];
    let first = pays(&mine, "{\"amount\":10}");
    assert_eq!((first.status, first.is_replay()), (201, false));
    let again = pays(&mine, "{\"amount\":10}");
    assert_eq!((again.is_replay(), again.body), (true, first.body));
    let other = pays(&mine, "{\"amount\":99}");
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(
        pays(&[], "{\"amount\":10}").code(),
        "idempotency_key_missing"
    );
    let interrupted = Command::new("kill")
        .args(["-s", "INT", &demo.id().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    assert_eq!(demo.wait().unwrap().code(), Some(0));
}

#[test]
fn usage_help_and_version() {
    let folder = tempfile::tempdir().unwrap();
    let version = run(folder.path(), &["--version"]);
    assert_eq!(
        (code(&version), said(&version)),
        (0, "retrysafe 0.1.0\n".to_owned())
    );
    let help = run(folder.path(), &["--help"]);
    assert_eq!(code(&help), 0);
    for command in ["run", "check", "healthcheck", "demo", "key"] {
        assert!(said(&help).contains(command), "{command}");
    }
    assert_eq!(code(&run(folder.path(), &["nonsense"])), 2);
    assert_eq!(code(&run(folder.path(), &["key", "show"])), 2);
}

#[test]
fn an_invalid_configuration_ends_with_78_before_anything_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["run"][..],
        &["check"],
        &["healthcheck"],
        &["key", "show", "k"],
        &[],
    ] {
        let output = run(folder.path(), args);
        assert_eq!(code(&output), 78, "{args:?}");
        assert!(said(&output).contains("config.toml"), "{}", said(&output));
    }
    std::fs::write(
        folder.path().join("config.toml"),
        "[policy]\nttl = 5\nlese = \"1s\"\n",
    )
    .unwrap();
    let output = run(folder.path(), &["run"]);
    assert_eq!(code(&output), 78);
    for told in ["config.toml:2:", "config.toml:3:", "lease"] {
        assert!(
            said(&output).contains(told),
            "{told} is missing in\n{}",
            said(&output)
        );
    }
    assert!(
        !folder.path().join("retrysafe.db").exists(),
        "the store was opened"
    );
}

#[test]
fn healthcheck_asks_the_own_port() {
    let upstream = Upstream::counting();
    let folder = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let variable = format!("0.0.0.0:{port}");
    let plan = Plan::new(upstream.addr, &Tables::default())
        .folder(folder.path())
        .env("RETRYSAFE__HEALTH__LISTEN", &variable);
    let ask = || {
        Command::new(env!("CARGO_BIN_EXE_retrysafe"))
            .args(["healthcheck", "--config", "config.toml"])
            .current_dir(folder.path())
            .env("RETRYSAFE__HEALTH__LISTEN", &variable)
            .output()
            .unwrap()
    };
    let mut running = plan.start();
    let healthy = ask();
    assert_eq!((code(&healthy), said(&healthy)), (0, String::new()));
    running.kill();
    let gone = ask();
    assert_eq!(code(&gone), 1);
    assert!(
        said(&gone).contains("health at 127.0.0.1"),
        "{}",
        said(&gone)
    );
}

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
    let (gate, upstream) = Upstream::gated_with("ok");
    let sidecar = on_redis(upstream.addr, &redis, "").start();
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
    assert!(said(&busy).contains("records.db"), "{}", said(&busy));
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
fn a_second_proxy_on_the_same_file_says_whose_it_is() {
    let upstream = Upstream::counting();
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(upstream.addr, &Tables::default()).folder(folder.path());
    let _first = plan.start();
    let (code, said) = plan.fails();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("records.db"), "{said}");
}

#[test]
fn under_kubernetes_a_store_for_one_replica_must_be_asked_for() {
    let upstream = Upstream::counting();
    let kubernetes = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    let plan = Plan::new(upstream.addr, &Tables::default()).env(kubernetes.0, kubernetes.1);
    let (code, said) = plan.fails();
    assert_eq!(code, 78, "{said}");
    assert!(said.contains("single_replica"), "{said}");
    let tables = Tables {
        store: "single_replica = true",
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).env(kubernetes.0, kubernetes.1);
    assert_eq!(pay(plan.start().addr, "k", "x").status, 201);
}
