//! The one body type, in both directions.
//!
//! Invariant: an error is never an end. A body that breaks off yields an error, and hyper cuts the
//! connection instead of finishing the message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::budget::Reservation;
use super::expectation::Hold;
use super::passage::{Passage, give_back, see_off};
use super::rewrite;
use super::upstream::Connection;

/// The most that is handed over of a whole body at once.
const PIECE: usize = 64 << 10;

/// Why a body broke off.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The other side's connection failed, or sent no valid body.
    #[error("the body broke off: {0}")]
    Http(#[from] hyper::Error),
    /// No piece for too long.
    #[error("no piece of the body for too long")]
    Idle,
    /// It ended before its end.
    #[error("the body broke off")]
    Cut,
}

/// A message body.
#[derive(Debug)]
pub enum Body {
    /// Known whole.
    Whole(Whole),
    /// Passed on as it arrives.
    Stream(Box<Stream>),
    /// Fed by the task that owns the exchange (R19).
    Fed(Fed),
}

/// A body fed by a task. Only an end that was said is one: where the task goes away before it, the
/// body breaks off.
#[derive(Debug)]
pub struct Fed {
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

/// What a task feeds.
#[derive(Debug)]
pub(super) enum Piece {
    Frame(Frame<Bytes>),
    End,
}

/// A body that is known whole.
#[derive(Debug, Default)]
pub struct Whole {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// Given back once the octets are handed over.
    _held: Option<Reservation>,
}

/// A body that is passed on as it arrives.
#[derive(Debug)]
pub struct Stream {
    /// Until it is dropped.
    incoming: Option<Incoming>,
    version: Version,
    timeout: Duration,
    sleep: Pin<Box<Sleep>>,
    /// Since when a piece was asked for and did not come: only then the clock runs.
    waits: Option<Instant>,
    /// Goes back to its pool at the end of an answer.
    connection: Option<Connection>,
    passage: Option<Arc<Passage>>,
    /// Of an answer: how its request gets along.
    upload: Option<Arc<Passage>>,
    /// It is not read before the upstream wants it.
    hold: Option<Hold>,
}

impl Body {
    /// No octets.
    pub fn empty() -> Self {
        Self::Whole(Whole::default())
    }

    /// These octets.
    pub fn whole(data: Bytes) -> Self {
        Self::Whole(Whole {
            data,
            ..Whole::default()
        })
    }

    /// These octets and trailers, counted in `held` until they are gone.
    pub fn held(data: Bytes, trailers: Option<HeaderMap>, held: Option<Reservation>) -> Self {
        Self::Whole(Whole {
            data,
            trailers,
            _held: held,
        })
    }

    /// A body to be fed through the sender, one piece at a time.
    pub(super) fn fed() -> (mpsc::Sender<Piece>, Self) {
        let (sender, pieces) = mpsc::channel(1);
        (
            sender,
            Self::Fed(Fed {
                pieces,
                ended: false,
            }),
        )
    }

    /// Passes `incoming` on; an error if no piece comes for `timeout`.
    pub fn stream(
        incoming: Incoming,
        version: Version,
        timeout: Duration,
        connection: Option<Connection>,
    ) -> Self {
        let sleep = Box::pin(tokio::time::sleep(timeout));
        Self::Stream(Box::new(Stream {
            incoming: Some(incoming),
            version,
            timeout,
            sleep,
            waits: None,
            connection,
            passage: None,
            upload: None,
            hold: None,
        }))
    }

    /// Whether its sender still has some of it.
    pub(super) fn is_to_come(&self) -> bool {
        matches!(self, Self::Stream(_)) && !self.is_end_stream()
    }

    /// Nothing of it is read before the hold lets go.
    #[must_use]
    pub(super) fn held_back(mut self, hold: Hold) -> Self {
        if let Self::Stream(stream) = &mut self {
            stream.hold = Some(hold);
        }
        self
    }

    /// Lets the sender know how it gets along.
    #[must_use]
    pub fn watched(mut self, passage: Arc<Passage>) -> Self {
        match &mut self {
            Self::Stream(stream) => stream.passage = Some(passage),
            Self::Whole(_) | Self::Fed(_) => passage.ends(),
        }
        self
    }

