//! `[server.tls]`: clients over TLS, their certificates, and new files while it runs.

mod renewal;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::PATIENCE;
use crate::support::authority::{Authority, TlsClient};
use crate::support::client::{Client, request};
use crate::support::sidecar::{Plan, Sidecar, Tables, retrysafe};
use crate::support::upstream::{Upstream, reply};
use crate::upgrades::{SWITCHED, echoing};

/// A sidecar with certificates in a folder of its own.
struct Place {
    sidecar: Sidecar,
    upstream: Upstream,
    authority: Authority,
    folder: TempDir,
}

/// The folder's `tls.crt`, `tls.key` and `ca.crt` are there; `more` goes into `[server.tls]`.
fn plan(upstream: SocketAddr, authority: &Authority, folder: &Path, more: &str) -> Plan {
    authority.server().write(folder, "tls");
    std::fs::write(folder.join("ca.crt"), authority.certificate()).unwrap();
    let server = format!(
        "header_timeout = \"1s\"\n[server.tls]\ncert_file = \"tls.crt\"\nkey_file = \"tls.key\"\n{more}"
    );
    let tables = Tables {
        server: &server,
        ..Tables::default()
    };
    Plan::new(upstream, &tables).folder(folder)
}

fn place(more: &str) -> Place {
    let upstream = Upstream::start(|_, count| vec![reply(201, &[], &format!("paid {count}"))]);
    let authority = Authority::new("ours");
    let folder = tempfile::tempdir().unwrap();
    let sidecar = plan(upstream.addr, &authority, folder.path(), more).start();
    Place {
        sidecar,
        upstream,
        authority,
        folder,
    }
}

fn paying(key: &str) -> Vec<u8> {
    let fields = [
        ("Idempotency-Key", key),
        ("Content-Type", "application/json"),
    ];
    request("POST", "/pay", &fields, "{}")
}

impl Place {
    fn client(&self) -> TlsClient {
        TlsClient::new(self.sidecar.addr, &self.authority, None)
    }

    /// Exit code, and what came: status, version and body.
    fn curl(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new("curl")
            .current_dir(self.folder.path())
            .args(["--silent", "--include", "--max-time", "20"])
            .args(["--header", "Idempotency-Key: k", "--json", "{}"])
            .args(arguments)
            .arg(format!("https://{}/pay", self.sidecar.addr))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        (output.status.code().unwrap(), text)
    }
}

/// The name of a figure.
fn failed(reason: &str) -> String {
    format!("retrysafe_handshakes_failed_total{{reason=\"{reason}\"}}")
}

