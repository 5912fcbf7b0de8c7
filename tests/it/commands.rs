//! The commands as a person runs them: what they print, and their exit codes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::support::client::{self, pay, request};
use crate::support::sidecar::{Plan, Tables, retrysafe as run};
use crate::support::upstream::Upstream;

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub fn code(output: &Output) -> i32 {
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
    for command in ["run", "check", "healthcheck", "doctor", "demo", "key"] {
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
fn a_port_in_use_is_noticed_however_many_threads_there_are() {
    let upstream = Upstream::counting();
    let threads = |server: &'static str| Tables {
        server,
        ..Tables::default()
    };
    let first = Plan::new(upstream.addr, &threads("threads = 2")).start();
    for (variable, taken) in [
        ("RETRYSAFE__SERVER__LISTEN", first.addr),
        ("RETRYSAFE__HEALTH__LISTEN", first.health),
    ] {
        // Another folder, so another store: only the port is shared.
        let plan = Plan::new(upstream.addr, &threads("threads = 2"));
        let (code, said) = plan.env(variable, &taken.to_string()).fails();
        assert_eq!(code, 1, "{said}");
        let key = if taken == first.addr {
            "server.listen"
        } else {
            "health.listen"
        };
        assert!(
            said.contains(key) && said.contains("listens there"),
            "{said}"
        );
    }
    assert_eq!(pay(first.addr, "k", "x").status, 201);
}

#[test]
fn a_variable_with_an_underscore_too_few_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.toml"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .arg("check")
        .current_dir(folder.path())
        .env("RETRYSAFE_STORE__URL", "redis://127.0.0.1")
        .env("RETRYSAFE_PORT", "tcp://10.0.0.1:80")
        .output()
        .unwrap();
    assert_eq!(code(&output), 78);
    assert!(
        said(&output).contains("write RETRYSAFE__STORE__URL"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_reader_that_goes_away_ends_no_demo_with_a_fault() {
    let demo = Command::new("sh")
        .args([
            "-c",
            "\"$0\" demo; echo code $? >&2",
            env!("CARGO_BIN_EXE_retrysafe"),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut demo = demo;
    drop(demo.stdout.take());
    let output = demo.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "code 0\n");
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
