//! R1, R28, R32: gRPC calls: which requests are, and what they are told instead of a document.
//!
//! Invariant: UNAVAILABLE is only said of a request that was not passed on: gRPC clients repeat it
//! by themselves. What an answer of the upstream means is `idempotency/grpc.rs`.

use std::fmt::Write as _;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Response, Version};

use super::body::Body;
use super::problem::{Code, Problem, outcome_name};
use crate::idempotency::grpc::is_one_message;
use crate::idempotency::headers::{accepts_trailers, retain};
use crate::idempotency::policy::{Grpc, Policy};

/// R1: a gRPC call, whose outcome comes in trailers, whatever the status.
pub(super) fn is_grpc(head: &Parts) -> bool {
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let rest = content_type.strip_prefix("application/grpc");
    let named = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';', ' ']));
    let is_post = head.version == Version::HTTP_2 && head.method == Method::POST;
    is_post && named && accepts_trailers(&head.headers)
}

/// R17: whether a covered request is a unary call, judged by its gRPC status.
pub(super) fn is_unary(head: &Parts, policy: &Policy) -> bool {
    policy.grpc == Grpc::Unary && is_grpc(head)
}

/// R28: `grpc = "refuse"`.
pub(super) fn is_refused(head: &Parts, policy: &Policy) -> bool {
    policy.grpc == Grpc::Refuse && is_grpc(head)
}

/// R28: what such a call is told.
pub(super) fn refused() -> Problem {
    Problem::new(
        Code::MethodNotSupported,
        "gRPC calls are not accepted here.",
    )
}

/// R28: a body that is not one message is no unary call's.
pub(super) fn one_message(body: &[u8]) -> Result<(), Problem> {
    if is_one_message(body) {
        return Ok(());
    }
    Err(Problem::malformed(
        "Only unary gRPC calls are covered here: the body must be exactly one length-prefixed \
         message.",
    ))
}

/// R32: a problem as gRPC says it, in a head without anything after it (Trailers-Only). `response`
/// is what any other request would get; fields like Retry-After stay.
pub(super) fn trailers_only(problem: &Problem, response: Response<Body>) -> Response<Body> {
    let mut headers = response.into_parts().0.headers;
    let of_documents = [header::CONTENT_LANGUAGE, header::CACHE_CONTROL];
    retain(&mut headers, |name| !of_documents.contains(name));
    let content_type = HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, content_type);
    let said = HeaderValue::from(status_of(problem.code));
    headers.insert(HeaderName::from_static("grpc-status"), said);
    let name = problem.code.name();
    let message = encoded(&format!("{name}: {}", problem.detail()));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    members(problem, &mut headers);
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = headers;
    response
}

/// What a program needs, so that it reads no message.
fn members(problem: &Problem, headers: &mut HeaderMap) {
    let mut tell = |name, value| {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    };
    tell("retrysafe-code", problem.code.name());
    let retryable = if problem.is_retryable() {
        "true"
    } else {
        "false"
    };
    tell("retrysafe-retryable", retryable);
    if let Some(outcome) = problem.upstream_outcome() {
        tell("retrysafe-outcome", outcome_name(outcome));
    }
}

/// R33: the gRPC status of a code.
fn status_of(code: Code) -> u16 {
    const UNKNOWN: u16 = 2;
    const INVALID_ARGUMENT: u16 = 3;
    const DEADLINE_EXCEEDED: u16 = 4;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const FAILED_PRECONDITION: u16 = 9;
    const ABORTED: u16 = 10;
    const UNIMPLEMENTED: u16 = 12;
    const UNAVAILABLE: u16 = 14;
    const DATA_LOSS: u16 = 15;
    match code {
        Code::KeyMissing | Code::KeyInvalid | Code::Malformed | Code::ExpectationFailed => {
            INVALID_ARGUMENT
        }
        Code::RequestTimeout | Code::UpstreamTimeout => DEADLINE_EXCEEDED,
        Code::InProgress => ABORTED,
        // FAILED_PRECONDITION would say that nothing was done.
        Code::NotKept => DATA_LOSS,
        Code::BodyTooLarge => RESOURCE_EXHAUSTED,
        // PERMISSION_DENIED would make clients come again with fresh credentials: others still.
        Code::KeyReused | Code::OtherCredentials => FAILED_PRECONDITION,
        Code::MethodNotSupported => UNIMPLEMENTED,
        Code::OutcomeUnknown | Code::ConnectionLost | Code::BadResponse => UNKNOWN,
        Code::Unreachable | Code::StoreUnavailable | Code::Overloaded => UNAVAILABLE,
    }
}

