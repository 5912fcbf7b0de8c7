//! What the upstream can do to an exchange, and what becomes of the key (R15 to R19, R24).

use std::net::{Ipv4Addr, TcpListener};

use crate::support::client::{self, Client, pay, request};
use crate::support::sidecar::{Plan, Tables, sidecar};
use crate::support::upstream::{Act, Gate, Reserved, Upstream, reply};

/// An upstream whose first call ends in `first`; the others are answered.
fn first_then_fine(first: impl Fn() -> Vec<Act> + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |_, n| {
        if n == 1 {
            first()
        } else {
            vec![reply(200, &[], "fine")]
        }
    })
}

fn sends(addr: std::net::SocketAddr, method: &str) -> client::Answer {
    client::send(
        addr,
        &request(method, "/thing", &[("Idempotency-Key", "k")], "x"),
    )
}

#[test]
fn an_upstream_that_dies_after_the_request_leaves_a_post_or_patch_held() {
    let half = b"HTTP/1.1 201 X\r\nContent-Length: 10\r\n\r\nhalf".to_vec();
    let cut = vec![Act::Send(half), Act::Close];
    let garbage = vec![Act::Send(b"nonsense\r\n\r\n".to_vec()), Act::Close];
    let coded = b"HTTP/1.1 201 X\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let coded = vec![Act::Send(coded.to_vec())];
    let (lost, bad) = ("upstream_connection_lost", "upstream_bad_response");
    for (method, act, code) in [
        ("POST", vec![Act::Close], lost),
        ("PATCH", vec![Act::Close], lost),
        ("POST", vec![Act::Reset], lost),
        ("PATCH", cut.clone(), lost),
        ("POST", cut, lost),
        ("POST", garbage, bad),
        ("POST", coded, bad),
    ] {
        let upstream = first_then_fine(move || act.clone());
        let sidecar = sidecar(upstream.addr, "");
        let first = sends(sidecar.addr, method);
        assert_eq!((first.status, first.code().as_str()), (502, code));
        assert_eq!(first.json()["outcome"], "unknown");
        let again = sends(sidecar.addr, method);
        assert_eq!((again.status, again.code().as_str()), (502, code));
        assert_eq!(again.json()["retryable"], false);
        assert!(again.json()["detail"].as_str().unwrap().contains("new key"));
        assert_eq!(upstream.calls(), 1, "{method}");
        sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    }
}

#[test]
fn a_put_or_delete_whose_outcome_is_unknown_runs_again_as_attempt_2() {
    for method in ["PUT", "DELETE"] {
        let upstream = first_then_fine(|| vec![Act::Close]);
        let sidecar = sidecar(upstream.addr, "");
        let first = sends(sidecar.addr, method);
        assert_eq!(first.code(), "upstream_connection_lost", "{method}");
        assert_eq!(first.json()["retryable"], true);
        assert_eq!(sends(sidecar.addr, method).text(), "fine");
        assert!(sends(sidecar.addr, method).is_replay());
        let attempts: Vec<_> = upstream
            .seen()
            .iter()
            .map(|seen| seen.header("idempotency-attempt").unwrap().to_owned())
            .collect();
        assert_eq!(attempts, ["1", "2"], "{method}");
    }
}

#[test]
fn a_slow_answer_is_504_for_the_client_and_replayed_when_it_came() {
    let (gate, upstream) = Upstream::gated_with("late");
    let tables = Tables {
        upstream: "answer_within = \"300ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (first.status, first.code().as_str()),
        (504, "upstream_timeout")
    );
    assert_eq!(first.json()["outcome"], "pending");
    assert_eq!(first.header("retry-after"), Some("1"));
    gate.open();
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.text().as_str()), (201, "late"));
    assert!(again.is_replay());
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn an_exchange_that_is_given_up_is_unresolved_with_the_same_problem_again() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = first_then_fine(move || vec![Act::Wait(hold.clone())]);
    let tables = Tables {
        upstream: "answer_within = \"200ms\"\ngive_up_after = \"200ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").code(), "upstream_timeout");
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (504, "upstream_timeout")
    );
    assert_eq!(again.json()["outcome"], "unknown");
    assert_eq!(again.json()["retryable"], false);
    assert_eq!(upstream.calls(), 1);
    gate.open();
}

