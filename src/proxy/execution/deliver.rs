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
        match (owed, self.reply) {
            (Owed::Feed(feed), _) => feed.finish().await,
            (Owed::Answer(mut response), Some(reply)) => {
                if let Some(status) = status {
                    mark(&mut response, status);
                }
                let Self {
                    outcome,
                    attempt,
                    upstream,
                    ..
                } = self;
                answer(
                    reply,
                    Reply::Answer {
                        response,
                        outcome,
                        attempt,
                        upstream,
                    },
                );
            }
            (Owed::Problem(problem), Some(reply)) => answer(reply, Reply::Problem(problem)),
            (_, None) | (Owed::Nothing, _) => {}
        }
    }

    /// The lease is lost: completed elsewhere: that answer; in flight elsewhere: wait as a
    /// duplicate; else the true answer.
    pub(super) async fn lost(mut self, proxy: &Arc<Proxy>, key: RecordKey, owed: Owed) {
        let read = proxy.store.apply(key, Operation::Read).await;
        if let Ok(Outcome::Held(held)) = read
            && is_answer_or_running(&held, &owed)
            && let Some(reply) = self.reply.take()
        {
            return answer(reply, Reply::Held(held));
        }
        self.deliver(owed, Some("superseded")).await;
    }
}

fn is_answer_or_running(held: &Held, owed: &Owed) -> bool {
    match held.record.state {
        State::Completed { .. } | State::InFlight { .. } => true,
        _ => matches!(owed, Owed::Nothing),
    }
}

/// `Idempotency-Status`.
pub(super) fn mark(response: &mut Response<Body>, status: &'static str) {
    response
        .headers_mut()
        .insert(STATUS, HeaderValue::from_static(status));
}
