//! R32, R33: what a gRPC call is told that got no answer of the upstream.

use bytes::Bytes;

use super::grpc::{MESSAGE, Told, UNARY, begin, call, fields, finish, said, sidecar_to, with_key};
use super::h2_server::{Answer, Deed, Gate, H2Upstream};
use crate::support::client::{self, request};
use crate::support::sidecar::{Plan, Sidecar, Tables};

async fn send(sidecar: &Sidecar, fields: &[(&str, &str)], body: &[u8]) -> Told {
    let answer = begin(sidecar.addr, "/pkg.Service/Method", fields, body).await;
    finish(answer).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn r28_a_body_that_is_not_one_message_never_reaches_the_upstream() {
    let upstream = H2Upstream::start(|_, n| Deed::Say(said(n, 0, &[]), None));
    let sidecar = sidecar_to(&upstream, "", UNARY);
    let two = [MESSAGE, MESSAGE].concat();
    for body in [
        &b""[..],
        b"\0\0\0\0",
        &two[..],
        &MESSAGE[..9],
        b"\x02\0\0\0\0",
    ] {
        let told = send(&sidecar, &[("idempotency-key", "k")], body).await;
        told.is_problem("3", "malformed_request");
    }
    assert_eq!(upstream.calls(), 0);
    // The key is as it was.
    let told = with_key(sidecar.addr, "k").await;
    assert_eq!(told.last("grpc-status"), Some("0"));
    assert!(!told.is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn r33_the_refusals_of_a_covered_call() {
    let gate = Gate::closed();
    let hold = gate.clone();
    let upstream = H2Upstream::start(move |head, n| {
        let gate = (head.headers["idempotency-key"] == "slow").then(|| hold.clone());
        Deed::Say(said(n, 0, &[]), gate)
    });
    let rest = format!("{UNARY}\nmax_request = \"64KiB\"\nin_flight_wait = \"0s\"");
    let sidecar = sidecar_to(&upstream, "", &rest);
    let missing = call(sidecar.addr, &[]).await;
    missing.is_problem("3", "idempotency_key_missing");
    assert_eq!(missing.field("retrysafe-retryable"), Some("false"));
    let told = send(&sidecar, &[("idempotency-key", "a b,c")], MESSAGE).await;
    told.is_problem("3", "idempotency_key_invalid");
    let long = [vec![0, 0, 1, 0, 0], vec![7; 65536]].concat();
    let told = send(&sidecar, &[("idempotency-key", "long")], &long).await;
    told.is_problem("8", "request_body_too_large");
    let connection = [("idempotency-key", "k"), ("expect", "200-ok")];
    let told = send(&sidecar, &connection, MESSAGE).await;
    told.is_problem("3", "expectation_failed");

    let told = with_key(sidecar.addr, "k").await;
    assert_eq!(told.last("grpc-status"), Some("0"));
    let told = send(&sidecar, &[("idempotency-key", "k")], b"\0\0\0\0\x01x").await;
    told.is_problem("9", "idempotency_key_reused");
    let other = [("idempotency-key", "k"), ("authorization", "Bearer x")];
    let told = send(&sidecar, &other, MESSAGE).await;
    told.is_problem("9", "idempotency_key_other_credentials");

    let fields = [("idempotency-key", "slow")];
    let running = begin(sidecar.addr, "/pkg.Service/Method", &fields, MESSAGE).await;
    upstream.wait_calls(2);
    let told = with_key(sidecar.addr, "slow").await;
    told.is_problem("10", "idempotency_request_in_progress");
    assert_eq!(told.field("retry-after"), Some("1"));
    assert_eq!(told.field("retrysafe-outcome"), Some("pending"));
    assert_eq!(told.field("retrysafe-retryable"), Some("true"));
    gate.open();
    let told = finish(running).await.unwrap();
    assert_eq!(told.last("grpc-status"), Some("0"));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn r33_an_outcome_that_nobody_knows_is_never_unavailable() {
    let upstream = H2Upstream::start(|head, _| match head.uri.path() {
        "/hang" => Deed::Hang,
        "/cut" => Deed::Cut,
        _ => Deed::Refuse,
    });
    let lines = "answer_within = \"300ms\"\ngive_up_after = \"300ms\"";
    let sidecar = sidecar_to(&upstream, lines, UNARY);
    for (path, status, code) in [
        ("/hang", "4", "upstream_timeout"),
        ("/cut", "2", "upstream_connection_lost"),
        ("/refused", "2", "upstream_connection_lost"),
    ] {
        let before = upstream.calls();
        for _ in 0..2 {
            let fields = [("idempotency-key", path)];
            let answer = begin(sidecar.addr, path, &fields, MESSAGE).await;
            let told = finish(answer).await.unwrap();
            told.is_problem(status, code);
            let message = told.field("grpc-message").unwrap();
            assert!(message.contains("under a new key"), "{message}");
        }
        assert_eq!(upstream.calls() - before, 1, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r32_an_upstream_out_of_reach_is_unavailable_to_covered_and_passed_calls() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    for (rest, fields) in [
        (UNARY, &[("idempotency-key", "k")][..]),
        ("", &[]),
        ("[policy]\nmode = \"off\"", &[]),
    ] {
        let tables = Tables {
            rest,
            ..Tables::default()
        };
        let plan =
            Plan::new(addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &format!("h2c://{addr}"));
        let sidecar = plan.start();
        let told = call(sidecar.addr, fields).await;
        told.is_problem("14", "upstream_unreachable");
        assert_eq!(told.field("retrysafe-outcome"), Some("not_executed"));
        assert_eq!(told.field("retry-after"), Some("1"));
        let proxy = told.field("proxy-status").unwrap();
        assert!(proxy.contains("connection_refused"), "{proxy}");
        // Anything else is told in JSON.
        let octets = request("POST", "/pay", &[("Idempotency-Key", "j")], "x");
        let answer = client::send(sidecar.addr, &octets);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (502, "upstream_unreachable")
        );
        assert_eq!(answer.header("retrysafe-code"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r28_refuse_takes_no_call_and_leaves_other_requests_alone() {
    let upstream = H2Upstream::start(|_, n| Deed::Reply(format!("n={n}")));
    let sidecar = sidecar_to(&upstream, "", "[policy]\ngrpc = \"refuse\"");
    for fields in [&[][..], &[("idempotency-key", "k")]] {
        let told = call(sidecar.addr, fields).await;
        told.is_problem("12", "method_not_supported");
    }
    assert_eq!(upstream.calls(), 0);
    let answer = client::pay(sidecar.addr, "k", "x");
    assert_eq!((answer.status, answer.text().as_str()), (201, "n=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_a_call_without_a_key_is_treated_as_the_policy_says() {
    let upstream = H2Upstream::start(|_, n| Deed::Say(said(n, 10, &[]), None));
    let pass = sidecar_to(&upstream, "", &format!("{UNARY}\nkey.missing = \"pass\""));
    // It streams through, unary or not.
    let two = [MESSAGE, MESSAGE].concat();
    for n in 1..=2 {
        let told = send(&pass, &[], &two).await;
        assert_eq!(told.body, Bytes::from(format!("\0\0\0\0\x03n={n}")));
    }
    upstream.seen(|seen| assert_eq!(seen[1].body, Bytes::from(two)));
    let generate = sidecar_to(
        &upstream,
        "",
        &format!("{UNARY}\nkey.missing = \"generate\""),
    );
    let told = call(generate.addr, &[]).await;
    assert_eq!(told.last("grpc-status"), Some("10"));
    assert!(told.field("idempotency-key").is_some());
    let told = send(&generate, &[], b"none").await;
    told.is_problem("3", "malformed_request");
    assert!(told.field("idempotency-key").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_the_end_of_a_record_is_announced_on_calls_too() {
    let upstream = H2Upstream::start(|_, _| {
        let mut fields = fields();
        fields.push(("grpc-status", "3".to_owned()));
        let answer = Answer {
            fields,
            ..Answer::default()
        };
        Deed::Say(answer, None)
    });
    let rest = format!("{UNARY}\nreplay.announce_expiry = true");
    let sidecar = sidecar_to(&upstream, "", &rest);
    for replayed in [false, true] {
        let told = with_key(sidecar.addr, "k").await;
        assert_eq!(told.field("grpc-status"), Some("3"));
        assert_eq!((told.is_replay(), told.trailers.as_ref()), (replayed, None));
        assert!(told.field("idempotency-expires").is_some());
    }
    assert_eq!(upstream.calls(), 1);
}
