//! PostgreSQL with a cache, through the proxy: an outage of the one that decides, and a cache over TLS.

use std::path::Path;

use crate::support::authority::Authority;
use crate::support::client::pay;
use crate::support::eventually;
use crate::support::postgres::Postgres;
use crate::support::redis::{Redis, TLS_PORT, own_ip, tls_port};
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::Upstream;

fn start(upstream: &Upstream, server: &Postgres, cache: &str, rest: &str) -> Sidecar {
    let lines = format!("cache = \"{cache}\"\ncache_ttl = \"5m\"\n{rest}");
    let url = server.url();
    let tables = Tables {
        store_url: Some(&url),
        store: &lines,
        ..Tables::default()
    };
    Plan::new(upstream.addr, &tables).start()
}

fn lookups(sidecar: &Sidecar, result: &str) -> u64 {
    sidecar.metric(&format!(
        "retrysafe_cache_lookups_total{{result=\"{result}\"}}"
    ))
}

/// One execution, and the replay that leaves a copy.
fn paid_twice(sidecar: &Sidecar) {
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    assert!(pay(sidecar.addr, "k", "x").is_replay());
}

#[test]
fn while_the_server_is_out_of_reach_the_cache_goes_on_replaying() {
    let (Some(mut server), Some(cache)) = (Postgres::start(&["fsync=on"]), Redis::start(&[]))
    else {
        return;
    };
    let upstream = Upstream::counting();
    let sidecar = start(&upstream, &server, &cache.url(), "timeout = \"2s\"\n");
    paid_twice(&sidecar);
    assert_eq!(
        (lookups(&sidecar, "hit"), lookups(&sidecar, "miss")),
        (0, 2)
    );
    server.crash();
    eventually("the outage is known", || {
        let new = pay(sidecar.addr, "other", "x");
        assert_eq!(new.code(), "idempotency_store_unavailable");
        sidecar.metric("retrysafe_store_up") == 0
    });
    for hits in [1, 3, 5, 7, 9] {
        let again = pay(sidecar.addr, "k", "x");
        assert_eq!(
            (again.text().as_str(), again.is_replay()),
            ("{\"n\":1}", true)
        );
        assert_eq!(lookups(&sidecar, "hit"), hits);
        let reused = pay(sidecar.addr, "k", "y");
        assert_eq!(reused.code(), "idempotency_key_reused");
        // What the cache says is no sign of life of the server.
        assert_eq!(sidecar.metric("retrysafe_store_up"), 0);
    }
    assert_eq!(upstream.calls(), 1);
    server.restart(&[]);
    eventually("new keys are executed again", || {
        pay(sidecar.addr, "other", "x").status == 201
    });
}

/// A cache that is spoken to over TLS, and a folder with the file of who vouches for it.
fn secured() -> Option<(Redis, String, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("cache");
    let pair = authority.server_named(&[&own_ip().to_string()]);
    pair.write(folder.path(), "server");
    std::fs::write(folder.path().join("ca.crt"), authority.certificate()).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
    let mut arguments = vec!["--tls-port", TLS_PORT, "--tls-cert-file", &certificate];
    arguments.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &ca]);
    arguments.extend(["--tls-auth-clients", "no"]);
    let cache = Redis::start(&arguments)?;
    let url = format!("rediss://{}:{}", cache.addr().ip(), tls_port(cache.addr()));
    Some((cache, url, folder))
}

fn trusting(folder: &Path) -> String {
    format!(
        "[store.cache_tls]\nca_file = \"{}\"\n",
        folder.join("ca.crt").display()
    )
}

#[test]
fn a_cache_is_spoken_to_over_tls_and_must_be_trusted() {
    let (Some(server), Some((cache, url, folder))) = (Postgres::start(&[]), secured()) else {
        return;
    };
    let upstream = Upstream::counting();
    let trusting = format!("timeout = \"10s\"\n{}", trusting(folder.path()));
    let sidecar = start(&upstream, &server, &url, &trusting);
    paid_twice(&sidecar);
    assert_eq!(cache.records().len(), 1);
    assert!(pay(sidecar.addr, "k", "x").is_replay());
    assert_eq!(lookups(&sidecar, "hit"), 1);

    // Somebody else vouches for it: it is left alone, and PostgreSQL answers.
    let other = Authority::new("other");
    std::fs::write(folder.path().join("ca.crt"), other.certificate()).unwrap();
    let wary = start(&upstream, &server, &url, &trusting);
    let warning = wary.wait_log("\"event\":\"store_warning\"");
    for part in ["the cache at rediss://", "store.cache_tls.ca_file"] {
        assert!(warning.contains(part), "{warning}");
    }
    assert!(pay(wary.addr, "k", "x").is_replay());
    assert_eq!((lookups(&wary, "hit"), lookups(&wary, "unusable")), (0, 1));
    assert_eq!(upstream.calls(), 1);
}
