//! A covered request: key, body, fingerprint, then claim and judge until there is an answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use tokio::time::timeout;

use super::Proxy;
use super::body::Body;
use super::budget::Reservation;
use super::execution::Prepared;
use super::handle::{Arrival, Verdict};
use super::intake::Intake;
use super::problem::{Code, Problem};
use super::{request, rewrite};
use crate::idempotency::fingerprint::Subject;
use crate::idempotency::key::{self, KeyError};
use crate::idempotency::policy::{KeyPolicy, MissingKey};
use crate::idempotency::scope::{KeyText, record_key};
use crate::idempotency::{Fingerprint, IdempotencyKey, RecordKey, json};
use crate::routes::Route;

/// A covered request with everything the rules need.
#[derive(Debug)]
pub(super) struct Keyed {
    pub(super) route: Arc<Route>,
    pub(super) prepared: Arc<Prepared>,
    pub(super) key: RecordKey,
    pub(super) fingerprint: Fingerprint,
    /// How long its answer is kept.
    pub(super) ttl: Duration,
    pub(super) preferred_wait: Option<Duration>,
    /// R6 `generate`: returned on every answer.
    minted: Option<HeaderValue>,
}

/// Where the key came from (R6, R7).
enum Found {
    Key(IdempotencyKey),
    /// Minted here; the value is returned on every answer.
    Minted(IdempotencyKey, HeaderValue),
    /// The fingerprint stands for it.
    Derived,
    /// The request goes through unprotected.
    Pass,
}

impl Proxy {
    pub(super) async fn covered(
        self: &Arc<Self>,
        arrival: Arrival,
        intake: &mut Intake,
    ) -> Verdict {
        let route = arrival.route.clone();
        match self.take(arrival, intake).await {
            Ok(Taken::Passed(verdict)) => *verdict,
            Ok(Taken::Keyed(mut keyed)) => {
                let minted = keyed.minted.take();
                let mut verdict = self.resolve(*keyed).await;
                if let Some(minted) = minted {
                    let name = route.policy.key.header.clone();
                    verdict.response.headers_mut().insert(name, minted);
                }
                verdict
            }
            Err(problem) => Verdict::problem(problem, &route),
        }
    }

    /// R4 to R8, R10, R12: reads the request whole and names its record.
    async fn take(&self, arrival: Arrival, intake: &mut Intake) -> Result<Taken, Problem> {
        let route = arrival.route.clone();
        let policy = &route.policy;
        let early = early_key(&arrival, &policy.key)?;
        request::expectation(&arrival.head.headers)?;
        let needs_body = policy.key.from_body.is_some();
        if early.is_none() && !needs_body && when_missing(&arrival, &policy.key)? == Missing::Pass {
            let body = self.streamed(intake);
            return Ok(Taken::Passed(Box::new(self.pass_on(arrival, body).await)));
        }
        let (body, held) = self.read_body(intake, policy.max_request).await?;
        let found = match late_key(early, &body, &policy.key)? {
            Some(key) => Found::Key(key),
            None => missing_key(&arrival, &policy.key)?,
        };
        if matches!(found, Found::Pass) {
            let body = Body::held(body, None, Some(held));
            return Ok(Taken::Passed(Box::new(self.pass_on(arrival, body).await)));
        }
        let keyed = self.name(arrival, body, held, found)?;
        Ok(Taken::Keyed(Box::new(keyed)))
    }

    /// R8, R10: the record and the fingerprint of a request that was read.
    fn name(
        &self,
        mut arrival: Arrival,
        body: Bytes,
        reserved: Reservation,
        found: Found,
    ) -> Result<Keyed, Problem> {
        let route = arrival.route.clone();
        let policy = &route.policy;
        let head = &arrival.head;
        let trusted = &self.shared.settings.trusted_proxies;
        let client = request::client_ip(arrival.peer, &head.headers, trusted);
        let scope = request::scope(&policy.scope, &head.headers, client, &route.name)?;
        let subject = Subject {
            method: &head.method,
            path: head.uri.path(),
            query: head.uri.query(),
            headers: &head.headers,
            body: &body,
        };
        let fingerprint = Fingerprint::of(subject, &policy.fingerprint);
        let (text, ttl) = match &found {
            Found::Key(key) | Found::Minted(key, _) => (KeyText::Key(key), policy.ttl),
            _ => (KeyText::Derived(&fingerprint), policy.key.derive_window),
        };
        let key = record_key(&self.shared.namespace, &scope, text);
        let preferred_wait = super::waiting::preferred_wait(&head.headers);
        self.rewrite(&mut arrival);
        rewrite::covered(&mut arrival.head, policy, &body);
        let minted = match found {
            Found::Minted(_, value) => {
                arrival
                    .head
                    .headers
                    .insert(policy.key.header.clone(), value.clone());
                Some(value)
            }
            _ => None,
        };
        let prepared = Arc::new(Prepared {
            head: arrival.head,
            body,
            _held: reserved,
        });
        Ok(Keyed {
            route,
            prepared,
            key,
            fingerprint,
            ttl,
            preferred_wait,
            minted,
        })
    }