/// `grpc-message`: UTF-8, percent-encoded but for what can be printed.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for octet in text.bytes() {
        if (b' '..=b'~').contains(&octet) && octet != b'%' {
            out.push(char::from(octet));
        } else {
            // Writing into a String cannot fail.
            let _ignored = write!(out, "%{octet:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::StatusCode;

    use super::*;
    use crate::idempotency::record::HeldProblem;
    use crate::proxy::problem::UpstreamOutcome;

    fn head(version: Version, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/pkg.Service/Method").version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn grpc_is_what_says_so_over_http_2_and_takes_trailers() {
        let grpc = |version, content_type, te| {
            is_grpc(&head(
                version,
                &[("content-type", content_type), ("te", te)],
            ))
        };
        for content_type in [
            "application/grpc",
            "Application/GRPC+proto",
            "application/grpc; x",
        ] {
            assert!(grpc(Version::HTTP_2, content_type, "trailers"));
            assert!(grpc(Version::HTTP_2, content_type, "gzip, Trailers"));
            assert!(!grpc(Version::HTTP_11, content_type, "trailers"));
            assert!(!grpc(Version::HTTP_2, content_type, "gzip"));
        }
        for content_type in ["application/json", "application/grpc-web", "text/grpc", ""] {
            assert!(!grpc(Version::HTTP_2, content_type, "trailers"));
        }
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        let mut head = head(Version::HTTP_2, &fields);
        assert!(is_grpc(&head));
        head.method = Method::PUT;
        assert!(!is_grpc(&head));
    }

    #[test]
    fn r28_a_call_is_unary_where_the_policy_says_so() {
        let fields = [("content-type", "application/grpc"), ("te", "trailers")];
        let head = head(Version::HTTP_2, &fields);
        for (grpc, unary) in [
            (Grpc::Pass, false),
            (Grpc::Unary, true),
            (Grpc::Refuse, false),
        ] {
            let policy = Policy {
                grpc,
                ..Policy::default()
            };
            assert_eq!(is_unary(&head, &policy), unary);
        }
    }

    fn told(problem: &Problem, name: &str) -> Option<String> {
        let response = problem
            .clone()
            .into_response(Some("https://docs.example/p/"));
        let response = trailers_only(problem, response);
        assert_eq!(response.status(), StatusCode::OK);
        assert!(http_body::Body::is_end_stream(response.body()));
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn r32_a_problem_is_trailers_only() {
        let problem = Problem::new(Code::Unreachable, "50% of \u{fc}\n")
            .outcome(UpstreamOutcome::NotExecuted)
            .retry_after(7)
            .proxy_status("connection_refused");
        for (name, value) in [
            ("content-type", Some("application/grpc")),
            ("grpc-status", Some("14")),
            (
                "grpc-message",
                Some("upstream_unreachable: 50%25 of %C3%BC%0A"),
            ),
            ("retrysafe-code", Some("upstream_unreachable")),
            ("retrysafe-retryable", Some("true")),
            ("retrysafe-outcome", Some("not_executed")),
            ("retry-after", Some("7")),
            ("proxy-status", Some("retrysafe; error=connection_refused")),
            (
                "link",
                Some("<https://docs.example/p/upstream_unreachable>; rel=\"describedby\""),
            ),
            ("content-language", None),
            ("cache-control", None),
        ] {
            assert_eq!(told(&problem, name).as_deref(), value, "{name}");
        }
        let missing = Problem::new(Code::KeyMissing, "x");
        assert_eq!(told(&missing, "retrysafe-outcome"), None);
        let retryable = told(&missing, "retrysafe-retryable");
        assert_eq!(retryable.as_deref(), Some("false"));
    }

    #[test]
    fn r33_every_code_has_the_grpc_status_of_the_table() {
        let page = include_str!("../../docs/protocol.md");
        let table = [
            (Code::KeyMissing, "INVALID_ARGUMENT 3"),
            (Code::KeyInvalid, "INVALID_ARGUMENT 3"),
            (Code::Malformed, "INVALID_ARGUMENT 3"),
            (Code::RequestTimeout, "DEADLINE_EXCEEDED 4"),
            (Code::InProgress, "ABORTED 10"),
            (Code::NotKept, "DATA_LOSS 15"),
            (Code::BodyTooLarge, "RESOURCE_EXHAUSTED 8"),
            (Code::ExpectationFailed, "INVALID_ARGUMENT 3"),
            (Code::KeyReused, "FAILED_PRECONDITION 9"),
            (Code::OtherCredentials, "FAILED_PRECONDITION 9"),
            (Code::MethodNotSupported, "UNIMPLEMENTED 12"),
            (Code::OutcomeUnknown, "UNKNOWN 2"),
            (Code::Unreachable, "UNAVAILABLE 14"),
            (Code::ConnectionLost, "UNKNOWN 2"),
            (Code::BadResponse, "UNKNOWN 2"),
            (Code::StoreUnavailable, "UNAVAILABLE 14"),
            (Code::Overloaded, "UNAVAILABLE 14"),
            (Code::UpstreamTimeout, "DEADLINE_EXCEEDED 4"),
        ];
        for (code, said) in table {
            let start = format!("| `{}` |", code.name());
            let row = page.lines().find(|line| line.starts_with(&start));
            assert!(row.unwrap().contains(&format!(" | {said} | ")), "{said}");
            let number = status_of(code).to_string();
            assert_eq!(said.split(' ').next_back(), Some(number.as_str()));
        }
        // One row for each line of it.
        let is_row = |line: &&str| line.starts_with("| `") && line.split('|').count() == 8;
        let rows = page.split("**R33**").nth(1).unwrap().lines();
        assert_eq!(rows.filter(is_row).count(), table.len());
    }

    #[test]
    fn r33_what_may_have_been_carried_out_is_never_unavailable() {
        for problem in [
            HeldProblem::OutcomeUnknown,
            HeldProblem::ConnectionLost,
            HeldProblem::BadResponse,
            HeldProblem::Timeout,
        ] {
            for retryable in [false, true] {
                let status = told(&Problem::unknown(problem, retryable), "grpc-status");
                let status = status.unwrap();
                assert!(
                    ["2", "4"].contains(&status.as_str()),
                    "{problem:?}: {status}"
                );
            }
        }
    }
}
