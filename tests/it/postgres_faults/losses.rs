//! A PostgreSQL that lost its memory: emptied, restored from a backup, replaced by a standby that was
//! behind. And one that did not: commits that waited for the disk, or for the standby.

use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{PostgresStores, Settings};

use super::apply;
use crate::losses::{is_held_off, nothing_runs_twice, start};
use crate::store_contract::operations::claim;
use crate::support::client::pay;
use crate::support::faulty::{Fault, Faulty};
use crate::support::postgres::{Postgres, settings, stores, stores_with};
use crate::support::sidecar::Sidecar;
use crate::support::upstream::Upstream;
use crate::support::{eventually, in_time};

/// A server that has the table and the mark.
async fn server(arguments: &[&str]) -> Option<Postgres> {
    let server = Postgres::start(arguments)?;
    let stores = watching(&server.url());
    stores.init().await.unwrap();
    stores.look().await;
    Some(server)
}

fn server_now(arguments: &[&str]) -> Option<Postgres> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(server(arguments))
}

fn watching(url: &str) -> PostgresStores {
    let settings = Settings {
        hold_off: Duration::from_mins(10),
        ..settings(url)
    };
    stores_with(&settings, Arc::new(|_| {}))
}

fn losses(stores: &PostgresStores) -> (u64, &'static str) {
    let noticed = *stores.loss().subscribe().borrow();
    (noticed.times, noticed.how)
}

#[test]
fn a_table_that_was_emptied_is_noticed() {
    let Some(server) = server_now(&[]) else {
        return;
    };
    nothing_runs_twice(&server.url(), || {
        server.sql_now("TRUNCATE retrysafe_records");
    });
}

#[test]
fn the_least_rights_are_enough_to_notice() {
    let Some(server) = server_now(&[]) else {
        return;
    };
    server.sql_now(
        "CREATE ROLE sidecar LOGIN; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO sidecar",
    );
    let url = server.url().replace("app@", "sidecar@");
    nothing_runs_twice(&url, || {
        server.sql_now("DELETE FROM retrysafe_records");
    });
}

#[test]
fn a_server_that_tells_nothing_of_itself_is_known_by_its_mark() {
    let Some(server) = server_now(&[]) else {
        return;
    };
    server.sql_now(
        "CREATE ROLE sidecar LOGIN; \
         REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO sidecar",
    );
    let url = server.url().replace("app@", "sidecar@");
    nothing_runs_twice(&url, || {
        server.sql_now("TRUNCATE retrysafe_records");
    });
    let log = server.log();
    // A session that begins before the check asks once; what is refused is a line in the log.
    let asked = log.matches("permission denied for function").count();
    assert!(asked <= 3, "each of the processes asks once: {log}");
}

#[test]
fn a_server_restored_from_a_backup_is_noticed() {
    let Some(mut server) = server_now(&[]) else {
        return;
    };
    server.crash();
    let backup = server.back_up();
    server.restart(&[]);
    let url = server.url();
    nothing_runs_twice(&url, || {
        server.crash();
        server.restore(&backup);
        server.restart(&[]);
    });
}

#[test]
fn a_standby_that_lacks_a_claim_is_noticed_and_runs_nothing_twice() {
    let Some(mut primary) = server_now(&[]) else {
        return;
    };
    let mut standby = primary.with_slow_standby();
    standby.crash();
    let name = Faulty::to(primary.addr());
    let url = format!("postgres://app@{}/postgres", name.addr);
    nothing_runs_twice(&url, || {
        primary.crash();
        standby.restart(&[]);
        standby.promote();
        name.redirect(standby.addr());
    });
}

#[tokio::test]
async fn a_session_begun_with_a_standby_claims_nothing_before_somebody_looked() {
    let Some(mut primary) = server(&["fsync=on"]).await else {
        return;
    };
    let name = Faulty::to(primary.addr());
    let stores = watching(&format!("postgres://app@{}/postgres", name.addr));
    drop(stores.guarantee().await.unwrap());
    stores.look().await;
    let mut standby = primary.with_slow_standby();
    standby.crash();
    let store = stores.handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    primary.crash();
    standby.restart(&[]);
    name.redirect(standby.addr());
    // Sessions with the standby, which survive its promotion.
    in_time("it is asked", async || store.ping().await.is_ok()).await;
    stores.look().await;
    assert_eq!(standby.sql("SELECT pg_promote()").await, ["t"]);
    let error = apply(&store, 1, claim('b')).await.unwrap_err();
    assert!(error.message.contains("lost its memory"), "{error}");
    let how = "a standby took over, or it was restored";
    assert_eq!(losses(&stores), (1, how));
}

#[tokio::test]
async fn a_second_loss_within_the_hold_off_counts_for_every_process() {
    let Some(server) = server(&[]).await else {
        return;
    };
    let both = [(); 2].map(|()| watching(&server.url()));
    for losses in 0..=2 {
        for stores in [&both[0], &both[1], &both[0], &both[1]] {
            stores.look().await;
        }
        for stores in &both {
            let found = stores.loss().found().map_or(0, |(times, _)| times);
            assert_eq!(found, losses);
        }
        server.sql("TRUNCATE retrysafe_records").await;
    }
}

#[tokio::test]
async fn a_second_crash_within_the_hold_off_counts_too() {
    let Some(mut server) = server(&["synchronous_commit=off"]).await else {
        return;
    };
    let stores = watching(&server.url());
    for losses in 0..=2 {
        in_time("it answers", async || stores.handle().ping().await.is_ok()).await;
        for _ in 0..2 {
            stores.look().await;
        }
        let found = stores.loss().found().map_or(0, |(times, _)| times);
        assert_eq!(found, losses);
        // What was told survives it.
        server.sql("CHECKPOINT").await;
        server.crash();
        server.restart(&[]);
    }
}

