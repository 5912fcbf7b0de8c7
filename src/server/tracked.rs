//! An answer's body, watched while the client takes it (R30).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::io::Turn;

/// The most that goes to an HTTP/2 stream at once. The library asks for the next piece when the
/// client took the one before, so this is what a slow client has to take within `write_timeout`.
const PIECE: usize = 16 << 10;

/// A body whose end is the end of the request's turn.
#[derive(Debug)]
pub(super) struct Tracked<B> {
    body: B,
    turn: Turn,
    /// Of a piece that was too large.
    rest: Bytes,
}

impl<B> Tracked<B> {
    pub(super) fn new(body: B, turn: Turn) -> Self {
        let rest = Bytes::new();
        Self { body, turn, rest }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Tracked<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.turn.is_asked();
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data(),
                ended => {
                    self.turn.offers();
                    return Poll::Ready(ended);
                }
            };
            match frame {
                Ok(data) => self.rest = data,
                Err(trailers) => {
                    self.turn.offers();
                    return Poll::Ready(Some(Ok(trailers)));
                }
            }
        }
        let most = if self.turn.is_shared() {
            PIECE
        } else {
            usize::MAX
        };
        let count = self.rest.len().min(most);
        let piece = self.rest.split_to(count);
        self.turn.offers();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(of_body.lower().saturating_add(rest));
        hint
    }
}
