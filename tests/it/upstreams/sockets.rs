//! Unix sockets, names, IPv6, and what is counted of connections.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;

use crate::support::client::{self, Client, pay, request};
use crate::support::eventually;
use crate::support::sidecar::{Plan, Sidecar, Tables};
use crate::support::upstream::{Act, Gate, Reserved, Upstream, reply};

/// Carries what comes on a Unix socket to an upstream and back, until either side ends.
fn relay(path: &Path, to: SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(to).unwrap());
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || carry(near_too, far_too));
            thread::spawn(move || {
                let (mut from, mut to) = (far, near);
                drop(io::copy(&mut from, &mut to));
                drop(to.shutdown(Shutdown::Both));
            });
        }
    });
}

fn carry(mut from: UnixStream, mut to: TcpStream) {
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Both));
}

/// A sidecar whose upstream is the socket `path`.
fn sidecar_to(path: &Path, tables: &Tables<'_>) -> Sidecar {
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let url = format!("unix:{}", path.display());
    let plan = Plan::new(nowhere, tables).env("RETRYSAFE__UPSTREAM__URL", &url);
    plan.start()
}

fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    (folder, path)
}

#[test]
fn a_unix_socket_is_an_upstream_like_any_other() {
    let (_folder, path) = socket();
    let upstream = Upstream::start(|request, n| match request.target.as_str() {
        "/lost" => vec![Act::Close],
        _ => vec![reply(201, &[], &format!("n={n}"))],
    });
    let sidecar = sidecar_to(&path, &Tables::default());
    let unreachable = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (unreachable.status, unreachable.code().as_str()),
        (502, "upstream_unreachable")
    );
    assert!(
        unreachable
            .header("proxy-status")
            .unwrap()
            .contains("error=destination_unavailable")
    );
    relay(&path, upstream.addr);
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!((first.status, first.text().as_str()), (201, "n=1"));
    assert!(!first.is_replay());
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.is_replay(), again.text().as_str()),
        (true, "n=1"),
        "{again:?}"
    );
    assert_eq!(client::get(sidecar.addr, "/read").text(), "n=2");
    let lost = request("POST", "/lost", &[("Idempotency-Key", "l")], "x");
    for _ in 0..2 {
        let answer = client::send(sidecar.addr, &lost);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (502, "upstream_connection_lost")
        );
        assert_eq!(answer.json()["outcome"], "unknown");
    }
    assert_eq!(upstream.calls(), 3);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.header("host"), Some("api.test"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-host"), Some("api.test"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    let metrics = sidecar.metrics();
    for (result, count) in [("failed", 1), ("refused", 0)] {
        let line = format!("retrysafe_upstream_connects_total{{result=\"{result}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[test]
fn towards_a_unix_socket_the_upstreams_own_host_is_localhost() {
    let (_folder, path) = socket();
    let upstream = Upstream::counting();
    relay(&path, upstream.addr);
    let tables = Tables {
        upstream: "host = \"upstream\"",
        ..Tables::default()
    };
    let sidecar = sidecar_to(&path, &tables);
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    let mut old = Client::connect(sidecar.addr);
    old.write(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(old.answer().unwrap().status, 201);
    for seen in upstream.seen() {
        assert_eq!(seen.header("host"), Some("localhost"));
    }
}

#[test]
fn a_socket_that_nobody_listens_on_any_more_is_refused() {
    let (_folder, path) = socket();
    drop(UnixListener::bind(&path).unwrap());
    let sidecar = sidecar_to(&path, &Tables::default());
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (502, "upstream_unreachable")
    );
    let told = answer.header("proxy-status").unwrap();
    assert!(told.contains("error=connection_refused"), "{told}");
}

#[test]
fn a_socket_whose_backlog_is_full_is_asked_again_until_the_time_is_up() {
    let (_folder, path) = socket();
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&socket2::SockAddr::unix(&path).unwrap())
        .unwrap();
    socket.listen(0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let tables = Tables {
        upstream: "connect_timeout = \"200ms\"",
        ..Tables::default()
    };
    let sidecar = sidecar_to(&path, &tables);
    let answer = pay(sidecar.addr, "k", "x");
    let told = answer.header("proxy-status").unwrap();
    assert!(told.contains("error=connection_timeout"), "{told}");
}

#[test]
fn over_a_unix_socket_too_a_client_that_goes_away_cancels_nothing() {
    let (_folder, path) = socket();
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream =
        Upstream::start(move |_, n| vec![Act::Wait(hold.clone()), reply(201, &[], &n.to_string())]);
    relay(&path, upstream.addr);
    let sidecar = sidecar_to(&path, &Tables::default());
    let mut gone = Client::connect(sidecar.addr);
    gone.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    gone.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    sidecar.wait_metric("retrysafe_upstream_connections", |open| open == 1);
    gate.open();
    let answer = pay(sidecar.addr, "k", "x");
    assert_eq!((answer.text().as_str(), upstream.calls()), ("1", 1));
}

#[test]
fn an_upstream_may_have_an_ipv6_address() {
    let upstream = Reserved::new(std::net::Ipv6Addr::LOCALHOST.into())
        .start(None, |_, n| vec![reply(201, &[], &format!("n={n}"))]);
    let tables = Tables {
        upstream: "host = \"upstream\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").text(), "n=1");
    assert!(pay(sidecar.addr, "k", "x").is_replay());
    let host = format!("[::1]:{}", upstream.addr.port());
    assert_eq!(upstream.seen()[0].header("host"), Some(host.as_str()));
    let metrics = sidecar.metrics();
    let line = "retrysafe_upstream_connects_total{result=\"ok\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

/// One name, two servers one after another: a busy sidecar follows without a restart.
#[test]
fn a_changed_address_of_a_name_is_taken_while_it_runs() {
    let at = |ip, port| TcpListener::bind((ip, port)).unwrap();
    let blue = Upstream::on(at("127.0.0.22", 0), |_, _| vec![reply(201, &[], "blue")]);
    let green = at("127.0.0.23", blue.addr.port());
    let green = Upstream::on(green, |_, _| vec![reply(201, &[], "green")]);
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let name = |ip: &str| std::fs::write(&hosts, format!("{ip} api.internal\n")).unwrap();
    name("127.0.0.22");
    let tables = Tables {
        server: "threads = 1",
        upstream: "pool_max_age = \"200ms\"",
        ..Tables::default()
    };
    let url = format!("http://api.internal:{}", blue.addr.port());
    let plan = Plan::new(blue.addr, &tables).folder(folder.path()).hosts();
    let sidecar = plan.env("RETRYSAFE__UPSTREAM__URL", &url).start();
    assert_eq!(pay(sidecar.addr, "k", "x").text(), "blue");
    name("127.0.0.23");
    // Never idle for long, and the old server answers as before.
    eventually("the new address", || {
        client::get(sidecar.addr, "/").text() == "green"
    });
    let before = blue.calls();
    assert_eq!(pay(sidecar.addr, "l", "x").text(), "green");
    assert!(pay(sidecar.addr, "k", "x").is_replay());
    assert_eq!(blue.calls(), before);
    assert!(green.calls() > 0);
}

#[test]
fn a_name_is_as_good_as_an_address() {
    let upstream = Upstream::counting();
    let url = format!("http://localhost:{}", upstream.addr.port());
    let plan = Plan::new(upstream.addr, &Tables::default());
    let sidecar = plan.env("RETRYSAFE__UPSTREAM__URL", &url).start();
    assert_eq!(pay(sidecar.addr, "k", "x").status, 201);
    assert_eq!(upstream.calls(), 1);
}
