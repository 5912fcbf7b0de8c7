//! Releases of PostgreSQL beside the installed one: what differs between servers and not between
//! stores. The contract is kept on each of them too (`store_contract`).

use retrysafe::store::tier::Tier;

use super::Bench;
use super::connections::loses_nothing_acknowledged;
use super::losses::tells_a_backup_from_a_crash;
use super::wakeups::wakes_another_process;
use crate::support::postgres::{Postgres, stores};
use crate::support::postgres_releases::Release;

macro_rules! for_every_release {
    ($($name:ident = $release:expr;)*) => {$(
        mod $name {
            use super::*;

            #[tokio::test]
            async fn is_fit_as_it_comes() {
                fit_as_it_comes($release).await;
            }

            #[tokio::test]
            async fn a_settle_wakes_the_waiters_of_another_process() {
                if let Some(bench) = Bench::start_release($release, &[]).await {
                    wakes_another_process(bench).await;
                }
            }

            #[tokio::test]
            async fn a_backup_is_told_from_a_crash() {
                if let Some(server) = Postgres::start_release($release, &["fsync=on"]) {
                    tells_a_backup_from_a_crash(server).await;
                }
            }

            #[tokio::test]
            async fn a_killed_server_loses_nothing_that_was_acknowledged() {
                if let Some(bench) = Bench::start_release($release, &[]).await {
                    loses_nothing_acknowledged(bench, Postgres::kill).await;
                }
            }
        }
    )*};
}

for_every_release! {
    installed = Release::Installed;
    postgres_14 = Release::V14;
    postgres_16 = Release::V16;
    postgres_17 = Release::V17;
    postgres_18 = Release::V18;
}

/// The table is made, the server is found to be what its settings say, and nothing is warned of.
async fn fit_as_it_comes(release: Release) {
    let Some(server) = Postgres::start_release(release, &[]) else {
        return;
    };
    let version = server.sql("SHOW server_version_num").await;
    let version: u32 = version[0].parse().unwrap();
    // The variable names the release that the test is called after.
    assert_eq!(
        version / 10_000,
        release.number().unwrap_or(version / 10_000)
    );
    let stores = stores(&server.url());
    // The first one makes the table, the second one finds it.
    for _ in 0..2 {
        assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    }
    assert_eq!(stores.guarantee().await.unwrap().tier, Tier::T4);
    let log = server.log();
    let complaints = log.lines().filter(|line| {
        ["WARNING:", "ERROR:", "FATAL:"]
            .iter()
            .any(|word| line.contains(word))
    });
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new());
}
