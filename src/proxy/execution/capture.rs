//! Reads the upstream's answer (R17, R19).
//!
//! Up to `max_response` it is read whole, at the upstream's own pace, whatever the client does. A
//! larger one, an event stream, or any answer under `stream = true` goes to the client as it
//! arrives, its end held back until the record stands; up to the limit it is kept all the same, and
//! beyond it its digest is.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http::{Response, response};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::exchange::{Ended, Exchange, why_stopped};
use super::keeper::Stop;
use super::{Reply, answer};
use crate::idempotency::record::UnknownWhy;
use crate::proxy::body::{Body, Piece, is_cut};
use crate::proxy::budget::Reservation;
use crate::proxy::rewrite;
use crate::proxy::upstream::Connection;
use crate::telemetry::metrics::Label;

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) head: response::Parts,
    pub(super) body: Kept,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) passing: Passing,
}

/// Whether the client gets the answer as it arrives.
#[derive(Debug)]
pub(super) enum Passing {
    /// It gets it whole, once it is recorded.
    Held,
    On(Feed),
    /// It is gone, or was told something else.
    Over,
}

/// What is kept of a body.
#[derive(Debug)]
pub(super) enum Kept {
    /// All of it.
    Whole(Bytes, Reservation),
    /// Its digest: it did not fit.
    Digest([u8; 32]),
}

/// A body being kept, as long as it fits.
#[derive(Debug)]
enum Keeping {
    Whole(BytesMut, Reservation),
    Digest(Sha256),
}

/// What is still owed to a client that gets the answer as it arrives.
#[derive(Debug)]
pub(super) struct Feed {
    sender: mpsc::Sender<Piece>,
    holds_last: bool,
    last: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Feed {
    /// R20: the last bytes, once the record stands. Without this the client's answer breaks off.
    pub(super) async fn finish(self) {
        let frames = [
            self.last.map(Frame::data),
            self.trailers.map(Frame::trailers),
        ];
        let pieces = frames
            .into_iter()
            .flatten()
            .map(Piece::Frame)
            .chain([Piece::End]);
        for piece in pieces {
            if self.sender.send(piece).await.is_err() {
                return;
            }
        }
    }
}

impl Exchange {
    pub(super) async fn capture(
        &mut self,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Ended {
        let version = response.version();
        let (mut head, mut incoming) = response.into_parts();
        let shared = self.job.proxy.shared.clone();
        let policy = &self.job.route.policy;
        rewrite::to_client(&mut head, Some(&policy.replay.marker), shared.date());
        let mut passing = Passing::Held;
        if policy.stream || is_event_stream(&head.headers) {
            passing = self.start_feed(&head);
        }
        let mut keeping = Keeping::Whole(BytesMut::new(), shared.budget.reservation());
        let mut trailers = None;
        loop {
            let frame = match self.next(&mut incoming).await {
                Ok(Some(frame)) => frame,
                Ok(None) if is_cut(&incoming, version) => {
                    connection.close();
                    return Ended::Unknown(UnknownWhy::Truncated);
                }
                Ok(None) => break,
                Err(why) => {
                    connection.close();
                    return Ended::Unknown(why);
                }
            };
            let piece = match frame.into_data() {
                Ok(piece) => piece,
                Err(frame) => {
                    trailers = frame.into_trailers().ok().and_then(rewrite::trailers);
                    continue;
                }
            };
            if let Err(why) = self.take(&head, &mut keeping, &mut passing, piece).await {
                connection.close();
                return Ended::Unknown(why);
            }
        }
        connection.give_back();
        let body = match keeping {
            Keeping::Whole(body, reserved) => Kept::Whole(body.freeze(), reserved),
            Keeping::Digest(digest) => Kept::Digest(digest.finalize().into()),
        };
        if let Passing::On(feed) = &mut passing {
            feed.trailers.clone_from(&trailers);
        }
        Ended::Answered(Box::new(Captured {
            head,
            body,
            trailers,
            passing,
        }))
    }

    /// Keeps a piece while the body fits, and passes it on where the client is being answered.
    async fn take(
        &mut self,
        head: &response::Parts,
        keeping: &mut Keeping,
        passing: &mut Passing,
        piece: Bytes,
    ) -> Result<(), UnknownWhy> {
        let mut begun = None;
        match keeping {
            Keeping::Digest(digest) => digest.update(&piece),
            Keeping::Whole(body, reserved) => match self.fit(body, reserved, &piece) {
                Ok(()) => body.extend_from_slice(&piece),
                Err(reason) => {
                    let labels = Label([("reason", reason)]);
                    self.job
                        .proxy
                        .shared
                        .metrics
                        .not_kept
                        .get_or_create(&labels)
                        .inc();
                    let mut digest = Sha256::new();
                    digest.update(&body);
                    digest.update(&piece);
                    begun = Some(std::mem::take(body).freeze());
                    *keeping = Keeping::Digest(digest);
                }
            },
        }
        if let (Passing::Held, Some(begun)) = (&passing, begun) {
            *passing = self.start_feed(head);
            self.feed(passing, begun).await.map_err(why_stopped)?;
        }
        self.feed(passing, piece).await.map_err(why_stopped)
    }

    /// R19, R30: whether a further piece can be kept.
    fn fit(
        &self,
        body: &BytesMut,
        reserved: &mut Reservation,
        piece: &Bytes,
    ) -> Result<(), &'static str> {
        let limit = usize::try_from(self.job.route.policy.max_response).unwrap_or(usize::MAX);
        if body.len().saturating_add(piece.len()) > limit {
            return Err("size");
        }
        if reserved.grow(piece.len()) {
            Ok(())
        } else {
            Err("budget")
        }
    }

