//! Answers to and from their stored form (R21, R23).

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode, response};

use super::body::Body;
use super::budget::Reservation;
use super::rewrite::{imf_fixdate, trailers};
use crate::idempotency::Answer;
use crate::idempotency::policy::ReplayPolicy;

const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Keeps an answer as it will be replayed: its head was rewritten for the client already.
pub(super) fn keep(head: &response::Parts, body: Bytes, trailers: Option<&HeaderMap>) -> Answer {
    let fields = |map: &HeaderMap, skip: &[HeaderName]| {
        map.iter()
            .filter(|(name, _)| !skip.contains(name))
            .map(|(name, value)| {
                let name = Bytes::copy_from_slice(name.as_str().as_bytes());
                (name, Bytes::copy_from_slice(value.as_bytes()))
            })
            .collect()
    };
    Answer {
        status: head.status.as_u16(),
        // Framing is made anew each time.
        fields: fields(&head.headers, &[header::CONTENT_LENGTH]),
        body,
        trailers: trailers.map(|map| fields(map, &[])).unwrap_or_default(),
    }
}

/// The recorded answer, marked as a replay. `None` where the record holds no valid answer (R25).
pub(super) fn replay(
    answer: &Answer,
    policy: &ReplayPolicy,
    held: Option<Reservation>,
) -> Option<Response<Body>> {
    let mut response = restore(answer, held)?;
    for name in &policy.strip {
        response.headers_mut().remove(name);
    }
    response
        .headers_mut()
        .insert(policy.marker.clone(), HeaderValue::from_static("true"));
    Some(response)
}

/// The answer as the upstream gave it.
pub(super) fn restore(answer: &Answer, held: Option<Reservation>) -> Option<Response<Body>> {
    let status = StatusCode::from_u16(answer.status).ok()?;
    let trailing = map(&answer.trailers)?;
    let trailing = if trailing.is_empty() {
        None
    } else {
        trailers(trailing)
    };
    let mut response = Response::new(Body::held(answer.body.clone(), trailing, held));
    *response.status_mut() = status;
    *response.headers_mut() = map(&answer.fields)?;
    Some(response)
}

/// R23: when the key becomes new.
pub(super) fn announce_expiry(headers: &mut HeaderMap, completed_at: u64, ttl: Duration) {
    let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    if let Some(date) = imf_fixdate(completed_at.saturating_add(ttl)) {
        headers.insert(EXPIRES, date);
    }
}

fn map(fields: &[(Bytes, Bytes)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len() + 2);
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name).ok()?;
        map.append(name, HeaderValue::from_maybe_shared(value.clone()).ok()?);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_as_it_was_kept() {
        let mut response = Response::builder()
            .status(207)
            .header("set-cookie", "a=1")
            .header("x-other", b"\xe9\xff".as_slice())
            .header("set-cookie", "b=2")
            .header("content-length", "2")
            .header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
            .body(())
            .unwrap();
        let mut trailing = HeaderMap::new();
        trailing.insert("x-sum", "9".parse().unwrap());
        let head = std::mem::take(&mut response).into_parts().0;
        let answer = keep(&head, Bytes::from_static(b"hi"), Some(&trailing));
        let policy = ReplayPolicy {
            strip: vec![header::DATE],
            ..ReplayPolicy::default()
        };
        let replayed = replay(&answer, &policy, None).unwrap();
        assert_eq!(replayed.status(), 207);
        let cookies: Vec<_> = replayed.headers().get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=1", "b=2"]);
        assert_eq!(replayed.headers()["x-other"].as_bytes(), b"\xe9\xff");
        assert_eq!(replayed.headers()["idempotent-replayed"], "true");
        assert!(!replayed.headers().contains_key("content-length"));
        assert!(!replayed.headers().contains_key("date"));
        assert!(
            restore(&answer, None)
                .unwrap()
                .headers()
                .contains_key("date")
        );
    }

    #[test]
    fn a_record_with_an_impossible_answer_is_not_replayed() {
        let answer = |status, name: &'static str, value: &'static str| Answer {
            status,
            fields: vec![(name.into(), value.into())],
            body: Bytes::new(),
            trailers: vec![],
        };
        assert!(restore(&answer(200, "x", "y"), None).is_some());
        assert!(restore(&answer(99, "x", "y"), None).is_none());
        assert!(restore(&answer(200, "x y", "y"), None).is_none());
        assert!(restore(&answer(200, "x", "a\r\nb"), None).is_none());
    }
}