#[test]
fn a_connection_lost_after_the_504_repeats_what_the_first_client_was_told() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = first_then_fine(move || vec![Act::Wait(hold.clone()), Act::Close]);
    let tables = Tables {
        upstream: "answer_within = \"200ms\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    assert_eq!(pay(sidecar.addr, "k", "x").json()["outcome"], "pending");
    gate.open();
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (504, "upstream_timeout")
    );
    assert_eq!(again.json()["outcome"], "unknown");
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn a_client_gone_while_it_is_being_answered_finds_its_answer_recorded() {
    let body = "x".repeat(900_000);
    let sent = body.clone();
    let upstream = Upstream::start(move |_, _| vec![reply(201, &[], &sent)]);
    let sidecar = sidecar(upstream.addr, "");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    upstream.wait_calls(1);
    client.reset();
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.is_replay(), again.body.len()), (true, body.len()));
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn what_was_not_sent_runs_at_the_next_try() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let sidecar = sidecar(addr, "");
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (first.status, first.code().as_str()),
        (502, "upstream_unreachable")
    );
    assert_eq!(first.json()["retryable"], true);
    let upstream = Upstream::on(TcpListener::bind(addr).unwrap(), |_, _| {
        vec![reply(201, &[], "ok")]
    });
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.is_replay()), (201, false));
    assert_eq!(upstream.seen()[0].header("idempotency-attempt"), Some("2"));
}

#[test]
fn an_idle_connection_that_the_upstream_closed_costs_nothing() {
    // Each answer is followed by a close that the proxy learns of while the connection is idle.
    let upstream = Upstream::start(|_, n| vec![reply(201, &[], &n.to_string()), Act::Close]);
    let sidecar = sidecar(upstream.addr, "");
    for n in 1..=20 {
        let answer = pay(sidecar.addr, &format!("k-{n}"), "x");
        assert_eq!((answer.status, answer.text()), (201, n.to_string()));
    }
    assert_eq!(upstream.calls(), 20);
}

