//! HTTP/2 from the client: the rules hold on streams as they do on connections (R13, R15, R27, R30).

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;

use crate::support::PATIENCE;
use crate::support::client::{self, request};
use crate::support::sidecar::{Plan, Sidecar, Tables, sidecar};
use crate::support::upstream::{Act, Upstream};

/// A connection with prior knowledge.
async fn connect(addr: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

fn head(method: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut head = Request::builder().method(method).uri("http://api.test/pay");
    for (name, value) in fields {
        head = head.header(*name, *value);
    }
    head.body(()).unwrap()
}

/// Begins POST `/pay` with the body `x`.
async fn begin(client: &SendRequest<Bytes>, fields: &[(&str, &str)]) -> ResponseFuture {
    let mut client = client.clone().ready().await.unwrap();
    let (answer, mut body) = client.send_request(head("POST", fields), false).unwrap();
    body.send_data(Bytes::from_static(b"x"), true).unwrap();
    answer
}

/// The whole answer: status, whether it is a replay, and the body.
async fn finish(answer: ResponseFuture) -> (u16, bool, String) {
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .unwrap()
        .unwrap();
    let status = answer.status().as_u16();
    let replayed = answer.headers().contains_key("idempotent-replayed");
    let mut text = Vec::new();
    let mut body = answer.into_body();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        text.extend_from_slice(&piece);
    }
    (status, replayed, String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_duplicates_on_one_connection_are_one_execution() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let client = connect(sidecar.addr).await;
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(begin(&client, &[("idempotency-key", "k")]).await);
    }
    sidecar.wait_metric("retrysafe_waiting", |waiting| waiting == 99);
    gate.open();
    let mut replayed = 0;
    for answer in answers {
        let (status, replay, body) = finish(answer).await;
        assert_eq!((status, body.as_str()), (201, "n=1"));
        replayed += u32::from(replay);
    }
    assert_eq!((replayed, upstream.calls()), (99, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_client_resets_cancels_nothing() {
    let (gate, upstream) = Upstream::gated();
    let sidecar = sidecar(upstream.addr, "");
    let client = connect(sidecar.addr).await;
    let answer = begin(&client, &[("idempotency-key", "k")]).await;
    upstream.wait_calls(1);
    drop(answer);
    gate.open();
    let again = finish(begin(&client, &[("idempotency-key", "k")]).await).await;
    assert_eq!(again, (201, true, "n=1".to_owned()));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_over_the_other_version_is_the_same_request() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let client = connect(sidecar.addr).await;
    let crumbs = [
        ("idempotency-key", "k"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
    ];
    let first = finish(begin(&client, &crumbs).await).await;
    assert_eq!((first.0, first.1), (201, false));
    assert_eq!(upstream.seen()[0].header("cookie"), Some("a=1; b=2"));
    let whole = [("Idempotency-Key", "\"k\""), ("Cookie", "a=1; b=2")];
    let again = client::send(sidecar.addr, &request("POST", "/pay", &whole, "x"));
    assert_eq!((again.is_replay(), again.text()), (true, first.2));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_the_authority_is_refused() {
    let upstream = Upstream::counting();
    let sidecar = sidecar(upstream.addr, "");
    let client = connect(sidecar.addr).await;
    for (host, status) in [("api.test", 201), ("API.test", 201), ("evil.test", 400)] {
        let fields = [("idempotency-key", host), ("host", host)];
        assert_eq!(
            finish(begin(&client, &fields).await).await.0,
            status,
            "{host}"
        );
    }
    assert_eq!(upstream.calls(), 2);
}

/// An upstream with an answer of 10 MiB, and one without a body.
fn large_and_none() -> Upstream {
    let piece = vec![b'x'; 1 << 20];
    Upstream::start(move |seen, _| match seen.target.as_str() {
        "/large" => {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n".to_vec();
            vec![Act::Send(head), Act::Repeat(piece.clone(), 10)]
        }
        _ => vec![Act::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())],
    })
}

fn get(path: &str) -> Request<()> {
    let uri = format!("http://api.test{path}");
    Request::builder().uri(uri).body(()).unwrap()
}

fn impatient(upstream: &Upstream) -> Sidecar {
    let tables = Tables {
        server: "write_timeout = \"1s\"",
        ..Tables::default()
    };
    Plan::new(upstream.addr, &tables).start()
}

/// R30: the pace of a client is what this is about. It never pauses for as long as `write_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_little_by_little_is_not_dropped() {
    let upstream = large_and_none();
    let sidecar = impatient(&upstream);
    let mut client = connect(sidecar.addr).await.ready().await.unwrap();
    let (answer, _) = client.send_request(get("/large"), true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut taken = 0;
    // Well more than the windows and the buffers on the way to it hold.
    while taken < 160 << 10 {
        let mut piece = body.data().await.unwrap().expect("it is not dropped");
        while !piece.is_empty() {
            let some = piece.split_to(piece.len().min(4 << 10)).len();
            taken += some;
            tokio::time::sleep(Duration::from_millis(100)).await;
            body.flow_control().release_capacity(some).unwrap();
        }
    }
}

/// One answer rests, others without a body are taken: somebody gets on.
#[tokio::test(flavor = "multi_thread")]
async fn answers_without_a_body_keep_a_connection_beside_one_that_rests() {
    let upstream = large_and_none();
    let sidecar = impatient(&upstream);
    let mut client = connect(sidecar.addr).await.ready().await.unwrap();
    let (answer, _) = client.send_request(get("/large"), true).unwrap();
    let _resting = answer.await.unwrap().into_body();
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (answer, _) = client.send_request(get("/none"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 204);
        client = client.ready().await.unwrap();
    }
}
