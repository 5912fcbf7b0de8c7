//! What the documents show is what works: the configuration of the README, the one in the
//! Kubernetes manifest, the clients of examples/.

use std::path::Path;
use std::process::Command;

use retrysafe::config::{Environment, parse};

use crate::support::sidecar::sidecar;
use crate::support::upstream::{Upstream, reply};

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

/// Runs a client of examples/ against an API that refuses the first try.
fn runs(client: &str, body: &str) {
    let upstream = Upstream::start(|_, n| match n {
        1 => vec![reply(503, &[("Retry-After", "1")], "busy")],
        _ => vec![reply(201, &[], "{\"paid\":true}")],
    });
    let sidecar = sidecar(upstream.addr, "");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(client);
    let url = format!("http://{}/pay", sidecar.addr);
    let output = Command::new(program).args([&url, body]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("\"paid\":true"), "{said}");
    let keys: Vec<_> = upstream
        .seen()
        .iter()
        .map(|seen| seen.header("idempotency-key").map(str::to_owned))
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(
        keys[0].is_some() && keys[0] == keys[1],
        "one key over both tries: {keys:?}"
    );
}

#[test]
fn the_curl_client_keeps_its_key_over_retries() {
    runs("examples/clients/pay.sh", "amount=10");
}

#[test]
fn the_python_client_keeps_its_key_over_retries() {
    runs("examples/clients/pay.py", "{\"amount\": 10}");
}
