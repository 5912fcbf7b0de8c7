//! What is not covered streams both ways (R1, R28).
//!
//! Nothing is held whole; the client's pace is the upstream's. A request that the client library
//! hands back unsent, or one without a body that the upstream did not take, is sent again, at most
//! three times (R29); anything else is answered, once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

use super::Proxy;
use super::body::Body;
use super::call;
use super::expectation::{Hold, Permission, awaits_continue};
use super::passage::Passage;
use super::problem::{Code, Problem, UpstreamOutcome};
use super::request::only_chunked;
use super::rewrite;
use super::tunnel::Wish;
use super::upstream::{Connection, HANDOVERS, Needs, SendError, is_bad_answer};

/// What a request asks of the way to the upstream.
#[derive(Debug)]
pub(super) struct Asks {
    wish: Option<Wish>,
    needs: Needs,
    awaits_continue: bool,
}

impl Asks {
    /// Of a head that was not rewritten yet; `upgrades`: what it may switch to.
    pub(super) fn of(head: &mut Parts, upgrades: &[String]) -> Self {
        let wish = Wish::of(head, upgrades);
        let needs = match &wish {
            Some(_) => Needs::Http1,
            None if call::is_grpc(head) => Needs::Http2,
            None => Needs::Any,
        };
        Self {
            wish,
            needs,
            awaits_continue: awaits_continue(head),
        }
    }
}

impl Proxy {
    /// Passes a rewritten request on.
    pub(super) async fn pass(
        &self,
        mut head: Parts,
        body: Body,
        asks: Asks,
    ) -> Result<Response<Body>, Problem> {
        let Asks {
            mut wish,
            needs,
            awaits_continue,
        } = asks;
        let awaits_continue = awaits_continue && body.is_to_come();
        if let Some(wish) = &wish {
            wish.ask(&mut head.headers);
        }
        say_chunked(&mut head, &body);
        // No key protects this request: it may be tried again if its method says so itself
        // (RFC 9110 section 9.2.2).
        let repeatable = head.method.is_idempotent();
        let passage = Passage::new(self.shared.settings.upstream.give_up_after);
        let bare = self.all_of_it(&head, &body);
        let mut request = Request::from_parts(head, body.watched(passage.clone()));
        let permission = awaits_continue.then(|| Permission::by(&mut request));
        if let Some(permission) = &permission {
            let hold = Hold::new(permission.clone());
            request = request.map(|body| body.held_back(hold));
        }
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
            if let Some(permission) = permission.as_ref().filter(|_| connection.is_shared()) {
                // The library tells nobody of a 100 over HTTP/2.
                permission.give();
            }
            let answered = in_time(connection.send(request), &passage, within).await;
            match answered {
                Ok(Ok(response)) => {
                    passage.answer_began();
                    let answer = self.begun(connection, response, wish.take(), permission)?;
                    return Ok(answer.map(|body| body.answers(passage)));
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

    /// An answer that came, maybe to a client that was never asked for its body.
    fn begun(
        &self,
        mut connection: Connection,
        response: Response<Incoming>,
        wish: Option<Wish>,
        permission: Option<Arc<Permission>>,
    ) -> Result<Response<Body>, Problem> {
        let unasked = permission.is_some_and(|permission| !permission.is_over());
        if !unasked || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.passed(connection, response, wish);
        }
        connection.only_this();
        let mut answer = self.passed(connection, response, wish)?;
        // The body will not come, or come as something else.
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
        Ok(answer)
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

/// R15: the answer's head within `limit` of the request's last piece, however long it took to send.
async fn in_time<T>(
    answer: impl Future<Output = T>,
    passage: &Passage,
    limit: Duration,
) -> Result<T, Elapsed> {
    let sent = Instant::now();
    let mut answer = pin!(answer);
    loop {
        let by = passage.last().max(sent) + limit;
        match timeout_at(by, answer.as_mut()).await {
            Err(_) if passage.last() + limit > by => {}
            answered => return answered,
        }
    }
}

/// Said explicitly: the library takes a GET of unknown length for one without a body.
fn say_chunked(head: &mut Parts, body: &Body) {
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        head.headers.insert(header::TRANSFER_ENCODING, chunked);
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