#[test]
fn curl_pays_over_http_1_and_a_retry_over_http_2_replays() {
    let place = place("");
    let (code, first) = place.curl(&["--cacert", "ca.crt", "--http1.1"]);
    assert_eq!(code, 0);
    assert!(
        first.starts_with("http/1.1 201") && first.ends_with("paid 1"),
        "{first}"
    );
    let (code, second) = place.curl(&["--cacert", "ca.crt", "--http2"]);
    assert_eq!(code, 0);
    assert!(
        second.starts_with("http/2 201")
            && second.contains("idempotent-replayed: true")
            && second.ends_with("paid 1"),
        "{second}"
    );
    let seen = place.upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen[0].header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn tls_1_2_and_1_3_are_spoken_and_nothing_older() {
    let place = place("");
    for (version, key) in [
        (&rustls::version::TLS12, "a"),
        (&rustls::version::TLS13, "b"),
    ] {
        let addr = place.sidecar.addr;
        let mut client = TlsClient::with_versions(addr, &place.authority, None, &[version]);
        assert_eq!(client.send(&paying(key)).unwrap().status, 201);
    }
    // 35: no handshake. The cipher setting lets curl try at all.
    let old = [
        "--cacert",
        "ca.crt",
        "--tls-max",
        "1.1",
        "--ciphers",
        "ALL@SECLEVEL=0",
    ];
    assert_eq!(place.curl(&old).0, 35);
    place
        .sidecar
        .wait_metric(&failed("refused"), |count| count == 1);
}

#[test]
fn who_does_not_trust_the_certificate_sends_nothing() {
    let place = place("");
    let stranger = Authority::new("theirs");
    std::fs::write(
        place.folder.path().join("other.crt"),
        stranger.certificate(),
    )
    .unwrap();
    assert_eq!(place.curl(&["--cacert", "other.crt"]).0, 60);
    let mut client = TlsClient::new(place.sidecar.addr, &stranger, None);
    assert_eq!(client.send(&paying("k")), None);
    place
        .sidecar
        .wait_metric(&failed("refused"), |count| count == 2);
    assert_eq!(place.upstream.seen().len(), 0);
}

#[test]
fn plain_http_and_silence_end_without_an_answer() {
    let place = place("");
    let mut plain = Client::connect(place.sidecar.addr);
    plain.try_write(&paying("k"));
    assert_eq!(plain.answer(), None);
    let mut silent = Client::connect(place.sidecar.addr);
    assert!(silent.is_closed_within(PATIENCE));
    place
        .sidecar
        .wait_metric(&failed("refused"), |count| count == 1);
    place
        .sidecar
        .wait_metric(&failed("timeout"), |count| count == 1);
    place
        .sidecar
        .wait_metric("retrysafe_connections", |open| open == 0);
    assert_eq!(place.upstream.seen().len(), 0);
    let loud = |line: &String| line.contains("WARN") || line.contains("ERROR");
    assert_eq!(place.sidecar.log().into_iter().find(loud), None);
}

#[test]
fn a_handshake_that_drips_has_the_time_of_a_head() {
    let place = place("");
    let mut client = Client::connect(place.sidecar.addr);
    // A record of a handshake that never gets whole.
    client.write(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
    let dripping = std::thread::spawn(move || {
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut drops = 0;
        while !client.is_closed_within(std::time::Duration::from_millis(100)) {
            assert!(tokio::time::Instant::now() < until, "{drops} drops");
            client.try_write(&[0]);
            drops += 1;
        }
    });
    place
        .sidecar
        .wait_metric(&failed("timeout"), |count| count == 1);
    dripping.join().unwrap();
}

#[test]
fn a_client_certificate_is_required_where_somebody_vouches_for_clients() {
    let place = place("client_ca_file = \"ca.crt\"");
    assert_eq!(place.client().send(&paying("k")), None);
    let theirs = Authority::new("theirs").client();
    let addr = place.sidecar.addr;
    let mut client = TlsClient::new(addr, &place.authority, Some(&theirs));
    assert_eq!(client.send(&paying("k")), None);
    place
        .sidecar
        .wait_metric(&failed("refused"), |count| count == 2);
    assert_eq!(place.upstream.seen().len(), 0);
    let ours = place.authority.client();
    let mut client = TlsClient::new(addr, &place.authority, Some(&ours));
    assert_eq!(client.send(&paying("k")).unwrap().status, 201);
    // One that was made for servers is none for clients.
    let server = place.authority.server();
    let mut client = TlsClient::new(addr, &place.authority, Some(&server));
    assert_eq!(client.send(&paying("k")), None);
    ours.write(place.folder.path(), "client");
    let shown = [
        "--cacert",
        "ca.crt",
        "--cert",
        "client.crt",
        "--key",
        "client.key",
    ];
    let (code, answer) = place.curl(&shown);
    assert!(
        code == 0 && answer.contains("idempotent-replayed"),
        "{answer}"
    );
}

#[test]
fn an_optional_client_certificate_may_be_missing_and_not_wrong() {
    let place = place("client_ca_file = \"ca.crt\"\nclient_auth = \"optional\"");
    assert_eq!(place.client().send(&paying("a")).unwrap().status, 201);
    let addr = place.sidecar.addr;
    let ours = place.authority.client();
    let mut client = TlsClient::new(addr, &place.authority, Some(&ours));
    assert_eq!(client.send(&paying("b")).unwrap().status, 201);
    let theirs = Authority::new("theirs").client();
    let mut client = TlsClient::new(addr, &place.authority, Some(&theirs));
    assert_eq!(client.send(&paying("c")), None);
    assert_eq!(place.upstream.seen().len(), 2);
}

#[test]
fn a_client_that_says_goodbye_after_its_request_gets_the_answer() {
    let place = place("");
    let mut client = place.client();
    client.stream.write_all(&paying("k")).unwrap();
    client.stream.conn.send_close_notify();
    client.stream.flush().unwrap();
    client.stream.sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer().unwrap().text(), "paid 1");
    let mut rest = Vec::new();
    // An end that is said, not a mere loss.
    assert_eq!(client.stream.read_to_end(&mut rest).unwrap(), 0);
}

#[test]
fn a_websocket_passes_through_tls() {
    let (upstream, serving) = echoing(SWITCHED);
    let authority = Authority::new("ours");
    let folder = tempfile::tempdir().unwrap();
    let sidecar = plan(upstream, &authority, folder.path(), "").start();
    let mut client = TlsClient::new(sidecar.addr, &authority, None);
    let fields = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let answer = client.send(&request("GET", "/ws", &fields, "")).unwrap();
    assert_eq!(answer.status, 101);
    client.stream.write_all(b"hello").unwrap();
    client.stream.flush().unwrap();
    let mut echoed = [0; 5];
    client.stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"hello");
    drop(client);
    assert!(serving.join().unwrap().contains("GET /ws"));
}

#[test]
fn files_that_are_not_fit_end_the_start_and_not_a_running_sidecar() {
    let place = place("");
    let folder = place.folder.path();
    let health = format!("--config={}", folder.join("config.toml").display());
    std::fs::remove_file(folder.join("tls.key")).unwrap();
    let output = retrysafe(folder, &["check", "--config", "config.toml"]);
    assert_eq!(output.status.code(), Some(78));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("error: `server.tls.key_file` names a file that cannot be read")
            && text.contains("config.toml:6:12"),
        "{text}"
    );
    let output = retrysafe(folder, &["key", "show", "k", &health]);
    assert_ne!(output.status.code(), Some(78));
    assert_eq!(place.client().send(&paying("k")).unwrap().status, 201);

    let other = tempfile::tempdir().unwrap();
    let plan = plan(place.upstream.addr, &place.authority, other.path(), "");
    std::fs::write(other.path().join("tls.crt"), "nothing").unwrap();
    let (code, log) = plan.fails();
    assert_eq!(code, 78);
    assert!(
        log.contains("names a file without a certificate in it"),
        "{log}"
    );
}
