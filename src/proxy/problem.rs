//! R32, R33: the one table from what went wrong to what the client gets.

use std::fmt::Write as _;

use http::header::{self, HeaderValue};
use http::{HeaderName, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::body::Body;
use crate::idempotency::record::HeldProblem;

/// What the upstream may have done, where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamOutcome {
    /// Still running; a retry waits or replays.
    Pending,
    /// Nobody knows.
    Unknown,
    /// Carried out.
    Executed,
    /// Provably not carried out.
    NotExecuted,
}

/// The codes of R33.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// 400
    KeyMissing,
    /// 400
    KeyInvalid,
    /// 400
    Malformed,
    /// 408
    RequestTimeout,
    /// 409
    InProgress,
    /// 410
    NotKept,
    /// 413
    BodyTooLarge,
    /// 417
    ExpectationFailed,
    /// 422
    KeyReused,
    /// 422
    OtherCredentials,
    /// 501
    MethodNotSupported,
    /// 502
    OutcomeUnknown,
    /// 502
    Unreachable,
    /// 502
    ConnectionLost,
    /// 502
    BadResponse,
    /// 503
    StoreUnavailable,
    /// 503
    Overloaded,
    /// 504
    UpstreamTimeout,
}

impl Code {
    /// Code, status, title, and whether the same key may be tried again.
    fn row(self) -> (&'static str, u16, &'static str, bool) {
        self.clients_row().unwrap_or_else(|| self.our_row())
    }

    /// What the client has to change, or to wait for.
    fn clients_row(self) -> Option<(&'static str, u16, &'static str, bool)> {
        Some(match self {
            Self::KeyMissing => (
                "idempotency_key_missing",
                400,
                "Idempotency key missing",
                false,
            ),
            Self::KeyInvalid => (
                "idempotency_key_invalid",
                400,
                "Idempotency key invalid",
                false,
            ),
            Self::Malformed => ("malformed_request", 400, "Malformed request", false),
            Self::RequestTimeout => ("request_timeout", 408, "Request body too slow", true),
            Self::InProgress => (
                "idempotency_request_in_progress",
                409,
                "Request in progress",
                true,
            ),
            Self::NotKept => (
                "idempotency_response_not_kept",
                410,
                "Response not kept",
                false,
            ),
            Self::BodyTooLarge => (
                "request_body_too_large",
                413,
                "Request body too large",
                false,
            ),
            Self::ExpectationFailed => ("expectation_failed", 417, "Expectation failed", false),
            Self::KeyReused => (
                "idempotency_key_reused",
                422,
                "Idempotency key reused",
                false,
            ),
            Self::OtherCredentials => (
                "idempotency_key_other_credentials",
                422,
                "Key of other credentials",
                false,
            ),
            Self::MethodNotSupported => {
                ("method_not_supported", 501, "Method not supported", false)
            }
            _ => return None,
        })
    }

    /// What went wrong behind the client.
    fn our_row(self) -> (&'static str, u16, &'static str, bool) {
        match self {
            Self::Unreachable => ("upstream_unreachable", 502, "Upstream unreachable", true),
            Self::ConnectionLost => (
                "upstream_connection_lost",
                502,
                "Upstream connection lost",
                false,
            ),
            Self::BadResponse => (
                "upstream_bad_response",
                502,
                "Upstream response invalid",
                false,
            ),
            Self::StoreUnavailable => (
                "idempotency_store_unavailable",
                503,
                "Idempotency store unavailable",
                true,
            ),
            Self::Overloaded => ("overloaded", 503, "Overloaded", true),
            Self::UpstreamTimeout => ("upstream_timeout", 504, "Upstream timeout", true),
            _ => ("idempotency_outcome_unknown", 502, "Outcome unknown", false),
        }
    }

    /// The member `code`, and the outcome in metrics and logs.
    pub(super) fn name(self) -> &'static str {
        self.row().0
    }
}

/// An answer of our own.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// Which.
    pub code: Code,
    detail: String,
    retryable: bool,
    outcome: Option<UpstreamOutcome>,
    retry_after: Option<u32>,
    proxy_status: Option<&'static str>,
    members: Map<String, Value>,
}

