//! How a body that is passed on gets along, and what becomes of its connection afterwards.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Version;
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::body::is_cut;
use super::upstream::Connection;

/// How a request body that is passed on gets along.
#[derive(Debug)]
pub struct Passage {
    /// No piece came in time.
    stalled: AtomicBool,
    /// When the last piece went by.
    last: Mutex<Instant>,
    /// The last piece went by.
    done: AtomicBool,
    /// Whether the answer has begun. From then on the two talk, at a pace of their own.
    answered: AtomicBool,
    /// What may lie between two pieces then.
    patience: Duration,
}

impl Passage {
    /// Begins now. `patience`: between two pieces, once the answer has begun.
    pub(super) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            stalled: AtomicBool::new(false),
            done: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
            answered: AtomicBool::new(false),
            patience,
        })
    }

    /// The answer has begun.
    pub(super) fn answer_began(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// What the answer allows between two pieces, once it has begun.
    pub(super) fn allows(&self) -> Option<Duration> {
        let answered = self.answered.load(Ordering::Acquire);
        answered.then_some(self.patience)
    }

    /// Whether the client sent no piece in time.
    pub(super) fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    /// No piece came in time.
    pub(super) fn stalls(&self) {
        self.stalled.store(true, Ordering::Release);
    }

    /// When something last went by, at first when it began.
    pub(super) fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// The last piece went by.
    pub(super) fn ends(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// A piece went by.
    pub(super) fn goes_by(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// After a whole answer. A peer that answered before it had the whole request counts its stream
/// until then: nothing new goes over that connection, where it could wait for a place.
pub(super) fn give_back(connection: Connection, upload: Option<&Passage>) {
    if connection.is_shared() && upload.is_some_and(|upload| !upload.is_done()) {
        connection.close();
    } else {
        connection.give_back();
    }
}

/// Waits for the end of a stream whose octets have all gone by: to drop it now would be a reset,
/// which a handler may meet while it still works.
pub(super) async fn see_off(
    mut incoming: Incoming,
    connection: Connection,
    upload: Option<Arc<Passage>>,
    limit: Duration,
) {
    let end = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx));
    let ended = match tokio::time::timeout(limit, end).await {
        Ok(None) => !is_cut(&incoming, Version::HTTP_2),
        Ok(Some(frame)) => frame.is_ok_and(|frame| frame.is_trailers()),
        Err(_) => false,
    };
    if ended {
        give_back(connection, upload.as_deref());
    }
}
