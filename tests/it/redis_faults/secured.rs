//! Over TLS, and over a Unix socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use retrysafe::store::{OpenError, RedisStores, Settings, StoreUrl};
use retrysafe::telemetry::Metrics;
use retrysafe::tls::{ClientKeys, ClientSettings};

use super::{apply, in_time, with_url};
use crate::store_contract::operations::*;
use crate::support::authority::{Authority, Pair};
use crate::support::client::pay;
use crate::support::redis::{Redis, next_addr, own_ip, settings};
use crate::support::sidecar::{Plan, Tables};
use crate::support::upstream::Upstream;

/// A server with a port for TLS beside the plain one, and who vouches for it.
struct Secured {
    server: Redis,
    authority: Authority,
    port: u16,
    folder: tempfile::TempDir,
}

/// `None` where no server is installed.
fn secured(certificate: impl FnOnce(&Authority, &str) -> Pair, more: &[&str]) -> Option<Secured> {
    let authority = Authority::new("store");
    let folder = tempfile::tempdir().unwrap();
    let pair = certificate(&authority, &own_ip().to_string());
    pair.write(folder.path(), "server");
    std::fs::write(folder.path().join("ca.crt"), authority.certificate()).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let port = next_addr().port();
    let (certificate, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
    let text = port.to_string();
    let mut arguments = vec!["--tls-port", &text, "--tls-cert-file", &certificate];
    arguments.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &ca]);
    arguments.extend(["--requirepass", "correct-horse"]);
    arguments.extend(more);
    let server = Redis::start(&arguments)?;
    Some(Secured {
        server,
        authority,
        port,
        folder,
    })
}

/// Clients need no certificate.
const ANYBODY: [&str; 2] = ["--tls-auth-clients", "no"];

fn good(authority: &Authority, ip: &str) -> Pair {
    authority.server_named(&[ip])
}

impl Secured {
    fn settings(&self) -> Settings {
        let url = format!("rediss://:correct-horse@{}:{}", own_ip(), self.port);
        let mut settings = with_url(&self.server, url);
        settings.tls.ca_file = Some(self.folder.path().join("ca.crt"));
        settings
    }

    fn stores(&self, change: impl FnOnce(&mut ClientSettings, &Path)) -> RedisStores {
        let mut settings = self.settings();
        change(&mut settings.tls, self.folder.path());
        RedisStores::new(&settings, Arc::new(|_| {})).unwrap()
    }
}

async fn says_no(stores: &RedisStores) -> String {
    let Err(OpenError::Unreachable(message)) = stores.check().await else {
        panic!("it must not be trusted");
    };
    assert!(!message.contains("correct-horse"), "{message}");
    assert!(!format!("{stores:?}").contains("correct-horse"));
    message
}

