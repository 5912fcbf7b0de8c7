//! An HTTP/2 upstream with prior knowledge that does what a script says, frame by frame.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{HeaderMap, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::support::PATIENCE;

/// What is done about a request.
#[derive(Debug, Clone)]
pub enum Deed {
    /// Takes the body, answers 201 with this.
    Reply(String),
    /// The same, a piece each so often, with trailers.
    Pieces(usize, Duration),
    /// Takes the body and answers once the gate is open.
    Gated(Gate, String),
    /// Sends body and trailers back.
    Echo,
    /// Answers at once and sends back each piece as it comes.
    Talk,
    /// Never answers.
    Hang,
    /// Resets the stream before anything was looked at.
    Refuse,
    /// Answers the head and some of the body, then resets.
    Break(Reason),
    /// The same, then ends the connection.
    Cut,
    /// Answers with so many octets.
    Pour(usize),
    /// Answers, and lets no further stream begin on the connection.
    Last,
    /// Takes the body and says this, once the gate is open where there is one.
    Say(Answer, Option<Gate>),
}

/// An answer, part by part.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// 200 where it is 0.
    pub status: u16,
    pub fields: Vec<(&'static str, String)>,
    pub data: Bytes,
    pub trailers: Vec<(&'static str, String)>,
}

/// Holds answers back until a test lets them go.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one go.
    pub fn open(&self) {
        self.0.add_permits(1);
    }
}

/// A request as it came.
#[derive(Debug)]
pub struct Seen {
    pub head: Parts,
    /// As far as it was taken.
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.head.headers.get(name)?.to_str().unwrap())
    }
}

type Script = dyn Fn(&Parts, usize) -> Deed + Send + Sync;

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    more: Condvar,
    resets: Mutex<Vec<Reason>>,
    /// Answers that nobody reads any more.
    stalled: AtomicUsize,
    connections: AtomicUsize,
    streams: Option<u32>,
}

pub struct H2Upstream {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

impl H2Upstream {
    pub fn start(script: impl Fn(&Parts, usize) -> Deed + Send + Sync + 'static) -> Self {
        Self::with(None, script)
    }

    /// Takes so many streams at once on a connection.
    pub fn with(
        streams: Option<u32>,
        script: impl Fn(&Parts, usize) -> Deed + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self::on(listener, streams, script)
    }

    /// The same on a socket bound before.
    pub fn on(
        listener: std::net::TcpListener,
        streams: Option<u32>,
        script: impl Fn(&Parts, usize) -> Deed + Send + Sync + 'static,
    ) -> Self {
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            more: Condvar::new(),
            resets: Mutex::default(),
            stalled: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            streams,
        });
        let serving = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _peer) = listener.accept().await.unwrap();
                    serving.connections.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(serving.clone().connection(stream));
                }
            });
        });
        Self { addr, shared }
    }

    pub fn url(&self) -> String {
        format!("h2c://{}", self.addr)
    }

    pub fn calls(&self) -> usize {
        self.shared.seen.lock().unwrap().len()
    }

    pub fn wait_calls(&self, count: usize) {
        let seen = self.shared.seen.lock().unwrap();
        let wait = |seen: &mut Vec<Seen>| seen.len() < count;
        let (seen, late) = self
            .shared
            .more
            .wait_timeout_while(seen, PATIENCE, wait)
            .unwrap();
        assert!(!late.timed_out(), "{} of {count} calls came", seen.len());
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Why streams that hung were reset.
    pub fn stalled(&self) -> usize {
        self.shared.stalled.load(Ordering::Relaxed)
    }

    pub fn resets(&self) -> Vec<Reason> {
        self.shared.resets.lock().unwrap().clone()
    }

    pub fn seen<T>(&self, look: impl FnOnce(&[Seen]) -> T) -> T {
        look(&self.shared.seen.lock().unwrap())
    }
}

impl Shared {
    async fn connection(self: Arc<Self>, stream: TcpStream) {
        let mut builder = h2::server::Builder::new();
        if let Some(streams) = self.streams {
            builder.max_concurrent_streams(streams);
        }
        let Ok(mut h2) = builder.handshake::<_, Bytes>(stream).await else {
            return;
        };
        let (cut, last) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        loop {
            tokio::select! {
                accepted = h2.accept() => {
                    let Some(Ok((request, respond))) = accepted else { return };
                    let (head, body) = request.into_parts();
                    let (deed, at) = {
                        let mut seen = self.seen.lock().unwrap();
                        let at = seen.len();
                        let deed = (self.script)(&head, at + 1);
                        let body = Bytes::new();
                        seen.push(Seen { head, body });
                        self.more.notify_all();
                        (deed, at)
                    };
                    let (shared, cut, last) = (self.clone(), cut.clone(), last.clone());
                    tokio::spawn(async move {
                        match deed {
                            Deed::Say(answer, gate) => shared.say(answer, gate, at, body, respond).await,
                            Deed::Talk => talk(body, respond).await,
                            deed => shared.answer(deed, body, respond, &cut, &last).await,
                        }
                    });
                }
                () = cut.notified() => return,
                () = last.notified() => h2.graceful_shutdown(),
            }
        }
    }