#[tokio::test]
async fn a_look_that_hangs_keeps_nobody_from_a_new_session() {
    let Some(server) = server(&[]).await else {
        return;
    };
    let name = Faulty::to(server.addr());
    let stores = watching(&format!("postgres://app@{}/postgres", name.addr));
    stores.look().await;
    // The session at rest gets no replies any more, as behind a host that is gone.
    name.set(Fault::LosesReplies);
    let mut hangs = std::pin::pin!(stores.look());
    let sent = tokio::time::timeout(Duration::from_millis(200), hangs.as_mut()).await;
    assert!(sent.is_err(), "it hangs");
    name.set(Fault::None);
    let claimed = apply(&stores.handle(), 1, claim('a')).await;
    assert_eq!(claimed.unwrap(), "acquired 1");
    assert!(is_pending(hangs.as_mut()), "it still hangs");
}

/// Whether it is not done yet.
fn is_pending(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    future.poll(&mut context).is_pending()
}

#[tokio::test]
async fn a_table_restored_from_a_dump_is_known_by_its_number() {
    let Some(server) = server(&[]).await else {
        return;
    };
    let stores = watching(&server.url());
    stores.look().await;
    server
        .sql("CREATE TABLE dump AS TABLE retrysafe_records")
        .await;
    // With each check it grows.
    drop(stores.check().await.unwrap());
    stores.look().await;
    assert_eq!(losses(&stores).0, 0);
    let restore = "BEGIN; TRUNCATE retrysafe_records; \
                   INSERT INTO retrysafe_records TABLE dump; COMMIT";
    server.sql(restore).await;
    stores.look().await;
    assert_eq!(losses(&stores), (1, "it is as it was at an earlier time"));
    // It is said once, and whoever comes now is told.
    stores.look().await;
    assert_eq!(losses(&stores).0, 1);
    let late = watching(&server.url());
    late.look().await;
    assert_eq!(losses(&late).0, 0);
    assert!(late.loss().left().is_some());
}

/// A crash is no loss, an older folder is one; whatever the release calls its log.
pub(super) async fn tells_a_backup_from_a_crash(mut server: Postgres) {
    stores(&server.url()).init().await.unwrap();
    let stores = watching(&server.url());
    drop(stores.guarantee().await.unwrap());
    for _ in 0..2 {
        stores.look().await;
    }
    server.crash();
    let backup = server.back_up();
    server.restart(&[]);
    server.sql("CREATE TABLE more ()").await;
    let seen = async || {
        in_time("it answers", async || stores.handle().ping().await.is_ok()).await;
        stores.look().await;
        losses(&stores)
    };
    assert_eq!(seen().await, (0, ""));
    let log = server.log();
    assert!(!log.contains("ERROR:"), "{log}");
    server.crash();
    server.restore(&backup);
    server.restart(&[]);
    assert_eq!(seen().await, (1, "it is as it was at an earlier time"));
}

#[tokio::test]
async fn the_rows_of_the_mark_are_nobodys_record() {
    let Some(server) = server(&[]).await else {
        return;
    };
    let count = "SELECT count(*) FROM retrysafe_records WHERE key = 'mark'";
    assert_eq!(server.sql(count).await, ["1"]);
    let sweeper = stores(&server.url());
    assert_eq!(sweeper.sweep(1_000).await, Ok(0), "it has no end");
    assert_eq!(server.sql(count).await, ["1"]);
}

/// Whether a crash of a server whose commits wait so, or do not, is taken for a loss.
fn crash_is_a_loss(settings: &[&str]) -> Option<bool> {
    let mut server = server_now(settings)?;
    // The table itself is there after a crash.
    server.sql_now("CHECKPOINT");
    let upstream = Upstream::counting();
    let sidecar = start(upstream.addr, &server.url(), "10m");
    assert_eq!(pay(sidecar.addr, "k1", "x").status, 201);
    server.crash();
    server.restart(&[]);
    Some(new_keys_are_held_off(&sidecar))
}

fn new_keys_are_held_off(sidecar: &Sidecar) -> bool {
    eventually("it answers again, or says that it may have lost k1", || {
        pay(sidecar.addr, "k1", "x").is_replay() || is_held_off(sidecar)
    });
    let new = pay(sidecar.addr, "k2", "x");
    let lost = new.status != 201;
    if lost {
        assert_eq!(new.code(), "idempotency_store_unavailable");
        sidecar.wait_log("\"event\":\"memory_lost\"");
    }
    lost
}

#[test]
fn commits_that_waited_for_the_disk_survive_a_crash() {
    if let Some(lost) = crash_is_a_loss(&["fsync=on"]) {
        assert!(!lost);
    }
}

#[test]
fn commits_that_did_not_wait_may_be_lost_with_a_crash() {
    if let Some(lost) = crash_is_a_loss(&["synchronous_commit=off"]) {
        assert!(lost);
    }
}

#[test]
fn a_standby_that_commits_waited_for_lost_nothing() {
    let Some(mut primary) = server_now(&["fsync=on"]) else {
        return;
    };
    let standby = primary.with_standby();
    let name = Faulty::to(primary.addr());
    let url = format!("postgres://app@{}/postgres", name.addr);
    let upstream = Upstream::counting();
    let sidecar = start(upstream.addr, &url, "10m");
    assert_eq!(pay(sidecar.addr, "k1", "x").status, 201);
    primary.crash();
    standby.promote();
    name.redirect(standby.addr());
    assert!(!new_keys_are_held_off(&sidecar));
    assert_eq!(upstream.calls(), 2, "k1 and k2, once each");
}