impl Problem {
    /// A problem with its table row's defaults. `detail` says what to do.
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retryable: code.row().3,
            outcome: None,
            retry_after: None,
            proxy_status: None,
            members: Map::new(),
        }
    }

    /// 400 `malformed_request`.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Code::Malformed, detail)
    }

    /// What the upstream may have done.
    pub(super) fn outcome(mut self, outcome: UpstreamOutcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// The same for a request with a key, with the warning of R32 where it is open.
    pub(super) fn outcome_of_key(mut self, outcome: UpstreamOutcome) -> Self {
        if matches!(outcome, UpstreamOutcome::Pending | UpstreamOutcome::Unknown) {
            self.detail.push_str(NO_NEW_KEY);
        }
        self.outcome(outcome)
    }

    /// Whether the same key may be tried again.
    pub(super) fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Whole seconds, at least 1.
    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds.max(1));
        self
    }

    /// The error type of `Proxy-Status` (RFC 9209).
    pub(super) fn proxy_status(mut self, error: &'static str) -> Self {
        self.proxy_status = Some(error);
        self
    }

    /// A member of its own.
    pub(super) fn member(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// R18: what a client is told when nobody knows the outcome, first and again.
    pub(super) fn unknown(problem: HeldProblem, retryable: bool) -> Self {
        let new = |code, detail| Self::new(code, detail);
        let (problem, proxy_status) = match problem {
            HeldProblem::OutcomeUnknown => (
                new(
                    Code::OutcomeUnknown,
                    "The request was passed on and its outcome was never learned.",
                ),
                None,
            ),
            HeldProblem::ConnectionLost => (
                new(
                    Code::ConnectionLost,
                    "The upstream took the request and the connection broke before a whole answer.",
                ),
                Some("connection_terminated"),
            ),
            HeldProblem::BadResponse => (
                new(
                    Code::BadResponse,
                    "The upstream took the request and answered with something that is no valid \
                     answer to it.",
                ),
                Some("http_protocol_error"),
            ),
            HeldProblem::Timeout => (
                new(
                    Code::UpstreamTimeout,
                    "The upstream took the request and did not answer within the time allowed.",
                ),
                Some("http_response_timeout"),
            ),
        };
        let problem = problem
            .outcome_of_key(UpstreamOutcome::Unknown)
            .retryable(retryable);
        Self {
            proxy_status,
            ..problem
        }
    }

    /// What to do.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the same key may be tried again.
    pub(super) fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// What the upstream may have done, where it matters.
    pub(super) fn upstream_outcome(&self) -> Option<UpstreamOutcome> {
        self.outcome
    }

    /// The response. `docs_url` is the route's.
    pub(super) fn into_response(self, docs_url: Option<&str>) -> Response<Body> {
        let (name, status, title, _) = self.code.row();
        let type_uri = match docs_url {
            Some(base) => format!("{base}{name}"),
            None => format!("urn:retrysafe:problem:{name}"),
        };
        let mut document = json!({
            "type": type_uri,
            "title": title,
            "status": status,
            "detail": self.detail,
            "code": name,
            "retryable": self.retryable,
        });
        if let Some(document) = document.as_object_mut() {
            if let Some(outcome) = self.outcome {
                document.insert("outcome".to_owned(), outcome_name(outcome).into());
            }
            document.extend(self.members);
        }
        let mut response = Response::new(Body::whole(document.to_string().into()));
        *response.status_mut() =
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let fixed = |text: &'static str| HeaderValue::from_static(text);
        headers.insert(header::CONTENT_TYPE, fixed("application/problem+json"));
        headers.insert(header::CONTENT_LANGUAGE, fixed("en"));
        headers.insert(header::CACHE_CONTROL, fixed("no-store"));
        let link = docs_url.map(|_| format!("<{type_uri}>; rel=\"describedby\""));
        if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
            headers.insert(header::LINK, link);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(error) = self.proxy_status {
            let mut text = String::from("retrysafe; error=");
            // Writing into a String cannot fail.
            let _ignored = write!(text, "{error}");
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(HeaderName::from_static("proxy-status"), value);
            }
        }
        response
    }
}

/// R32: said wherever the outcome is open, or the key is somebody else's.
pub(super) const NO_NEW_KEY: &str =
    " Do not repeat the operation under a new key: it may then be carried out twice.";

/// The member `outcome`.
pub(super) fn outcome_name(outcome: UpstreamOutcome) -> &'static str {
    match outcome {
        UpstreamOutcome::Pending => "pending",
        UpstreamOutcome::Unknown => "unknown",
        UpstreamOutcome::Executed => "executed",
        UpstreamOutcome::NotExecuted => "not_executed",
    }
}
