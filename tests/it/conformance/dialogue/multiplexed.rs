//! A step over HTTP/2 with prior knowledge, frame by frame through the `h2` crate.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;

use super::Send;
use crate::conformance::octets::{body, field_value};
use crate::conformance::wire::{Ending, Got};

/// Sends the step's request on a connection of its own and reads the answer.
pub(super) fn exchange(addr: SocketAddr, send: &Send) -> Result<Got, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(talk(addr, send))
}

async fn talk(addr: SocketAddr, send: &Send) -> Result<Got, String> {
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let (client, connection) = h2::client::handshake(stream)
        .await
        .map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    let mut client = client.ready().await.map_err(|error| error.to_string())?;
    let content = body(&send.body)?.unwrap_or_default();
    let (answer, mut sender) = client
        .send_request(request(send)?, content.is_empty())
        .map_err(|e| e.to_string())?;
    if !content.is_empty() {
        sender
            .send_data(Bytes::from(content), true)
            .map_err(|error| error.to_string())?;
    }
    let mut got = Got {
        version: "2".to_owned(),
        ..Got::default()
    };
    let Ok(response) = answer.await else {
        got.ending = Ending::Reset;
        return Ok(got);
    };
    got.status = response.status().as_u16();
    for (name, value) in response.headers() {
        let value = value.as_bytes().iter().copied().map(char::from).collect();
        got.fields.push((name.to_string(), value));
    }
    let mut octets = response.into_body();
    got.ending = Ending::Whole;
    while let Some(piece) = octets.data().await {
        match piece {
            Ok(piece) => got.body.extend_from_slice(&piece),
            Err(_) => got.ending = Ending::Aborted,
        }
    }
    got.total = got.body.len();
    Ok(got)
}

fn request(send: &Send) -> Result<Request<()>, String> {
    let path = send.path.as_deref().ok_or("no path")?;
    let mut request = Request::builder()
        .method(send.method.as_deref().ok_or("no method")?)
        .uri(format!("http://api.example.test{path}"))
        .version(http::Version::HTTP_2);
    for (name, value) in &send.headers {
        request = request.header(name.to_lowercase(), field_value(value)?);
    }
    request.body(()).map_err(|error| error.to_string())
}
