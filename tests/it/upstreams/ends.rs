//! Where the two halves of an HTTP/2 exchange end apart: an end that comes after the last octet, an
//! answer that comes before the end of its request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

use crate::support::PATIENCE;
use crate::support::client::{self, Client, pay};
use crate::support::sidecar::{Plan, Sidecar, Tables};

/// An upstream that takes `streams` streams at once, and the connections it had.
async fn upstream<F>(
    streams: u32,
    handle: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut server = h2::server::Builder::new();
                server.max_concurrent_streams(streams);
                let mut h2 = server.handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = h2.accept().await {
                    tokio::spawn(handle(request, respond));
                }
            });
        }
    });
    (addr, connections)
}

fn answer(mut respond: SendResponse<Bytes>, text: &'static str, ends: bool) -> SendStream<Bytes> {
    let head = Response::builder().header("content-length", text.len());
    let mut out = respond
        .send_response(head.body(()).unwrap(), false)
        .unwrap();
    out.send_data(Bytes::from_static(text.as_bytes()), ends)
        .unwrap();
    out
}

fn sidecar_to(addr: SocketAddr) -> Sidecar {
    let tables = Tables {
        // One thread: its connections are counted.
        server: "threads = 1",
        ..Tables::default()
    };
    let plan = Plan::new(addr, &tables);
    plan.env("RETRYSAFE__UPSTREAM__URL", &format!("h2c://{addr}"))
        .start()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_after_the_last_octet_is_waited_for_and_no_reset() {
    let gate = Arc::new(Semaphore::new(0));
    let (over, mut endings) = mpsc::channel(10);
    let held = gate.clone();
    let (addr, connections) = upstream(100, move |_, respond| {
        let (gate, over) = (held.clone(), over.clone());
        async move {
            let mut out = answer(respond, "hello", false);
            let ended = tokio::select! {
                _open = gate.acquire() => out.send_data(Bytes::new(), true).is_ok(),
                _reset = std::future::poll_fn(|cx| out.poll_reset(cx)) => false,
            };
            over.send(ended).await.unwrap();
        }
    })
    .await;
    let sidecar = sidecar_to(addr);
    let to = sidecar.addr;
    for _ in 0..3 {
        // The client has the whole answer, and the handler still works.
        let text = spawn_blocking(move || client::get(to, "/").text());
        assert_eq!(text.await.unwrap(), "hello");
    }
    gate.add_permits(3);
    for _ in 0..3 {
        let ended = tokio::time::timeout(PATIENCE, endings.recv()).await;
        assert_eq!(ended.unwrap(), Some(true), "it was reset");
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_frees_no_place_that_its_upload_still_takes() {
    let (addr, connections) = upstream(1, |request, respond| async move {
        answer(respond, "ok", true);
        let mut body = request.into_body();
        while let Some(Ok(piece)) = body.data().await {
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
    })
    .await;
    let sidecar = sidecar_to(addr);
    let to = sidecar.addr;
    let paid = spawn_blocking(move || {
        let mut upload = Client::connect(to);
        upload.write(b"OPTIONS /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        upload.write(b"5\r\nhello\r\n");
        assert_eq!(upload.answer().unwrap().text(), "ok");
        // The upload goes on; whoever came next would wait for its end, after its lease was checked.
        let paid = pay(to, "k", "x");
        drop(upload);
        paid
    });
    let paid = paid.await.unwrap();
    assert_eq!((paid.status, paid.text().as_str()), (200, "ok"));
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}
