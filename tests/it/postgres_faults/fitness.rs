//! What `check` finds on real servers.

use retrysafe::store::OpenError;

use super::Bench;
use crate::support::postgres::{Postgres, stores};

#[tokio::test]
async fn what_can_lose_records_is_said_with_what_is_lost() {
    let settings = [
        "fsync=off",
        "full_page_writes=off",
        "synchronous_commit=off",
    ];
    let Some(server) = Postgres::start(&settings) else {
        return;
    };
    let stores = stores(&server.url());
    let warnings = stores.check().await.unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|text| text.contains("RUNS TWICE")));
    assert!(warnings[0].contains("fsync"), "{warnings:?}");
    assert!(warnings[1].contains("ALTER ROLE app SET synchronous_commit = on"));
    server
        .sql("ALTER TABLE retrysafe_records SET UNLOGGED")
        .await;
    assert!(stores.check().await.unwrap()[2].contains("SET LOGGED"));
}

#[tokio::test]
async fn a_table_of_a_later_version_is_left_alone() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let newer = "COMMENT ON TABLE retrysafe_records IS 'retrysafe schema 2'";
    bench.server.sql(newer).await;
    let Err(OpenError::Unfit(text)) = bench.stores.check().await else {
        panic!("nobody knows what is in it");
    };
    assert!(text.contains("retrysafe schema 2"), "{text}");
}