#[tokio::test]
async fn records_are_kept_over_tls_and_waiters_are_woken() {
    let Some(place) = secured(good, &ANYBODY) else {
        return;
    };
    let stores = place.stores(|_, _| {});
    assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    let store = stores.handle();
    store.listen(super::key(1)).await.unwrap();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    let large = settle('a', 1, completed_with(&vec![7; 300_000]));
    assert_eq!(apply(&store, 1, large).await.unwrap(), "stored");
    let held = apply(&store, 1, claim('b')).await.unwrap();
    assert_eq!(held, "held completed a1");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_not_trusted() {
    let Some(place) = secured(good, &ANYBODY) else {
        return;
    };
    let other = Authority::new("other").certificate();
    std::fs::write(place.folder.path().join("other.crt"), other).unwrap();
    let stores = place.stores(|tls, folder| tls.ca_file = Some(folder.join("other.crt")));
    let message = says_no(&stores).await;
    let at = format!("rediss://{}:{}", own_ip(), place.port);
    let expected = format!(
        "the store at {at} cannot be asked: no connection to Redis at {at}: invalid peer \
         certificate: UnknownIssuer: its certificate is not trusted; see store.tls.ca_file and \
         store.tls.server_name"
    );
    assert_eq!(message, expected);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted_unless_that_name_is_wanted() {
    let named = |authority: &Authority, _: &str| authority.server_named(&["redis.internal"]);
    let Some(place) = secured(named, &ANYBODY) else {
        return;
    };
    let message = says_no(&place.stores(|_, _| {})).await;
    assert!(message.contains("not valid for name"), "{message}");
    assert!(message.contains("store.tls.server_name"), "{message}");
    let wanted = |tls: &mut ClientSettings, _: &Path| {
        tls.server_name = Some("redis.internal".to_owned());
    };
    let store = place.stores(wanted).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
}

#[tokio::test]
async fn an_expired_certificate_is_not_trusted() {
    let expired = |authority: &Authority, ip: &str| authority.server_expired(&[ip]);
    let Some(place) = secured(expired, &ANYBODY) else {
        return;
    };
    let message = says_no(&place.stores(|_, _| {})).await;
    assert!(message.contains("expired"), "{message}");
}

#[tokio::test]
async fn a_port_without_tls_is_said_to_speak_none() {
    let Some(server) = Redis::start(&[]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.crt");
    std::fs::write(&ca, Authority::new("store").certificate()).unwrap();
    let mut settings = with_url(
        &server,
        format!("rediss://:correct-horse@{}", server.addr()),
    );
    settings.tls.ca_file = Some(ca);
    settings.timeout = Duration::from_millis(200);
    let stores = RedisStores::new(&settings, Arc::new(|_| {})).unwrap();
    let message = says_no(&stores).await;
    assert!(message.contains("does that port speak TLS?"), "{message}");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    let Some(place) = secured(good, &["--tls-auth-clients", "yes"]) else {
        return;
    };
    let message = says_no(&place.stores(|_, _| {})).await;
    assert!(message.contains("no connection to Redis"), "{message}");
    place
        .authority
        .client()
        .write(place.folder.path(), "client");
    let shown = |tls: &mut ClientSettings, folder: &Path| {
        tls.pair = Some((folder.join("client.crt"), folder.join("client.key")));
    };
    let store = place.stores(shown).handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
}

#[tokio::test]
async fn files_that_are_not_fit_are_said_at_once() {
    let Some(place) = secured(good, &ANYBODY) else {
        return;
    };
    let mut settings = place.settings();
    settings.tls.ca_file = Some(place.folder.path().join("nowhere.crt"));
    let Err(OpenError::Unfit(message)) = RedisStores::new(&settings, Arc::new(|_| {})) else {
        panic!("without an authority nobody can be trusted");
    };
    assert!(message.contains("`store.tls.ca_file`"), "{message}");
}

#[tokio::test]
async fn new_connections_are_made_with_new_files() {
    let Some(place) = secured(good, &ANYBODY) else {
        return;
    };
    let mut stores = place.stores(|_, _| {});
    let files = stores.take_certificates().unwrap();
    let renewing = tokio::spawn(files.renew(Arc::new(Metrics::new())));
    let store = stores.handle();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    // Another authority, and the server shows its certificate from now on.
    let next = Authority::new("next");
    let folder = place.folder.path();
    next.server_named(&[&own_ip().to_string()])
        .write(folder, "next");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let plain = format!("redis://:correct-horse@{}", place.server.addr());
    let mut connection = redis::Client::open(plain)
        .unwrap()
        .get_connection()
        .unwrap();
    let mut tell = |words: &[&str]| {
        let () = redis::Cmd::new().arg(words).query(&mut connection).unwrap();
    };
    let (certificate, key) = (path("next.crt"), path("next.key"));
    tell(&[
        "CONFIG",
        "SET",
        "tls-cert-file",
        &certificate,
        "tls-key-file",
        &key,
    ]);
    tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    in_time("the old authority vouches no more", async || {
        let refused = apply(&store, 1, read()).await;
        refused.is_err_and(|error| error.message.contains("UnknownIssuer"))
    })
    .await;
    std::fs::write(folder.join("ca.crt"), next.certificate()).unwrap();
    in_time("the new authority is trusted", async || {
        matches!(
            apply(&store, 1, read()).await.as_deref(),
            Ok("held in_flight a1")
        )
    })
    .await;
    renewing.abort();
}

#[test]
fn the_program_takes_new_files_while_it_runs() {
    let Some(place) = secured(good, &ANYBODY) else {
        return;
    };
    let upstream = Upstream::counting();
    let url = place.settings().url;
    let StoreUrl::Redis(url) = &url else {
        panic!("{url}");
    };
    let ca = place.folder.path().join("ca.crt");
    let rest = format!("[store.tls]\nca_file = '{}'", ca.display());
    let tables = Tables {
        store_url: Some(url),
        server: "threads = 1",
        store: "timeout = \"5s\"",
        rest: &rest,
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "a", "x").status, 201);
    std::fs::write(&ca, Authority::new("next").certificate()).unwrap();
    let taken = "retrysafe_certificate_reloads_total{result=\"ok\"}";
    sidecar.wait_metric(taken, |count| count == 1);
    // The connection that stands goes on.
    assert!(pay(sidecar.addr, "a", "x").is_replay());
    assert!(!sidecar.log().join("\n").contains("correct-horse"));
}

#[tokio::test]
async fn a_unix_socket_is_a_server_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let path = path.to_str().unwrap();
    let Some(server) = Redis::start(&["--unixsocket", path, "--requirepass", "correct-horse"])
    else {
        return;
    };
    let url = format!("redis+unix://:correct-horse@{path}?db=3");
    let stores = RedisStores::new(&with_url(&server, url), Arc::new(|_| {})).unwrap();
    assert_eq!(stores.address(), format!("redis+unix://{path}?db=3"));
    assert_eq!(stores.check().await.unwrap(), Vec::<String>::new());
    let store = stores.handle();
    store.listen(super::key(1)).await.unwrap();
    assert_eq!(apply(&store, 1, claim('a')).await.unwrap(), "acquired 1");
    // Another database is another store.
    let url = format!("redis+unix://:correct-horse@{path}");
    let other = RedisStores::new(&with_url(&server, url), Arc::new(|_| {})).unwrap();
    let again = apply(&other.handle(), 1, claim('b')).await.unwrap();
    assert_eq!(again, "acquired 1");

    let nowhere = Settings {
        url: StoreUrl::Redis("redis+unix:///nowhere/redis.sock".to_owned()),
        tls: ClientSettings::plain(ClientKeys::STORE),
        ..settings(&server)
    };
    let nowhere = RedisStores::new(&nowhere, Arc::new(|_| {})).unwrap();
    let message = says_no(&nowhere).await;
    assert!(message.contains("/nowhere/redis.sock"), "{message}");
}
