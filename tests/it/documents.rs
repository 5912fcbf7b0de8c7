//! What the documents show is what works: the configuration of the README, the one in the
//! Kubernetes manifest, the clients of examples/.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use retrysafe::config::{Environment, parse};

use crate::support::sidecar::sidecar;
use crate::support::upstream::{Act, Upstream, reply};

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_configuration_of_the_readme_is_valid() {
    let readme = text("README.md");
    let blocks: Vec<_> = readme
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (_config, warnings) = parse(block, "README.md", &Environment::new()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn the_configuration_of_the_manifest_is_valid() {
    let manifest = text("examples/kubernetes/retrysafe.yaml");
    let block = manifest
        .split("config.toml: |\n")
        .nth(1)
        .unwrap()
        .split("\n---")
        .next()
        .unwrap();
    let block: String = block
        .lines()
        .map(|line| line.trim_start_matches("    ").to_owned() + "\n")
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("url");
    std::fs::write(&secret, "redis://:secret@redis:6379/0\n").unwrap();
    let block = block.replace("/run/secrets/retrysafe/url", secret.to_str().unwrap());
    let env = Environment::from([("KUBERNETES_SERVICE_HOST".to_owned(), "10.0.0.1".to_owned())]);
    let (config, warnings) = parse(&block, "manifest", &env).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    // The sidecar's group may read the secret, which is root's.
    assert!(manifest.contains("fsGroup: 65532") && manifest.contains("runAsGroup: 65532"));
    assert!(manifest.contains("defaultMode: 0440"));
    // Ports and drain fit the rest of the manifest.
    assert!(manifest.contains(&format!("containerPort: {}", config.server.listen.port())));
    assert!(manifest.contains(&format!("containerPort: {}", config.health.listen.port())));
    let grace = manifest
        .split("terminationGracePeriodSeconds: ")
        .nth(1)
        .unwrap();
    let grace: u64 = grace.split_whitespace().next().unwrap().parse().unwrap();
    assert!(grace > config.server.drain.as_secs());
}

/// Runs a client of examples/: its exit code and what it printed.
fn client(program: &str, addr: SocketAddr, body: &str) -> (i32, String) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(program);
    let url = format!("http://{addr}/pay");
    let output = Command::new(program).args([&url, body]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code().unwrap(), said)
}

/// All tries of one operation bear one key.
fn assert_one_key(upstream: &Upstream, tries: usize) {
    let seen = upstream.seen();
    let keys: HashSet<_> = seen
        .iter()
        .map(|seen| seen.header("idempotency-key").unwrap())
        .collect();
    assert_eq!((seen.len(), keys.len()), (tries, 1), "{keys:?}");
}

/// Against an API that refuses the first try.
fn keeps_its_key(program: &str, body: &str) {
    let upstream = Upstream::start(|_, n| match n {
        1 => vec![reply(503, &[("Retry-After", "1")], "busy")],
        _ => vec![reply(201, &[], "{\"paid\":true}")],
    });
    let sidecar = sidecar(upstream.addr, "");
    let (code, said) = client(program, sidecar.addr, body);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("\"paid\":true"), "{said}");
    assert_one_key(&upstream, 2);
}

/// Against an API that dies before it answers: nobody knows whether it paid.
fn does_not_call_an_unknown_outcome_a_success(program: &str, body: &str) {
    let upstream = Upstream::start(|_, _| vec![Act::Close]);
    let sidecar = sidecar(upstream.addr, "");
    let (code, said) = client(program, sidecar.addr, body);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("\"outcome\":\"unknown\""), "{said}");
    assert_one_key(&upstream, 1);
}

#[test]
fn the_curl_client_does_not_call_an_unknown_outcome_a_success() {
    does_not_call_an_unknown_outcome_a_success("examples/clients/pay.sh", "amount=10");
}

#[test]
fn the_python_client_does_not_call_an_unknown_outcome_a_success() {
    does_not_call_an_unknown_outcome_a_success("examples/clients/pay.py", "{\"amount\": 10}");
}

#[test]
fn the_curl_client_does_not_call_half_an_answer_a_success() {
    let half = b"HTTP/1.1 201 X\r\nContent-Length: 100\r\n\r\n{\"paid\":".to_vec();
    let upstream = Upstream::start(move |_, _| vec![Act::Send(half.clone()), Act::Close]);
    let (code, said) = client("examples/clients/pay.sh", upstream.addr, "amount=10");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no outcome"), "{said}");
    assert_one_key(&upstream, 5);
}

#[test]
fn the_curl_client_keeps_its_key_over_retries() {
    keeps_its_key("examples/clients/pay.sh", "amount=10");
}

#[test]
fn the_python_client_keeps_its_key_over_retries() {
    keeps_its_key("examples/clients/pay.py", "{\"amount\": 10}");
}
