//! What is not covered streams both ways (R1, R28).
//!
//! Nothing is held whole; the client's pace is the upstream's. A request that the client library
//! hands back unsent, or one without a body that the upstream did not take, is sent again, at most
//! three times (R29); anything else is answered, once.

use std::pin::pin;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::Proxy;
use super::body::{Body, Passage};
use super::problem::{Code, Problem, UpstreamOutcome};
use super::request::only_chunked;
use super::rewrite;
use super::tunnel::Wish;
use super::upstream::{Connection, HANDOVERS, Needs, SendError, is_bad_answer};

impl Proxy {
    /// Passes a rewritten request on.
    pub(super) async fn pass(
        &self,
        mut head: Parts,
        body: Body,
        mut wish: Option<Wish>,
        needs: Needs,
    ) -> Result<Response<Body>, Problem> {
        if let Some(wish) = &wish {
            wish.ask(&mut head.headers);
        }
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            // Said explicitly: the library takes a GET of unknown length for one without a body.
            let chunked = HeaderValue::from_static("chunked");
            head.headers.insert(header::TRANSFER_ENCODING, chunked);
        }
        // No key protects this request: it may be tried again if its method says so itself
        // (RFC 9110 section 9.2.2).
        let repeatable = head.method.is_idempotent();
        let passage = Passage::new(self.shared.settings.upstream.give_up_after);
        let bare = self.all_of_it(&head, &body);
        let mut request = Request::from_parts(head, body.watched(passage.clone()));
        let within = self.shared.settings.upstream.answer_within;
        for tries in 1..=HANDOVERS {
            let mut connection = self
                .upstream
                .checkout(needs, tries)
                .await
                .map_err(|error| {
                    tracing::warn!(event = "upstream_unreachable", error = %error);
                    not_sent(error.proxy_status())
                })?;
            let sent = Instant::now();
            let mut answer = pin!(connection.send(request));
            // R15: from the last piece of the request on, however long it took to send.
            let answered = loop {
                let by = passage.last().max(sent) + within;
                match timeout_at(by, answer.as_mut()).await {
                    Err(_) if passage.last() + within > by => {}
                    answered => break answered,
                }
            };
            match answered {
                Ok(Ok(response)) => {
                    passage.answer_began();
                    return self.passed(connection, response, wish.take());
                }
                Ok(Err(SendError::NotSent(Some(unsent)))) => request = *unsent,
                Ok(Err(SendError::NotSent(None))) => match &bare {
                    Some(head) => request = Request::from_parts(head.clone(), Body::empty()),
                    // Not sent, but its body went by.
                    None => break,
                },
                Ok(Err(SendError::MaybeSent(_))) if passage.has_stalled() => {
                    let detail = "No piece of the request body came in time.";
                    return Err(Problem::new(Code::RequestTimeout, detail));
                }
                Ok(Err(SendError::MaybeSent(error))) => {
                    return Err(broken(&error).retryable(repeatable));
                }
                Err(_elapsed) => {
                    connection.close();
                    return Err(silent().retryable(repeatable));
                }
            }
        }
        Err(not_sent("connection_terminated"))
    }

    /// R29: the head, where nothing else is needed to send the request again. Only over HTTP/2 does an
    /// upstream say of a request that it did not take it.
    fn all_of_it(&self, head: &Parts, body: &Body) -> Option<Parts> {
        let may_be_told = self.shared.settings.upstream.url.may_speak_http2();
        (may_be_told && body.is_end_stream()).then(|| head.clone())
    }

    fn passed(
        &self,
        connection: Connection,
        response: Response<Incoming>,
        wish: Option<Wish>,
    ) -> Result<Response<Body>, Problem> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.switched(wish, response);
        }
        if !only_chunked(response.headers()) {
            connection.close();
            return Err(Problem::new(
                Code::BadResponse,
                "The upstream's answer has a transfer coding that nobody asked for.",
            )
            .proxy_status("http_response_transfer_coding"));
        }
        let version = response.version();
        let (mut head, incoming) = response.into_parts();
        rewrite::to_client(&mut head, None, self.shared.date());
        let limit = self.shared.settings.upstream.give_up_after;
        Ok(Response::from_parts(
            head,
            Body::stream(incoming, version, limit, Some(connection)),
        ))
    }
}

fn not_sent(proxy_status: &'static str) -> Problem {
    let detail = "The upstream could not be reached; the request was not sent.";
    Problem::new(Code::Unreachable, detail)
        .outcome(UpstreamOutcome::NotExecuted)
        .retry_after(1)
        .proxy_status(proxy_status)
}

fn silent() -> Problem {
    Problem::new(
        Code::UpstreamTimeout,
        "The upstream did not answer in time.",
    )
    .outcome(UpstreamOutcome::Unknown)
    .proxy_status("http_response_timeout")
}

fn broken(error: &hyper::Error) -> Problem {
    let (code, proxy_status, detail) = if is_bad_answer(error) {
        (
            Code::BadResponse,
            "http_protocol_error",
            "The upstream's answer is not valid HTTP.",
        )
    } else {
        (
            Code::ConnectionLost,
            "connection_terminated",
            "The upstream took the request and the connection broke before an answer.",
        )
    };
    Problem::new(code, detail)
        .outcome(UpstreamOutcome::Unknown)
        .proxy_status(proxy_status)
}