    async fn answer(
        &self,
        deed: Deed,
        mut body: RecvStream,
        mut respond: SendResponse<Bytes>,
        cut: &Notify,
        last: &Notify,
    ) {
        let head = Response::builder().status(201).body(()).unwrap();
        match deed {
            Deed::Reply(text) => {
                take(&mut body).await;
                send(&mut respond, text);
            }
            Deed::Gated(gate, text) => {
                take(&mut body).await;
                gate.0.acquire().await.unwrap().forget();
                send(&mut respond, text);
            }
            Deed::Last => {
                take(&mut body).await;
                send(&mut respond, "last".to_owned());
                last.notify_one();
            }
            Deed::Pieces(count, pause) => {
                take(&mut body).await;
                let mut stream = respond.send_response(head, false).unwrap();
                for _ in 0..count {
                    stream.send_data(Bytes::from_static(b"x"), false).unwrap();
                    tokio::time::sleep(pause).await;
                }
                stream.send_trailers(sum()).unwrap();
            }
            Deed::Echo => {
                let (data, trailers) = take(&mut body).await;
                let mut stream = respond.send_response(head, false).unwrap();
                stream.send_data(data, false).unwrap();
                stream.send_trailers(trailers.unwrap_or_else(sum)).unwrap();
            }
            Deed::Hang => {
                let reason = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
                self.resets.lock().unwrap().extend(reason);
            }
            Deed::Pour(count) => {
                let mut stream = respond.send_response(head, false).unwrap();
                self.pour(&mut stream, count).await;
            }
            Deed::Say(..) | Deed::Talk => unreachable!(),
            Deed::Refuse => respond.send_reset(Reason::REFUSED_STREAM),
            Deed::Break(reason) => {
                take(&mut body).await;
                let mut stream = respond.send_response(head, false).unwrap();
                stream
                    .send_data(Bytes::from_static(b"half"), false)
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_reset(reason);
            }
            Deed::Cut => {
                take(&mut body).await;
                let mut stream = respond.send_response(head, false).unwrap();
                stream
                    .send_data(Bytes::from_static(b"half"), false)
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
                cut.notify_one();
            }
        }
    }
}

impl Shared {
    async fn say(
        &self,
        answer: Answer,
        gate: Option<Gate>,
        at: usize,
        mut body: RecvStream,
        mut respond: SendResponse<Bytes>,
    ) {
        let (data, _trailers) = take(&mut body).await;
        self.seen.lock().unwrap()[at].body = data;
        if let Some(gate) = gate {
            gate.0.acquire().await.unwrap().forget();
        }
        let mut head = Response::builder().status(answer.status.max(200));
        for (name, value) in answer.fields {
            head = head.header(name, value);
        }
        let (data, trailers) = (answer.data, answer.trailers);
        let is_head_alone = data.is_empty() && trailers.is_empty();
        let head = head.body(()).unwrap();
        let mut stream = respond.send_response(head, is_head_alone).unwrap();
        if !data.is_empty() {
            stream.send_data(data, trailers.is_empty()).unwrap();
        }
        if !trailers.is_empty() {
            let fields = trailers
                .into_iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            stream.send_trailers(fields.collect()).unwrap();
        }
    }

    /// Sends as much as the windows take; where they take no more for a while, it has stalled.
    async fn pour(&self, stream: &mut h2::SendStream<Bytes>, mut left: usize) {
        const WHILE: Duration = Duration::from_millis(200);
        while left > 0 {
            stream.reserve_capacity(left);
            let mut capacity = std::pin::pin!(std::future::poll_fn(|cx| stream.poll_capacity(cx)));
            let waited = tokio::time::timeout(WHILE, capacity.as_mut()).await;
            let room = if let Ok(room) = waited {
                room
            } else {
                self.stalled.fetch_add(1, Ordering::Relaxed);
                capacity.await
            };
            let Some(Ok(room)) = room else { return };
            let octets = Bytes::from(vec![b'x'; room.min(left)]);
            left -= octets.len();
            stream.send_data(octets, left == 0).unwrap();
        }
    }
}

async fn talk(mut body: RecvStream, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().status(201).body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    while let Some(Ok(piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).unwrap();
        stream.send_data(piece, false).unwrap();
    }
    // The other side may be gone.
    drop(stream.send_trailers(sum()));
}

fn sum() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), "9".parse().unwrap())])
}

fn send(respond: &mut SendResponse<Bytes>, text: String) {
    let head = Response::builder().status(201).body(()).unwrap();
    let mut stream = respond.send_response(head, false).unwrap();
    // The other side may be gone.
    drop(stream.send_data(text.into(), true));
}

/// All of a body.
pub async fn take(body: &mut RecvStream) -> (Bytes, Option<HeaderMap>) {
    let mut whole = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        whole.extend_from_slice(&data);
    }
    (whole.into(), body.trailers().await.unwrap_or_default())
}
