//! Reads the upstream's answer (R17, R19).
//!
//! Up to `max_response` it is read whole, at the upstream's own pace, whatever the client does.
//! Beyond that it goes to the client as it arrives, with the last piece held back until the record
//! stands, and only its digest is kept.

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
use crate::proxy::body::{Body, Piece};
use crate::proxy::budget::Reservation;
use crate::proxy::rewrite;
use crate::proxy::upstream::Connection;
use crate::telemetry::metrics::Label;

/// An answer, read to its end.
#[derive(Debug)]
pub(super) enum Captured {
    /// It fits.
    Whole {
        head: response::Parts,
        body: Bytes,
        trailers: Option<HeaderMap>,
        reserved: Option<Reservation>,
    },
    /// It did not fit, and went by.
    TooLarge {
        head: response::Parts,
        digest: [u8; 32],
        feed: Option<Feed>,
    },
}

impl Captured {
    pub(super) fn head(&self) -> &response::Parts {
        match self {
            Self::Whole { head, .. } | Self::TooLarge { head, .. } => head,
        }
    }
}

/// What is still owed to a client that gets the answer as it arrives.
#[derive(Debug)]
pub(super) struct Feed {
    sender: mpsc::Sender<Piece>,
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
        let (mut head, mut incoming) = response.into_parts();
        let shared = self.job.proxy.shared.clone();
        let marker = &self.job.route.policy.replay.marker;
        rewrite::to_client(&mut head, Some(marker), shared.date());
        let limit = usize::try_from(self.job.route.policy.max_response).unwrap_or(usize::MAX);
        let mut reserved = shared.budget.reservation();
        let mut body = BytesMut::new();
        let mut trailers = None;
        loop {
            let frame = match self.next(&mut incoming).await {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(why) => {
                    connection.close();
                    return Ended::Unknown(why);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let fits = body.len().saturating_add(data.len()) <= limit;
                    if !fits || !reserved.grow(data.len()) {
                        let reason = if fits { "budget" } else { "size" };
                        shared
                            .metrics
                            .not_kept
                            .get_or_create(&Label([("reason", reason)]))
                            .inc();
                        let begun = body.freeze();
                        return self
                            .pass_on(connection, head, incoming, [begun, data])
                            .await;
                    }
                    body.extend_from_slice(&data);
                }
                Err(frame) => trailers = frame.into_trailers().ok().and_then(rewrite::trailers),
            }
        }
        connection.give_back();
        let reserved = Some(reserved);
        Ended::Answered(Captured::Whole {
            head,
            body: body.freeze(),
            trailers,
            reserved,
        })
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

    /// R19: the rest goes to the client as it arrives.
    async fn pass_on(
        &mut self,
        connection: Connection,
        head: response::Parts,
        mut incoming: Incoming,
        begun: [Bytes; 2],
    ) -> Ended {
        let mut feed = self.start_feed(&head);
        let mut digest = Sha256::new();
        let mut trailers = None;
        for piece in begun {
            digest.update(&piece);
            if let Err(stop) = self.feed(&mut feed, piece).await {
                connection.close();
                return Ended::Unknown(why_stopped(stop));
            }
        }
        loop {
            let piece = match self.next(&mut incoming).await {
                Ok(Some(frame)) => frame.into_data(),
                Ok(None) => break,
                Err(why) => {
                    connection.close();
                    return Ended::Unknown(why);
                }
            };
            match piece {
                Ok(piece) => {
                    digest.update(&piece);
                    if let Err(stop) = self.feed(&mut feed, piece).await {
                        connection.close();
                        return Ended::Unknown(why_stopped(stop));
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok().and_then(rewrite::trailers),
            }
        }
        connection.give_back();
        if let Some(feed) = &mut feed {
            feed.trailers = trailers;
        }
        Ended::Answered(Captured::TooLarge {
            head,
            digest: digest.finalize().into(),
            feed,
        })
    }

    /// The head goes out now; the client may be gone, or have its 504 already.
    fn start_feed(&mut self, head: &response::Parts) -> Option<Feed> {
        self.keeper.answering();
        let reply = self.keeper.reply.take()?;
        let (sender, body) = Body::fed();
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers.clone();
        let attempt = self.keeper.lease.attempt();
        self.mark_protection(&mut response);
        answer(
            reply,
            Reply::Answer {
                response,
                outcome: self.executed(),
                attempt,
                upstream: self.keeper.upstream_time(),
            },
        );
        Some(Feed {
            sender,
            last: None,
            trailers: None,
        })
    }

    /// Sends the piece held back before, holds this one back. A client that takes nothing for
    /// `write_timeout` is dropped; the rest is read all the same.
    async fn feed(&mut self, feed: &mut Option<Feed>, piece: Bytes) -> Result<(), Stop> {
        let Some(open) = feed else { return Ok(()) };
        if piece.is_empty() {
            return Ok(());
        }
        let Some(previous) = open.last.replace(piece) else {
            return Ok(());
        };
        let limit = self.job.proxy.shared.settings.write_timeout;
        let sent = timeout(limit, open.sender.send(Piece::Frame(Frame::data(previous))));
        // The client's pace is not the upstream's: its time does not count as the upstream's.
        let taken = matches!(self.keeper.drive(sent).await?, Ok(Ok(())));
        self.keeper
            .piece_came(self.job.proxy.shared.settings.upstream.give_up_after);
        if !taken {
            *feed = None;
        }
        Ok(())
    }
}

/// `Location` of an answer that is not kept.
pub(super) fn location(head: &response::Parts) -> Option<Bytes> {
    head.headers
        .get(header::LOCATION)
        .map(|value| Bytes::copy_from_slice(value.as_bytes()))
}