    /// R12: the whole body, or the reason why not; nothing was claimed yet.
    async fn read_body(
        &self,
        intake: &mut Intake,
        limit: u64,
    ) -> Result<(Bytes, Reservation), Problem> {
        let too_large = || {
            let detail = format!("The request body is larger than the {limit} bytes accepted.");
            Problem::new(Code::BodyTooLarge, detail)
        };
        if intake.length().is_some_and(|length| length > limit) {
            // Before 100 (Continue): hyper sends that when the body is first asked for.
            return Err(too_large());
        }
        let mut held = self.shared.budget.reservation();
        let mut whole = BytesMut::new();
        let pause = self.shared.settings.body_timeout;
        loop {
            let frame = match timeout(pause, intake.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok((whole.freeze(), held)),
                Ok(Some(Err(_))) => {
                    return Err(Problem::malformed(
                        "The request body is malformed or cut off.",
                    ));
                }
                Err(_) => {
                    intake.give_up();
                    let detail = "No piece of the request body came in time.";
                    return Err(Problem::new(Code::RequestTimeout, detail));
                }
            };
            // Trailers of a covered request are not passed on.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if (whole.len() + data.len()) as u64 > limit {
                return Err(too_large());
            }
            if !held.grow(data.len()) {
                return Err(overloaded());
            }
            whole.extend_from_slice(&data);
        }
    }
}

/// What [`Proxy::take`] made of a request.
enum Taken {
    Passed(Box<Verdict>),
    Keyed(Box<Keyed>),
}

/// R30.
pub(super) fn overloaded() -> Problem {
    let detail = "Too much is under way here; nothing was executed. Retry with the same key.";
    Problem::new(Code::Overloaded, detail).retry_after(1)
}

/// The key from header and query (R4, R7), before the body is read.
fn early_key(arrival: &Arrival, policy: &KeyPolicy) -> Result<Option<IdempotencyKey>, Problem> {
    let header = key::from_headers(&arrival.head.headers, policy).map_err(invalid)?;
    let Some(name) = &policy.from_query else {
        return Ok(header);
    };
    let query = arrival.head.uri.query().unwrap_or_default();
    let mut values = query_values(query, name);
    let Some(value) = values.next() else {
        return Ok(header);
    };
    if values.next().is_some() {
        return Err(invalid(KeyError::Repeated));
    }
    let value = value
        .ok_or(KeyError::NotAscii)
        .and_then(|text| key::plain(text, policy));
    agree(header, Some(value.map_err(invalid)?))
}

/// The same with what the body says (R7).
fn late_key(
    early: Option<IdempotencyKey>,
    body: &[u8],
    policy: &KeyPolicy,
) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(pointer) = &policy.from_body else {
        return Ok(early);
    };
    let Some(text) = json::string_at(body, pointer) else {
        return Ok(early);
    };
    agree(early, Some(key::plain(text, policy).map_err(invalid)?))
}

fn agree(
    one: Option<IdempotencyKey>,
    other: Option<IdempotencyKey>,
) -> Result<Option<IdempotencyKey>, Problem> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(invalid(KeyError::Conflicting)),
        (one, other) => Ok(one.or(other)),
    }
}

/// The decoded values of one query parameter; `None` where the octets are no text.
fn query_values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = Option<String>> + 'a {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key).as_deref() == Some(name)).then(|| decode(value))
    })
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut octets = text.bytes();
    while let Some(octet) = octets.next() {
        match octet {
            b'+' => out.push(b' '),
            b'%' => {
                let pair = [octets.next()?, octets.next()?];
                let hex = std::str::from_utf8(&pair).ok()?;
                out.push(u8::from_str_radix(hex, 16).ok()?);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}

/// R6, before the body is read: only whether the request passes matters.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    Pass,
    Go,
}

fn when_missing(arrival: &Arrival, policy: &KeyPolicy) -> Result<Missing, Problem> {
    if !policy.required_on.contains(&arrival.head.method) {
        return Ok(Missing::Pass);
    }
    match policy.missing {
        MissingKey::Pass => Ok(Missing::Pass),
        MissingKey::Reject => Err(missing(&policy.header)),
        MissingKey::Generate | MissingKey::Derive => Ok(Missing::Go),
    }
}

fn missing_key(arrival: &Arrival, policy: &KeyPolicy) -> Result<Found, Problem> {
    if when_missing(arrival, policy)? == Missing::Pass {
        return Ok(Found::Pass);
    }
    if policy.missing == MissingKey::Derive {
        return Ok(Found::Derived);
    }
    let text = uuid::Uuid::now_v7().to_string();
    let value =
        HeaderValue::try_from(format!("\"{text}\"")).map_err(|_| missing(&policy.header))?;
    // A minted key fits any length and format the route asks of clients.
    let free = KeyPolicy::default();
    let key = key::plain(text, &free).map_err(invalid)?;
    Ok(Found::Minted(key, value))
}

fn missing(header: &HeaderName) -> Problem {
    Problem::new(
        Code::KeyMissing,
        format!(
            "This operation needs the field {header}: a value of your own for each operation, kept \
             over all its retries."
        ),
    )
}

fn invalid(error: KeyError) -> Problem {
    Problem::new(
        Code::KeyInvalid,
        format!("The idempotency key is not valid: {error}."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded_and_counted() {
        let values = |query| query_values(query, "key").collect::<Vec<_>>();
        assert_eq!(values("a=1&key=x%2By+z&b"), [Some("x+y z".to_owned())]);
        assert_eq!(values("k%65y=1"), [Some("1".to_owned())]);
        assert_eq!(values("key=1&key=2").len(), 2);
        assert_eq!(values("key=%ff"), [None]);
        assert_eq!(values("key=%"), [None]);
        assert_eq!(values("keys=1&ke=2"), Vec::<Option<String>>::new());
    }

    #[test]
    fn two_sources_must_agree() {
        let key = |text: &str| key::plain(text.into(), &KeyPolicy::default()).ok();
        assert!(agree(key("a"), key("a")).unwrap().is_some());
        assert!(agree(None, key("a")).unwrap().is_some());
        assert!(agree(None, None).unwrap().is_none());
        assert_eq!(
            agree(key("a"), key("b")).unwrap_err().code,
            Code::KeyInvalid
        );
    }
}
