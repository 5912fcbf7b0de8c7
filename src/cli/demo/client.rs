//! The client of the demo: one connection a request, so that hanging up is real.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) replayed: bool,
    pub(super) body: String,
}

fn request(key: &str, body: &str) -> Result<Request<Full<Bytes>>, String> {
    Request::post("/payments")
        .header(HOST, "payments.test")
        .header(CONTENT_TYPE, "application/json")
        .header("Idempotency-Key", key)
        .body(Full::new(Bytes::from(body.to_owned())))
        .map_err(|error| error.to_string())
}

/// Sends one payment and reads the answer.
pub(super) async fn pay(proxy: SocketAddr, key: &str, body: &str) -> Result<Answer, String> {
    let (mut sender, connection) = connect(proxy).await?;
    let driver = tokio::spawn(connection);
    let response = sender
        .send_request(request(key, body)?)
        .await
        .map_err(|error| format!("no answer: {error}"))?;
    let answer = read(response).await;
    driver.abort();
    answer
}

/// Sends one payment and hangs up as soon as `when` is over, without reading an answer.
pub(super) async fn pay_and_hang_up(
    proxy: SocketAddr,
    key: &str,
    body: &str,
    when: impl Future<Output = ()>,
) -> Result<(), String> {
    let (mut sender, connection) = connect(proxy).await?;
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request(key, body)?);
    tokio::select! {
        _ = answer => Err("the answer came before the client could hang up".to_owned()),
        () = when => {
            driver.abort();
            Ok(())
        }
    }
}

type Sender = http1::SendRequest<Full<Bytes>>;
type Connection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

async fn connect(proxy: SocketAddr) -> Result<(Sender, Connection), String> {
    let stream = TcpStream::connect(proxy)
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())
}

async fn read(response: Response<hyper::body::Incoming>) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let replayed = response.headers().contains_key("idempotent-replayed");
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    Ok(Answer {
        status,
        replayed,
        body,
    })
}
