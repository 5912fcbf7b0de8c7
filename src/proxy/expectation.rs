//! R28: `Expect: 100-continue` of an uncovered request, whose upstream decides whether it wants the body.
//!
//! Reading the client's body makes the library send 100 (Continue). So the body is held back until the
//! upstream's own 100 came, or for as long as any client would wait; and after a final answer for good.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{Request, StatusCode, Version};
use tokio::time::Sleep;

/// Many servers never say 100 (RFC 9110 section 10.1.1); clients wait no longer than this either.
const WAIT: Duration = Duration::from_secs(1);

/// Whether the upstream wants the body.
#[derive(Debug, Default)]
pub(super) struct Permission(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    said: Option<Said>,
    waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Yes,
    No,
}

/// A body that waits for its permission.
#[derive(Debug)]
pub(super) struct Hold {
    permission: Arc<Permission>,
    clock: Pin<Box<Sleep>>,
}

/// Whether the client sends its body only when asked for it. HTTP/1.0 has no such thing.
pub(super) fn awaits_continue(head: &Parts) -> bool {
    head.version != Version::HTTP_10 && expects_continue(&head.headers)
}

fn expects_continue(headers: &HeaderMap) -> bool {
    let expected = headers.get(header::EXPECT);
    expected.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

impl Permission {
    /// Given by the upstream's 100.
    pub(super) fn by<B>(request: &mut Request<B>) -> Arc<Self> {
        let permission = Arc::new(Self::default());
        let told = permission.clone();
        hyper::ext::on_informational(request, move |interim| {
            if interim.status() == StatusCode::CONTINUE {
                told.give();
            }
        });
        permission
    }

    /// The body is wanted.
    pub(super) fn give(&self) {
        self.say(Said::Yes);
    }

    /// The answer is there. Whether the body was asked for before.
    pub(super) fn is_over(&self) -> bool {
        self.say(Said::No) == Said::Yes
    }

    /// The first word stands; answers which that was.
    fn say(&self, word: Said) -> Said {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = *state.said.get_or_insert(word);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        said
    }

    fn poll(&self, cx: &Context<'_>) -> Option<Said> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.said.is_none() {
            state.waker = Some(cx.waker().clone());
        }
        state.said
    }
}

impl Hold {
    pub(super) fn new(permission: Arc<Permission>) -> Self {
        Self {
            permission,
            clock: Box::pin(tokio::time::sleep(WAIT)),
        }
    }

    /// Ready once the body may be read; after a refusal never.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.as_mut().poll(cx).is_ready() {
            self.permission.give();
        }
        match self.permission.poll(cx) {
            Some(Said::Yes) => Poll::Ready(()),
            Some(Said::No) | None => Poll::Pending,
        }
    }
}