    async fn next(&mut self, incoming: &mut Incoming) -> Result<Option<Frame<Bytes>>, UnknownWhy> {
        let frame = self
            .keeper
            .drive(incoming.frame())
            .await
            .map_err(why_stopped)?;
        self.keeper
            .piece_came(self.job.proxy.shared.settings.upstream.give_up_after);
        match frame.transpose() {
            Ok(frame) => Ok(frame),
            Err(error) => {
                tracing::debug!(event = "answer_broke", error = %error);
                Err(UnknownWhy::Truncated)
            }
        }
    }

    /// The head goes out now; the client may be gone, or have its 504 already.
    fn start_feed(&mut self, head: &response::Parts) -> Passing {
        self.keeper.answering();
        let Some(reply) = self.keeper.reply.take() else {
            return Passing::Over;
        };
        let (sender, body) = Body::fed();
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        // How the names were written, and the reason phrase.
        *response.extensions_mut() = head.extensions.clone();
        self.mark_protection(&mut response);
        let (outcome, attempt) = (self.executed(), self.keeper.lease.attempt());
        let upstream = self.keeper.upstream_time();
        answer(
            reply,
            Reply::Answer {
                response,
                outcome,
                attempt,
                upstream,
            },
        );
        let holds_last = head.headers.contains_key(header::CONTENT_LENGTH);
        Passing::On(Feed {
            sender,
            holds_last,
            last: None,
            trailers: None,
        })
    }

    /// Passes a piece on. Where the length is known the last octets are the end, so one piece is
    /// held back; else the end itself is, and every piece goes at once. A client that takes nothing
    /// for `write_timeout` is dropped; the rest is read all the same.
    async fn feed(&mut self, passing: &mut Passing, piece: Bytes) -> Result<(), Stop> {
        let Passing::On(open) = passing else {
            return Ok(());
        };
        if piece.is_empty() {
            return Ok(());
        }
        let next = if open.holds_last {
            open.last.replace(piece)
        } else {
            Some(piece)
        };
        let Some(next) = next else {
            return Ok(());
        };
        let limit = self.job.proxy.shared.settings.write_timeout;
        let sent = timeout(limit, open.sender.send(Piece::Frame(Frame::data(next))));
        let taken = matches!(self.keeper.drive(sent).await?, Ok(Ok(())));
        // The client's pace is not the upstream's: its time does not count as the upstream's.
        self.keeper
            .piece_came(self.job.proxy.shared.settings.upstream.give_up_after);
        if !taken {
            *passing = Passing::Over;
        }
        Ok(())
    }
}

/// An event stream means nothing when it comes whole.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    let kind = kind
        .unwrap_or_default()
        .split(|octet| *octet == b';')
        .next()
        .unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// `Location` of an answer that is not kept.
pub(super) fn location(head: &response::Parts) -> Option<Bytes> {
    head.headers
        .get(header::LOCATION)
        .map(|value| Bytes::copy_from_slice(value.as_bytes()))
}