    /// The answer to a request that gets along like this.
    #[must_use]
    pub(super) fn answers(mut self, upload: Arc<Passage>) -> Self {
        if let Self::Stream(stream) = &mut self {
            stream.upload = Some(upload);
        }
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole.next().map(Ok)),
            Self::Stream(stream) => stream.poll_next(cx),
            Self::Fed(fed) => fed.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.data.is_empty() && whole.trailers.is_none(),
            Self::Stream(stream) => stream.is_at_end(),
            Self::Fed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) if whole.trailers.is_none() => {
                SizeHint::with_exact(whole.data.len() as u64)
            }
            Self::Stream(stream) => {
                (stream.incoming.as_ref()).map_or_else(SizeHint::default, HttpBody::size_hint)
            }
            Self::Whole(_) | Self::Fed(_) => SizeHint::default(),
        }
    }
}

impl Fed {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(self.pieces.poll_recv(cx));
        self.ended = !matches!(piece, Some(Piece::Frame(_)));
        Poll::Ready(match piece {
            Some(Piece::Frame(frame)) => Some(Ok(frame)),
            Some(Piece::End) => None,
            None => Some(Err(BodyError::Cut)),
        })
    }
}

impl Whole {
    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        // Piece by piece: what the library has taken of an answer nobody counts any more.
        let piece = self.data.split_to(self.data.len().min(PIECE));
        Some(Frame::data(piece))
    }
}

impl Stream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(hold) = &mut self.hold {
            ready!(hold.poll(cx));
            self.hold = None;
        }
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(&mut *incoming).poll_frame(cx) {
            if frame.is_none() && is_cut(incoming, self.version) {
                return Poll::Ready(Some(Err(BodyError::Cut)));
            }
            let ends = match &frame {
                None => true,
                Some(frame) => frame.as_ref().is_ok_and(Frame::is_trailers),
            };
            if ends {
                self.ends();
            }
            self.waits = None;
            if let Some(passage) = &self.passage {
                passage.goes_by();
            }
            return Poll::Ready(
                frame.and_then(|frame| frame.map(allowed).map_err(BodyError::from).transpose()),
            );
        }
        if self.waits.is_none() {
            let now = Instant::now();
            self.waits = Some(now);
            self.sleep.as_mut().reset(now + self.timeout);
        }
        ready!(self.sleep.as_mut().poll(cx));
        // R28: the answer may have begun meanwhile.
        let allowed = self.passage.as_ref().and_then(|passage| passage.allows());
        if let (Some(allowed), Some(since)) = (allowed, self.waits)
            && since + allowed > Instant::now()
        {
            self.sleep.as_mut().reset(since + allowed);
            ready!(self.sleep.as_mut().poll(cx));
        }
        if let Some(passage) = &self.passage {
            passage.stalls();
        }
        Poll::Ready(Some(Err(BodyError::Idle)))
    }

    fn is_at_end(&self) -> bool {
        self.incoming.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn ends(&mut self) {
        if let Some(passage) = &self.passage {
            passage.ends();
        }
        if let Some(connection) = self.connection.take() {
            give_back(connection, self.upload.as_deref());
        }
    }

    /// Whether all that was announced came, and only the end itself did not yet.
    fn is_all_but_over(&self) -> bool {
        let left = self
            .incoming
            .as_ref()
            .and_then(|body| body.size_hint().exact());
        self.version == Version::HTTP_2 && left == Some(0)
    }
}

/// Whether a body that says it is over broke off: the library takes a reset of its HTTP/2 stream
/// with `NO_ERROR` for an end.
pub(super) fn is_cut(incoming: &Incoming, version: Version) -> bool {
    let whole = incoming.is_end_stream() || incoming.size_hint().exact() == Some(0);
    version == Version::HTTP_2 && !whole
}

/// R27: trailers without the names that may not stand there; nothing where none is left.
fn allowed(frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
    match frame.into_trailers() {
        Ok(fields) => rewrite::trailers(fields).map(Frame::trailers),
        Err(data) => Some(data),
    }
}

impl Drop for Stream {
    /// hyper stops polling at `is_end_stream`, without asking for the end itself; and where the
    /// length was announced, once all of it came.
    fn drop(&mut self) {
        if self.is_at_end() {
            return self.ends();
        }
        if !self.is_all_but_over() {
            return;
        }
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(incoming), Some(connection), Ok(runtime)) =
            (self.incoming.take(), self.connection.take(), runtime)
        {
            let upload = self.upload.take();
            runtime.spawn(see_off(incoming, connection, upload, self.timeout));
        }
    }
}
