//! A request's body as it comes in, and what becomes of a body that nobody read (R12, R30).
//!
//! Octets left on a connection would be taken for the next request, so hyper ends it. A client
//! that is not told so sends its next request into a connection that is gone: a small rest is
//! read off, and where that cannot be, the answer says `Connection: close`.

use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{self, HeaderMap};
use http::request::Parts;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::body::{BodyError, is_cut};

/// A rest up to this length is read off.
const SMALL: u64 = 64 * 1024;
/// For so long.
const PATIENCE: Duration = Duration::from_secs(1);

/// The body of one request, until somebody takes it.
#[derive(Debug)]
pub(super) struct Intake {
    body: Option<Incoming>,
    version: Version,
    length: Option<u64>,
    /// The client sends the body only after 100, which reading it would bring about.
    awaits_continue: bool,
    over: bool,
    /// Nothing good is to be expected of it any more.
    spoilt: bool,
}

impl Intake {
    pub(super) fn new(head: &Parts, body: Incoming) -> Self {
        let headers = &head.headers;
        Self {
            over: body.is_end_stream(),
            body: Some(body),
            version: head.version,
            length: content_length(headers),
            awaits_continue: headers.contains_key(header::EXPECT),
            spoilt: false,
        }
    }

    /// As the client announced it.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// What it comes over.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// For passing it on; whoever has it answers for its rest.
    pub(super) fn take(&mut self) -> Option<Incoming> {
        self.body.take()
    }

    /// The next piece; from the first one on the client may have been sent 100.
    pub(super) async fn frame(&mut self) -> Option<Result<Frame<Bytes>, BodyError>> {
        self.awaits_continue = false;
        let body = self.body.as_mut()?;
        let frame = match body.frame().await {
            None if is_cut(body, self.version) => Some(Err(BodyError::Cut)),
            frame => frame.map(|frame| frame.map_err(BodyError::from)),
        };
        self.over |= frame.is_none();
        self.spoilt |= matches!(frame, Some(Err(_)));
        frame
    }

    /// No more is read of it.
    pub(super) fn give_up(&mut self) {
        self.spoilt = true;
    }

    /// Whether the connection can serve another request.
    pub(super) async fn settle(&mut self) -> bool {
        if self.body.is_none() || self.over {
            return true;
        }
        let is_small = self.length.is_some_and(|length| length <= SMALL);
        if self.spoilt || self.awaits_continue || !is_small {
            return false;
        }
        let rest = async { while let Some(Ok(_)) = self.frame().await {} };
        let in_time = timeout(PATIENCE, rest).await.is_ok();
        in_time && self.over && !self.spoilt
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}
