//! The main job, end to end on the file store: enforce, record, replay (R4, R6, R10, R11, R21).

use crate::support::client::{self, pay, request};
use crate::support::redis::Redis;
use crate::support::sidecar::{Sidecar, on_redis, sidecar};
use crate::support::upstream::{Upstream, reply};

#[test]
fn a_retry_gets_the_first_answer_and_nothing_runs_twice() {
    let upstream = Upstream::start(|_, n| {
        let body = format!("{{\"n\":{n}}}");
        vec![reply(
            201,
            &[
                ("Location", "/pay/1"),
                ("Set-Cookie", "a=1"),
                ("Set-Cookie", "b=2"),
            ],
            &body,
        )]
    });
    let sidecar = sidecar(upstream.addr, "");
    let first = pay(sidecar.addr, "k-1", "amount=1");
    assert_eq!((first.status, first.text().as_str()), (201, "{\"n\":1}"));
    assert!(!first.is_replay());
    let again = pay(sidecar.addr, "\"k-1\"", "amount=1");
    assert!(again.is_replay());
    let mut expected = first;
    expected
        .headers
        .retain(|(name, _)| name != "content-length");
    let mut replayed = again;
    replayed
        .headers
        .retain(|(name, _)| name != "content-length" && name != "idempotent-replayed");
    assert_eq!(replayed, expected);
    assert_eq!(upstream.calls(), 1);
    assert_eq!(upstream.seen()[0].header("idempotency-attempt"), Some("1"));
    assert_eq!(upstream.seen()[0].header("idempotency-key"), Some("k-1"));
}

#[test]
fn another_body_under_the_same_key_is_refused_and_the_record_stays() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    pay(sidecar.addr, "k-1", "amount=1");
    let other = pay(sidecar.addr, "k-1", "amount=2");
    assert_eq!(
        (other.status, other.code().as_str()),
        (422, "idempotency_key_reused")
    );
    assert!(other.json()["detail"].as_str().unwrap().contains("body"));
    let with_credentials = request(
        "POST",
        "/pay",
        &[
            ("Idempotency-Key", "k-1"),
            ("Authorization", "Bearer somebody"),
        ],
        "amount=1",
    );
    let other = client::send(sidecar.addr, &with_credentials);
    assert_eq!(other.code(), "idempotency_key_other_credentials");
    assert!(pay(sidecar.addr, "k-1", "amount=1").is_replay());
    assert_eq!(upstream.calls(), 1);
}

#[test]
fn uncovered_methods_and_requests_without_a_key_are_told_apart() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    assert_eq!(client::get(sidecar.addr, "/pay").text(), "{\"n\":1}");
    assert_eq!(client::get(sidecar.addr, "/pay").text(), "{\"n\":2}");
    let missing = client::send(sidecar.addr, &request("POST", "/pay", &[], "x"));
    assert_eq!(
        (missing.status, missing.code().as_str()),
        (400, "idempotency_key_missing")
    );
    assert_eq!(upstream.calls(), 2);
}

#[test]
fn the_store_counts_for_readiness_only_where_it_is_told_to() {
    let Some(mut redis) = Redis::start(&[]) else {
        return;
    };
    let upstream = Upstream::counting();
    let plan = on_redis(upstream.addr, &redis, "");
    let relaxed = plan.start();
    let strict = plan
        .env("RETRYSAFE__HEALTH__READY_REQUIRES_STORE", "true")
        .start();
    let health = |sidecar: &Sidecar, path| client::get(sidecar.health, path).status;
    for sidecar in [&relaxed, &strict] {
        for path in ["/startupz", "/livez", "/readyz"] {
            assert_eq!(health(sidecar, path), 200, "{path}");
        }
    }
    redis.kill();
    for sidecar in [&relaxed, &strict] {
        assert_eq!(pay(sidecar.addr, "k", "x").status, 503);
        sidecar.wait_metric("retrysafe_store_up", |up| up == 0);
    }
    assert_eq!(health(&relaxed, "/readyz"), 200);
    assert_eq!(health(&strict, "/readyz"), 503);
    for path in ["/startupz", "/livez"] {
        assert_eq!(health(&strict, path), 200, "{path}");
    }
    redis.restart(&[]);
    strict.wait_metric("retrysafe_store_up", |up| up == 1);
    assert_eq!(health(&strict, "/readyz"), 200);
}

#[test]
fn a_covered_path_cannot_be_reached_in_disguise() {
    let upstream = Upstream::counting();
    let rest = "[policy]\nmode = \"off\"\n[[route]]\nname = \"pay\"\npath = \"/v1/pay\"\n\
                [route.policy]\nmode = \"enforce\"";
    let sidecar = sidecar(upstream.addr, rest);
    for target in [
        "/v1%2Fpay",
        "/v1%5cpay",
        "/v1//pay",
        "/v1/%70ay",
        "/v1/x/../pay",
        "/v1/x%2f../pay",
    ] {
        let answer = client::send(sidecar.addr, &request("POST", target, &[], "x"));
        assert_eq!(answer.status, 400, "{target}");
    }
    assert_eq!(upstream.calls(), 0);
    let elsewhere = request("POST", "/files/a%2Fb", &[], "x");
    assert_eq!(client::send(sidecar.addr, &elsewhere).status, 201);
}
