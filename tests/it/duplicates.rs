//! Duplicates at once, and clients that go away (R13, R15).

use std::thread;

use crate::support::client::{self, Client, pay, request};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::{Act, Gate, Upstream, reply};

fn waiting(sidecar: &Sidecar, count: u64) {
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting >= count);
}

#[test]
fn two_hundred_at_once_are_one_execution_and_equal_answers() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let addr = sidecar.addr;
    let tries: Vec<_> = (0..200)
        .map(|_| thread::spawn(move || pay(addr, "k", "x")))
        .collect();
    waiting(&sidecar, 199);
    gate.open();
    let answers: Vec<_> = tries
        .into_iter()
        .map(|handle| handle.join().unwrap())
        .collect();
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 201 && answer.text() == "n=1")
    );
    assert_eq!(
        answers.iter().filter(|answer| answer.is_replay()).count(),
        199
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn with_mixed_bodies_the_losers_get_422_at_once() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "mine"));
    upstream.wait_calls(1);
    let others: Vec<_> = (0..20)
        .map(|n| thread::spawn(move || pay(addr, "k", &format!("other {n}"))))
        .collect();
    for other in others {
        assert_eq!(other.join().unwrap().code(), "idempotency_key_reused");
    }
    gate.open();
    assert_eq!(first.join().unwrap().status, 201);
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_duplicate_that_may_not_wait_gets_409_and_says_when_to_come_again() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "[policy]\nin_flight_wait = \"0s\"");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let other = pay(addr, "k", "x");
    assert_eq!(
        (other.status, other.code().as_str()),
        (409, "idempotency_request_in_progress")
    );
    assert_eq!(other.header("retry-after"), Some("1"));
    gate.open();
    first.join().unwrap();
    assert!(pay(addr, "k", "x").is_replay());
}

#[test]
fn prefer_wait_lowers_the_wait() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let hurried = request(
        "POST",
        "/pay",
        &[("Idempotency-Key", "k"), ("Prefer", "wait=0")],
        "x",
    );
    assert_eq!(client::send(addr, &hurried).status, 409);
    gate.open();
    first.join().unwrap();
}

#[test]
fn too_many_waiters_get_409_at_once() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "[policy]\nmax_waiters_per_key = 2");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let two: Vec<_> = (0..2)
        .map(|_| thread::spawn(move || pay(addr, "k", "x")))
        .collect();
    waiting(&sidecar, 2);
    assert_eq!(pay(addr, "k", "x").status, 409);
    gate.open();
    first.join().unwrap();
    assert!(
        two.into_iter()
            .all(|handle| handle.join().unwrap().is_replay())
    );
}

#[test]
fn who_waited_for_a_released_key_gets_409_with_the_upstreams_delay() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        vec![
            Act::Wait(hold.clone()),
            reply(429, &[("Retry-After", "7")], "later"),
        ]
    });
    let sidecar = sidecar(upstream.addr, "");
    let addr = sidecar.addr;
    let first = thread::spawn(move || pay(addr, "k", "x"));
    upstream.wait_calls(1);
    let second = thread::spawn(move || pay(addr, "k", "x"));
    waiting(&sidecar, 1);
    gate.open();
    assert_eq!(first.join().unwrap().status, 429);
    let second = second.join().unwrap();
    assert_eq!(
        (second.status, second.header("retry-after")),
        (409, Some("7"))
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_client_that_resets_while_the_upstream_works_changes_nothing() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    client.reset();
    sidecar.wait_metric("retrysafe_connections", |open| open == 0);
    gate.open();
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.text().as_str()), (201, "n=1"));
    assert!(again.is_replay());
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_client_that_is_gone_while_connecting_leaves_the_key_free() {
    // A listener whose queue is full: the proxy's connection attempt hangs.
    let listener = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )
    .unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let listener: std::net::TcpListener = listener.into();
    let addr = listener.local_addr().unwrap();
    let fills: Vec<_> = (0..2)
        .map(|_| {
            let socket = socket2::Socket::new(
                socket2::Domain::IPV4,
                socket2::Type::STREAM,
                Some(socket2::Protocol::TCP),
            )
            .unwrap();
            socket.set_nonblocking(true).unwrap();
            let _pending = socket.connect(&addr.into());
            socket
        })
        .collect();
    // Only the client's going away can end the attempt in time.
    let tables = Tables {
        upstream: "connect_timeout = \"10m\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 1);
    client.reset();
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    drop(fills);
    let upstream = Upstream::on(listener, |_, _| vec![reply(201, &[], "ok")]);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(
        upstream
            .seen()
            .iter()
            .filter(|seen| !seen.method.is_empty())
            .count(),
        1
    );
}

#[test]
fn a_client_that_half_closes_still_gets_its_answer() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    client.half_close();
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(upstream.calls(), 1);
}