#[test]
fn a_released_status_lets_the_next_try_run() {
    let upstream = first_then_fine(|| vec![reply(429, &[("Retry-After", "3")], "later")]);
    let sidecar = sidecar(upstream.addr, "");
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (first.status, first.header("retry-after")),
        (429, Some("3"))
    );
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!((again.status, again.is_replay()), (200, false));
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn an_answer_over_the_limit_is_delivered_whole_and_then_gone() {
    let body = "0123456789".repeat(50_000);
    let sent = body.clone();
    let upstream = Upstream::start(move |_, _| vec![reply(201, &[("Location", "/x/1")], &sent)]);
    let sidecar = sidecar(upstream.addr, "[policy]\nmax_response = \"100KiB\"");
    let first = pay(sidecar.addr, "k", "x");
    assert_eq!((first.status, first.body.len()), (201, body.len()));
    assert_eq!(first.text(), body);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(
        (again.status, again.code().as_str()),
        (410, "idempotency_response_not_kept")
    );
    let problem = again.json();
    assert_eq!(
        (&problem["original_status"], &problem["original_location"]),
        (&201.into(), &"/x/1".into())
    );
    assert!(
        problem["original_digest"]
            .as_str()
            .unwrap()
            .starts_with("sha-256:")
    );
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn an_answer_over_the_limit_that_breaks_off_is_cut_for_the_client_too() {
    let mut half = b"HTTP/1.1 201 X\r\nContent-Length: 300000\r\n\r\n".to_vec();
    half.extend(std::iter::repeat_n(b'x', 200_000));
    let upstream = first_then_fine(move || vec![Act::Send(half.clone()), Act::Close]);
    let sidecar = sidecar(upstream.addr, "[policy]\nmax_response = \"100KiB\"");
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    assert_eq!(client.answer(), None, "a cut answer must not look whole");
    assert_eq!(pay(sidecar.addr, "k", "x").json()["outcome"], "unknown");
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn an_answer_under_way_that_the_drain_cuts_does_not_look_whole() {
    let gate = Gate::default();
    let hold = gate.clone();
    let upstream = Upstream::start(move |_, _| {
        let mut begun = b"HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n".to_vec();
        begun.extend(std::iter::repeat_n(b'x', 200_000));
        begun.extend(b"\r\n5\r\nagain\r\n");
        vec![Act::Send(begun), Act::Wait(hold.clone())]
    });
    let tables = Tables {
        server: "drain = \"200ms\"",
        rest: "[policy]\nmax_response = \"100KiB\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    sidecar.wait_metric("retrysafe_not_kept_total{reason=\"size\"}", |count| {
        count == 1
    });
    sidecar.signal("TERM");
    assert_eq!(client.answer(), None, "a cut answer must not look whole");
    gate.open();
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_the_upstream() {
    let body = "x".repeat(8 << 20);
    let upstream = Upstream::start(move |_, _| vec![reply(201, &[], &body)]);
    let tables = Tables {
        server: "write_timeout = \"300ms\"",
        rest: "[policy]\nmax_response = \"64KiB\"",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k")], "x"));
    upstream.wait_calls(1);
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    let again = pay(sidecar.addr, "k", "x");
    assert_eq!(again.code(), "idempotency_response_not_kept");
    drop(client);
}

#[test]
fn more_exchanges_than_allowed_are_refused_before_the_claim() {
    let (gate, upstream) = Upstream::gated_with("ok");
    let tables = Tables {
        upstream: "max_exchanges = 1",
        ..Tables::default()
    };
    let sidecar = Plan::new(upstream.addr, &tables).start();
    let mut client = Client::connect(sidecar.addr);
    client.write(&request("POST", "/pay", &[("Idempotency-Key", "k-1")], "x"));
    upstream.wait_calls(1);
    let other = pay(sidecar.addr, "k-2", "x");
    assert_eq!((other.status, other.code().as_str()), (503, "overloaded"));
    gate.open();
    assert_eq!(client.answer().unwrap().status, 201);
    sidecar.wait_metric("retrysafe_in_flight", |running| running == 0);
    assert_eq!(pay(sidecar.addr, "k-2", "x").status, 201);
}

#[test]
fn a_further_try_that_is_not_sent_leaves_the_lost_outcome_as_open_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let lost = Upstream::start(|_, _| vec![Act::Close]);
    let mut first = Plan::new(lost.addr, &Tables::default())
        .folder(folder.path())
        .start();
    let put = |body: &str| request("PUT", "/pay", &[("Idempotency-Key", "k")], body);
    let answer = client::send(first.addr, &put("one"));
    assert_eq!(answer.code(), "upstream_connection_lost");
    first.kill();
    let down = Reserved::new(Ipv4Addr::LOCALHOST.into());
    let second = Plan::new(down.addr, &Tables::default())
        .folder(folder.path())
        .start();
    let answer = client::send(second.addr, &put("one"));
    assert_eq!(answer.code(), "upstream_unreachable");
    // The first try may have been carried out.
    assert_eq!(answer.json()["outcome"], "unknown");
    assert_eq!(answer.json()["retryable"], true);
    let upstream = down.start(None, |_, _| vec![reply(200, &[], "done")]);
    // Never two payloads under one key.
    let other = client::send(second.addr, &put("two"));
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(client::send(second.addr, &put("one")).text(), "done");
    assert_eq!(upstream.calls(), 1);
    assert_eq!(upstream.seen()[0].header("idempotency-attempt"), Some("3"));
}

#[test]
fn a_further_try_that_is_released_leaves_the_lost_outcome_as_open_as_it_was() {
    let upstream = Upstream::start(|_, n| match n {
        1 => vec![Act::Close],
        2 => vec![reply(429, &[("Retry-After", "1")], "later")],
        _ => vec![reply(200, &[], "done")],
    });
    let sidecar = sidecar(upstream.addr, "");
    let put = |body: &str| request("PUT", "/pay", &[("Idempotency-Key", "k")], body);
    let answer = client::send(sidecar.addr, &put("one"));
    assert_eq!(answer.code(), "upstream_connection_lost");
    // "Not carried out" speaks of the second try; the first may have been.
    let answer = client::send(sidecar.addr, &put("one"));
    assert_eq!((answer.status, answer.text().as_str()), (429, "later"));
    // Never two payloads under one key.
    let other = client::send(sidecar.addr, &put("two"));
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(client::send(sidecar.addr, &put("one")).text(), "done");
    assert_eq!(client::send(sidecar.addr, &put("one")).text(), "done");
    assert_eq!(upstream.calls(), 3);
}
