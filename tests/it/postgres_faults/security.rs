//! Who is let in, with what rights, and over which socket.

use std::sync::Arc;

use retrysafe::store::{OpenError, Settings, StoreErrorKind};

use super::{Bench, apply, key};
use crate::store_contract::operations::*;
use crate::support::authority::Authority;
use crate::support::client::pay;
use crate::support::eventually;
use crate::support::postgres::{Postgres, settings, stores, stores_with};
use crate::support::sidecar::{Plan, Tables};
use crate::support::upstream::Upstream;

/// Lets in whoever fits these lines of `pg_hba.conf`, and this test's own connections.
async fn let_in(server: &Postgres, lines: &str) {
    let own = "host all app 127.0.0.0/8 trust\nlocal all app trust\n";
    std::fs::write(server.data().join("pg_hba.conf"), format!("{lines}\n{own}")).unwrap();
    server.sql("SELECT pg_reload_conf()").await;
}

#[tokio::test]
async fn passwords_open_and_are_never_shown() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let create = "CREATE ROLE sidecar LOGIN PASSWORD 'correct-horse'; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON retrysafe_records TO sidecar";
    bench.server.sql(create).await;
    let_in(&bench.server, "host all sidecar 127.0.0.0/8 scram-sha-256").await;
    let url = |user: &str| bench.server.url().replace("app@", user);
    let good = stores(&url("sidecar:correct%2Dhorse@"));
    assert_eq!(
        apply(&good.handle(), 1, claim('a')).await.unwrap(),
        "acquired 1"
    );
    // The documented rights are enough for everything.
    assert_eq!(good.check().await.unwrap(), Vec::<String>::new());
    good.handle().listen(key(1)).await.unwrap();
    assert_eq!(good.sweep(10).await, Ok(0));
    assert!(!format!("{good:?}").contains("correct"));

    for user in ["sidecar:battery-staple@", "sidecar@"] {
        let stores = stores(&url(user));
        let error = apply(&stores.handle(), 1, claim('a')).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        let Err(OpenError::Unreachable(message)) = stores.check().await else {
            panic!("a store that lets nobody in is not there");
        };
        for text in [&error.message, &message, &format!("{stores:?}")] {
            assert!(!text.contains("battery-staple"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_unix_socket_is_named_by_its_folder() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let (port, folder) = (bench.server.addr().port(), bench.server.folder().display());
    let stores = stores(&format!("postgres://app@:{port}/postgres?host={folder}"));
    assert_eq!(
        apply(&stores.handle(), 1, claim('a')).await.unwrap(),
        "acquired 1"
    );
    assert_eq!(bench.says(1, claim('b')).await, "held in_flight a1");
}

#[tokio::test]
async fn with_tls_the_server_is_verified_by_name_and_nothing_goes_in_the_clear() {
    let Some(bench) = Bench::start(&[]).await else {
        return;
    };
    let server = &bench.server;
    let authority = Authority::new("ours");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("{}?sslmode=require", server.url());
    let with = |ca: &Authority, name: Option<&str>| {
        let mut settings: Settings = settings(&url);
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, ca.certificate()).unwrap();
        settings.tls.ca_file = Some(file);
        settings.tls.server_name = name.map(str::to_owned);
        stores_with(&settings, Arc::new(|_| {}))
    };
    // A server that has no TLS is not spoken to without.
    let error = with(&authority, None).check().await.unwrap_err();
    assert!(matches!(error, OpenError::Unreachable(_)), "{error}");

    server
        .enable_tls(&authority.server_named(&["db.internal"]))
        .await;
    let_in(server, "hostssl all sidecar 127.0.0.0/8 trust").await;
    let good = with(&authority, Some("db.internal"));
    assert_eq!(good.check().await.unwrap(), Vec::<String>::new());
    let over_tls = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE ssl AND application_name = 'retrysafe'";
    assert_eq!(server.sql(over_tls).await, ["1"]);
    good.handle().listen(key(1)).await.unwrap();
    assert_eq!(server.sql(over_tls).await, ["2"]);

    // Another name, another authority.
    for other in [
        with(&authority, Some("other.internal")),
        with(&Authority::new("theirs"), Some("db.internal")),
    ] {
        let error = apply(&other.handle(), 1, claim('a')).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        assert!(error.message.contains("certificate"), "{error}");
    }
}

#[test]
fn a_new_authority_is_trusted_without_a_restart() {
    let Some(server) = Postgres::start(&[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.crt");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let show = |authority: &Authority| {
        std::fs::write(&ca_file, authority.certificate()).unwrap();
        let pair = authority.server_named(&["db.internal"]);
        runtime.block_on(server.enable_tls(&pair));
    };
    show(&Authority::new("the first"));
    let upstream = Upstream::counting();
    let url = format!("{}?sslmode=verify-full", server.url());
    let lines =
        format!("tls.ca_file = {ca_file:?}\ntls.server_name = \"db.internal\"\ntimeout = \"2s\"\n");
    let tables = Tables {
        store_url: Some(&url),
        store: &lines,
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    show(&Authority::new("the second"));
    server.sql_now(super::TERMINATE);
    eventually("the new one is trusted", || {
        pay(sidecar.addr, "k", "x").is_replay()
    });
    assert_eq!(upstream.calls(), 1);
    let reloaded = "retrysafe_certificate_reloads_total{result=\"ok\"}";
    assert_eq!(sidecar.metric(reloaded), 1);
}
