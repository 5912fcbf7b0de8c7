//! What the client is owed, and who takes it (R20).

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{HeaderName, HeaderValue};
use tokio::sync::oneshot;

use super::capture::Feed;
use super::{Reply, answer};
use crate::idempotency::record::{Attempt, State};
use crate::idempotency::transition::Held;
use crate::idempotency::{Operation, Outcome, RecordKey};
use crate::proxy::Proxy;
use crate::proxy::body::Body;
use crate::proxy::problem::Problem;

const STATUS: HeaderName = HeaderName::from_static("idempotency-status");

/// What the client is owed once the record stands.
pub(super) enum Owed {
    Nothing,
    Problem(Problem),
    /// The same, and nothing was sent: whatever is found instead is the better answer.
    Unsent(Problem),
    Answer(Response<Body>),
    /// The last bytes of an answer that is passed on.
    Feed(Feed),
}

/// The client's handler, if it still waits, and what it is told beside the answer.
pub(super) struct Recipient {
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    pub(super) outcome: &'static str,
    pub(super) attempt: Attempt,
    pub(super) upstream: Duration,
}

impl Recipient {
    /// Releases what is owed, marked with `status` where there is one.
    pub(super) async fn deliver(self, owed: Owed, status: Option<&'static str>) {
        match owed {
            Owed::Feed(feed) => feed.finish().await,
            owed => {
                if let (Some(due), Some(reply)) = (self.due(owed, status), self.reply) {
                    answer(reply, due);
                }
            }
        }
    }

    fn due(&self, owed: Owed, status: Option<&'static str>) -> Option<Reply> {
        match owed {
            Owed::Answer(mut response) => {
                if let Some(status) = status {
                    mark(&mut response, status);
                }
                Some(Reply::Answer {
                    response,
                    outcome: self.outcome,
                    attempt: self.attempt,
                    upstream: self.upstream,
                })
            }
            Owed::Problem(problem) | Owed::Unsent(problem) => Some(Reply::Problem {
                problem,
                attempt: self.attempt,
                upstream: self.upstream,
            }),
            Owed::Nothing | Owed::Feed(_) => None,
        }
    }

    /// The lease is lost: completed elsewhere: that answer; in flight elsewhere: wait as a
    /// duplicate; else the true answer. Where nothing was sent the request starts again.
    pub(super) async fn lost(mut self, proxy: &Arc<Proxy>, key: RecordKey, owed: Owed) {
        let read = proxy.store.apply(key, Operation::Read).await;
        let found = match (read, &owed) {
            (Ok(Outcome::Held(held)), Owed::Unsent(_)) => Some(Reply::Held(held)),
            (Ok(Outcome::Absent), Owed::Unsent(_)) => Some(Reply::Absent),
            (Ok(Outcome::Held(held)), Owed::Answer(_) | Owed::Problem(_))
                if is_answer_or_running(&held) =>
            {
                return self.superseded(held, owed);
            }
            _ => None,
        };
        if let Some(found) = found {
            if let Some(reply) = self.reply.take() {
                answer(reply, found);
            }
            return;
        }
        self.deliver(owed, Some("superseded")).await;
    }

    fn superseded(mut self, held: Held, owed: Owed) {
        if let (Some(own), Some(reply)) = (self.due(owed, Some("superseded")), self.reply.take()) {
            let own = Box::new(own);
            answer(reply, Reply::Superseded { held, own });
        }
    }
}

fn is_answer_or_running(held: &Held) -> bool {
    matches!(
        held.record.state,
        State::Completed { .. } | State::InFlight { .. }
    )
}

/// `Idempotency-Status`.
pub(super) fn mark(response: &mut Response<Body>, status: &'static str) {
    response
        .headers_mut()
        .insert(STATUS, HeaderValue::from_static(status));
}
