//! The sample payments API: knows nothing of idempotency, charges whenever it is asked to.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Longest request it reads.
const LIMIT: usize = 64 * 1024;
/// How long a payment takes.
const WORK: Duration = Duration::from_millis(150);

/// The running API.
#[derive(Debug, Clone)]
pub(super) struct Api {
    pub(super) address: SocketAddr,
    books: Arc<Books>,
}

#[derive(Debug)]
struct Books {
    payments: AtomicUsize,
    begun: watch::Sender<usize>,
}

impl Api {
    pub(super) async fn start() -> io::Result<Self> {
        let listener = super::listen().await?;
        let address = listener.local_addr()?;
        let books = Arc::new(Books {
            payments: AtomicUsize::new(0),
            begun: watch::Sender::new(0),
        });
        let serving = books.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, serving.clone()));
            }
        });
        Ok(Self { address, books })
    }

    /// Payments made so far.
    pub(super) fn payments(&self) -> usize {
        self.books.payments.load(Ordering::Acquire)
    }

    /// Returns once `count` payments were begun.
    pub(super) async fn begun(&self, count: usize) {
        let mut begun = self.books.begun.subscribe();
        let _ended = begun.wait_for(|begun| *begun >= count).await.is_err();
    }
}

async fn serve(mut stream: TcpStream, books: Arc<Books>) {
    while let Ok(Some(request)) = read_request(&mut stream).await {
        if answer(&mut stream, &request, &books).await.is_err() {
            return;
        }
    }
}

async fn answer(stream: &mut TcpStream, request: &str, books: &Books) -> io::Result<()> {
    if !request.starts_with("POST /payments ") {
        return write(stream, "404 Not Found", "{\"error\":\"POST /payments\"}").await;
    }
    books.begun.send_modify(|begun| *begun += 1);
    tokio::time::sleep(WORK).await;
    let number = books.payments.fetch_add(1, Ordering::AcqRel) + 1;
    let body = format!("{{\"payment\":\"pay_{number}\",\"charged\":true}}");
    if request.contains("\"die\"") {
        // The money is taken, the answer breaks off.
        stream
            .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"paym")
            .await?;
        stream.shutdown().await?;
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    write(stream, "201 Created", &body).await
}

async fn write(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await
}

/// One request with its body; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut octets = Vec::new();
    loop {
        if let Some(request) = whole(&octets) {
            return Ok(Some(request));
        }
        if octets.len() > LIMIT || stream.read_buf(&mut octets).await? == 0 {
            return Ok(None);
        }
    }
}

fn whole(octets: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(octets).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    (body.len() >= length).then_some(text)
}
