//! R28, R30: calls in which both sides talk, and calls whose body does not end.

use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::Request;

use super::grpc::{MESSAGE, finish};
use super::h2_server::{Deed, H2Upstream};
use crate::support::PATIENCE;
use crate::support::sidecar::{Plan, Sidecar, Tables};

fn sidecar_to(upstream: &H2Upstream, rest: &str) -> Sidecar {
    let tables = Tables {
        server: "body_timeout = \"200ms\"",
        rest,
        ..Tables::default()
    };
    let plan = Plan::new(upstream.addr, &tables).env("RETRYSAFE__UPSTREAM__URL", &upstream.url());
    plan.start()
}

/// Begins a call whose body is left open.
async fn open(sidecar: &Sidecar, key: Option<&str>) -> (ResponseFuture, SendStream<Bytes>) {
    let stream = tokio::net::TcpStream::connect(sidecar.addr).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let mut head = Request::post("http://api.test/pkg.Service/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(key) = key {
        head = head.header("idempotency-key", key);
    }
    let head = head.body(()).unwrap();
    client.send_request(head, false).unwrap()
}

async fn next(body: &mut RecvStream) -> Bytes {
    let piece = tokio::time::timeout(PATIENCE, body.data()).await;
    piece.unwrap().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn r28_a_client_may_be_silent_once_the_answer_has_begun() {
    let upstream = H2Upstream::start(|_, _| Deed::Talk);
    let sidecar = sidecar_to(&upstream, "");
    let (answer, mut upload) = open(&sidecar, None).await;
    upload.send_data(Bytes::from_static(b"a"), false).unwrap();
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap();
    let mut body = answer.unwrap().into_body();
    assert_eq!(next(&mut body).await, "a");
    // How long it says nothing is what this is about.
    tokio::time::sleep(Duration::from_millis(700)).await;
    upload.send_data(Bytes::from_static(b"b"), true).unwrap();
    assert_eq!(next(&mut body).await, "b");
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["x-sum"], "9");
}

#[tokio::test(flavor = "multi_thread")]
async fn r30_a_call_whose_body_does_not_end_is_told_so() {
    let upstream = H2Upstream::start(|_, _| Deed::Hang);
    let unary = sidecar_to(&upstream, "[policy]\ngrpc = \"unary\"");
    // One whole message, and no end.
    let (answer, mut upload) = open(&unary, Some("k")).await;
    upload.send_data(MESSAGE.into(), false).unwrap();
    let told = finish(answer).await.unwrap();
    told.is_problem("4", "request_timeout");
    assert_eq!(told.field("retrysafe-retryable"), Some("true"));
    assert_eq!(upstream.calls(), 0);
    let pass = sidecar_to(&upstream, "");
    let (answer, mut upload) = open(&pass, None).await;
    upload.send_data(MESSAGE.into(), false).unwrap();
    finish(answer)
        .await
        .unwrap()
        .is_problem("4", "request_timeout");
}
