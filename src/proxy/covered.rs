//! A covered request: key, body, fingerprint, then claim and judge until there is an answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use tokio::time::timeout;

use super::Proxy;
use super::body::Body;
use super::budget::Reservation;
use super::call;
use super::execution::Prepared;
use super::handle::{Arrival, Verdict};
use super::intake::Intake;
use super::problem::{Code, Problem};
use super::{request, rewrite};
use crate::idempotency::fingerprint::Subject;
use crate::idempotency::key::{self, KeyError};
use crate::idempotency::policy::{KeyPolicy, KeyUpstream, MissingKey};
use crate::idempotency::scope::{KeyText, ScopeValue};
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
}

/// Where the key came from (R6, R7).
enum Found {
    Key(IdempotencyKey),
    /// Made here.
    Minted(Minted),
    /// The fingerprint stands for it.
    Derived,
    /// The request goes through unprotected.
    Pass,
}

/// R6 `generate`: forwarded, and returned on every answer.
#[derive(Clone)]
struct Minted {
    key: IdempotencyKey,
    field: HeaderValue,
}

impl Proxy {
    pub(super) async fn covered(
        self: &Arc<Self>,
        arrival: Arrival,
        intake: &mut Intake,
    ) -> Verdict {
        let route = arrival.route.clone();
        let mut minted = None;
        let mut verdict = match self.take(arrival, intake, &mut minted).await {
            Ok(Taken::Passed(verdict)) => *verdict,
            Ok(Taken::Keyed(keyed)) => self.resolve(*keyed).await,
            Err(problem) => Verdict::problem(problem, &route),
        };
        if let Some(Minted { field, .. }) = minted {
            let name = route.policy.key.header.clone();
            verdict.response.headers_mut().insert(name, field);
        }
        verdict
    }

    /// R4 to R8, R10, R12: reads the request whole and names its record.
    ///
    /// What the head alone decides comes first: those refusals are sent before 100 (Continue).
    async fn take(
        &self,
        arrival: Arrival,
        intake: &mut Intake,
        minted: &mut Option<Minted>,
    ) -> Result<Taken, Problem> {
        let route = arrival.route.clone();
        let policy = &route.policy;
        let early = early_key(&arrival, &policy.key)?;
        let from_body = policy.key.from_body.is_some();
        let mut found = match early {
            Some(key) => Some(Found::Key(key)),
            None if from_body => None,
            None => Some(missing_key(&arrival, &policy.key, minted)?),
        };
        request::expectation(&arrival.head.headers)?;
        if matches!(found, Some(Found::Pass)) {
            let body = self.streamed(intake);
            return Ok(Taken::Passed(Box::new(self.pass_on(arrival, body).await)));
        }
        // A key is certain: then so is the scope.
        let mut scope = None;
        if found.is_some() {
            scope = Some(self.scope(&arrival)?);
        }
        let (body, held) = self.read_body(intake, policy.max_request).await?;
        if call::is_unary(&arrival.head, policy) {
            call::one_message(&body)?;
        }
        if from_body {
            found = late_key(found, &body, &policy.key)?;
        }
        let found = match found {
            Some(found) => found,
            None => missing_key(&arrival, &policy.key, minted)?,
        };
        if matches!(found, Found::Pass) {
            let body = Body::held(body, None, Some(held));
            return Ok(Taken::Passed(Box::new(self.pass_on(arrival, body).await)));
        }
        let scope = match scope {
            Some(scope) => scope,
            None => self.scope(&arrival)?,
        };
        let keyed = self.name(arrival, &scope, body, held, found);
        Ok(Taken::Keyed(Box::new(keyed)))
    }

    /// R8.
    fn scope(&self, arrival: &Arrival) -> Result<Vec<ScopeValue>, Problem> {
        let (route, headers) = (&arrival.route, &arrival.head.headers);
        let trusted = &self.shared.settings.trusted_proxies;
        let client = request::client_ip(arrival.peer, headers, trusted);
        request::scope(&route.policy.scope, headers, client, &route.name)
    }

    /// R8, R10: the record and the fingerprint of a request that was read.
    fn name(
        &self,
        mut arrival: Arrival,
        scope: &[ScopeValue],
        body: Bytes,
        reserved: Reservation,
        found: Found,
    ) -> Keyed {
        let route = arrival.route.clone();
        let policy = &route.policy;
        let head = &arrival.head;
        let subject = Subject {
            method: &head.method,
            path: head.uri.path(),
            query: head.uri.query(),
            headers: &head.headers,
            body: &body,
        };
        let identity = &self.shared.identity;
        let fingerprint = identity.fingerprint(subject, &policy.fingerprint);
        let (text, ttl) = match &found {
            Found::Key(key) | Found::Minted(Minted { key, .. }) => (KeyText::Key(key), policy.ttl),
            _ => (KeyText::Derived(&fingerprint), policy.key.derive_window),
        };
        let key = identity.record_key(scope, text);
        let unary = call::is_unary(head, policy);
        let preferred_wait = super::waiting::preferred_wait(&head.headers);
        self.rewrite(&mut arrival);
        rewrite::covered(&mut arrival.head, policy, &body);
        if let Found::Minted(Minted { field, .. }) = found
            && policy.key.upstream == KeyUpstream::Forward
        {
            let name = policy.key.header.clone();
            arrival.head.headers.insert(name, field);
        }
        let prepared = Arc::new(Prepared {
            head: arrival.head,
            body,
            unary,
            _held: reserved,
        });
        Keyed {
            route,
            prepared,
            key,
            fingerprint,
            ttl,
            preferred_wait,
        }
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
    let detail =
        "Too much is under way here; this request was not passed on. Retry with the same key.";
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
    early: Option<Found>,
    body: &[u8],
    policy: &KeyPolicy,
) -> Result<Option<Found>, Problem> {
    let text = policy.from_body.as_ref();
    let Some(text) = text.and_then(|pointer| json::string_at(body, pointer)) else {
        return Ok(early);
    };
    let early = match early {
        Some(Found::Key(key)) => Some(key),
        _ => None,
    };
    let key = key::plain(text, policy).map_err(invalid)?;
    Ok(agree(early, Some(key))?.map(Found::Key))
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

/// R6.
fn missing_key(
    arrival: &Arrival,
    policy: &KeyPolicy,
    minted: &mut Option<Minted>,
) -> Result<Found, Problem> {
    if !policy.required_on.contains(&arrival.head.method) {
        return Ok(Found::Pass);
    }
    match policy.missing {
        MissingKey::Pass => Ok(Found::Pass),
        MissingKey::Reject => Err(missing(&policy.header)),
        MissingKey::Derive => Ok(Found::Derived),
        MissingKey::Generate => {
            let made = mint(policy)?;
            *minted = Some(made.clone());
            Ok(Found::Minted(made))
        }
    }
}

fn mint(policy: &KeyPolicy) -> Result<Minted, Problem> {
    let text = uuid::Uuid::now_v7().to_string();
    let field =
        HeaderValue::try_from(format!("\"{text}\"")).map_err(|_| missing(&policy.header))?;
    // A minted key fits any length and format the route asks of clients.
    let key = key::plain(text, &KeyPolicy::default()).map_err(invalid)?;
    Ok(Minted { key, field })
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
