//! How far a store can be trusted: asked of the live server, said everywhere, and required.

use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::tier::Tier;
use retrysafe::store::{RedisStores, Settings};

use crate::commands::{code, said};
use crate::support::client::{get, pay};
use crate::support::faulty::{Fault, Faulty};
use crate::support::postgres::Postgres;
use crate::support::redis::{Redis, settings_at};
use crate::support::sidecar::{Sidecar, on_postgres, on_redis, retrysafe, sidecar};
use crate::support::upstream::Upstream;
use crate::support::{eventually, redis};

const REQUIRE_T4: &str = "[policy]\nrequire_tier = \"T4\"\n";

fn doctor(store: &str, more: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let config =
        format!("[upstream]\nurl = \"http://127.0.0.1:9\"\n[store]\nurl = \"{store}\"\n{more}");
    std::fs::write(folder.path().join("config.toml"), config).unwrap();
    let output = retrysafe(folder.path(), &["doctor"]);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "it makes no file");
    output
}

#[track_caller]
fn finds(output: &Output, tier: &str) {
    assert_eq!(code(output), 0, "{}", said(output));
    let text = said(output);
    assert!(text.contains(&format!("guarantee  {tier}: ")), "{text}");
    assert!(text.contains("required   T0 (policy.require_tier): met"));
}

fn readyz(sidecar: &Sidecar) -> String {
    get(sidecar.health, "/readyz?verbose").text()
}

#[test]
fn the_doctor_reads_it_from_the_live_server() {
    finds(&doctor("memory:", ""), "T0");
    finds(&doctor("file:records.db", ""), "T4");
    let Some(server) = Redis::start(&["--appendonly", "yes"]) else {
        return;
    };
    let everysec = doctor(&server.url(), "");
    finds(&everysec, "T1");
    assert!(said(&everysec).contains("appendfsync always"));
    server.cli(&["CONFIG", "SET", "appendfsync", "always"]);
    finds(&doctor(&server.url(), ""), "T4");
    server.cli(&["CONFIG", "SET", "appendonly", "no"]);
    let weak = doctor(&server.url(), REQUIRE_T4);
    assert_eq!(code(&weak), 1);
    for part in ["guarantee  T1", "no append-only file", "NOT MET"] {
        assert!(said(&weak).contains(part), "{}", said(&weak));
    }
}

#[test]
fn whom_redis_does_not_tell_its_disk_the_weaker_tier_counts() {
    let Some(server) = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    redis::least_rights(&server, "");
    let found = doctor(&format!("redis://sidecar:pw@{}", server.addr()), "");
    finds(&found, "T1");
    assert!(said(&found).contains("does not tell"), "{}", said(&found));
    assert!(!said(&found).contains("pw@"), "{}", said(&found));
}

#[test]
fn the_doctor_says_when_nobody_is_there() {
    let addr = redis::next_addr();
    let nobody = doctor(&format!("redis://{addr}"), "");
    assert_eq!(code(&nobody), 69, "{}", said(&nobody));
}

#[test]
fn postgresql_is_as_good_as_its_commit() {
    let Some(server) = Postgres::start(&["fsync=on"]) else {
        return;
    };
    finds(&doctor(&server.url(), ""), "T4");
    server.sql_now("ALTER SYSTEM SET synchronous_commit = off");
    server.sql_now("SELECT pg_reload_conf()");
    eventually("the weaker commit is found", || {
        said(&doctor(&server.url(), "")).contains("guarantee  T1: ")
    });
    let upstream = Upstream::counting();
    let (exit, text) = on_postgres(upstream.addr, &server, REQUIRE_T4).fails();
    assert_eq!(exit, 78, "{text}");
    assert!(text.contains("synchronous_commit = off"), "{text}");
}

#[test]
fn a_weaker_store_than_required_is_refused_at_start() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let (exit, text) = on_redis(upstream.addr, &server, REQUIRE_T4).fails();
    assert_eq!(exit, 78, "{text}");
    for part in ["tier T1", "require_tier is T4", "appendfsync always"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn it_is_in_the_log_in_readyz_and_a_metric() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, REQUIRE_T4);
    let line = sidecar.wait_log("\"event\":\"guarantee\"");
    assert!(line.contains("\"tier\":\"T4\""), "{line}");
    let shown = readyz(&sidecar);
    assert!(shown.contains("guarantee: T4, survives a crash"), "{shown}");
    sidecar.wait_metric("retrysafe_store_tier", |tier| tier == 4);
    assert_eq!(pay(sidecar.addr, "k1", "{}").status, 201);
}

#[test]
fn a_store_not_yet_known_gives_out_nothing_where_a_tier_is_required() {
    let Some(mut server) = Redis::start(&["--appendonly", "yes"]) else {
        return;
    };
    server.kill();
    let upstream = Upstream::counting();
    let sidecar = on_redis(upstream.addr, &server, REQUIRE_T4).start();
    let shown = readyz(&sidecar);
    assert!(shown.contains("guarantee: not known yet"), "{shown}");
    // It comes back weaker than it must be.
    server.restart(&[]);
    sidecar.wait_log("\"event\":\"store_unfit\"");
    assert_eq!(
        pay(sidecar.addr, "k1", "{}").code(),
        "idempotency_store_unavailable"
    );
    assert_eq!(upstream.calls(), 0);
    sidecar.wait_metric("retrysafe_store_tier", |tier| tier == 1);
}

#[tokio::test]
async fn a_reply_that_was_lost_makes_no_store_weaker() {
    let Some(server) = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    let link = Faulty::to(server.addr());
    let mut whole = 0;
    for octets in (0..).step_by(40) {
        link.set(Fault::CutsRepliesAfter(octets));
        let settings = Settings {
            timeout: Duration::from_secs(2),
            ..settings_at(format!("redis://{}", link.addr))
        };
        let stores = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
        if let Ok(found) = stores.guarantee().await {
            assert_eq!(found.tier, Tier::T4, "cut after {octets} octets");
            whole += 1;
        }
        if whole > 2 {
            assert!(octets > 1_000, "it was cut in many places");
            return;
        }
    }
}

#[test]
fn with_a_synchronous_standby_the_loss_of_the_primary_loses_nothing() {
    let Some(mut primary) = Postgres::start(&["fsync=on"]) else {
        return;
    };
    let standby = primary.with_standby();
    finds(&doctor(&primary.url(), ""), "T5");
    let required = "[policy]\nrequire_tier = \"T5\"\n";
    let upstream = Upstream::counting();
    let before = on_postgres(upstream.addr, &primary, required).start();
    let paid = pay(before.addr, "k1", "{}");
    assert_eq!(paid.status, 201);
    primary.crash();
    standby.promote();
    // Alone it is less than is required.
    let (exit, text) = on_postgres(upstream.addr, &standby, required).fails();
    assert_eq!(exit, 78, "{text}");
    let after = on_postgres(upstream.addr, &standby, "").start();
    let again = pay(after.addr, "k1", "{}");
    assert!(again.is_replay(), "{}", again.text());
    assert_eq!(again.text(), paid.text());
    assert_eq!(upstream.calls(), 1);
}
