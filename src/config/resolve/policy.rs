//! `[policy]` and `[route.policy]`: the same keys, the second laid over the first (R2).

use http::HeaderName;

use super::super::diagnostic::Sink;
use super::super::value::http::{
    caller, docs_url, field_name, method, not_yet, parameter, pointer, scope_part, status,
};
use super::super::value::measure::{above_zero, duration, size};
use super::super::value::{Shape, Value, boolean, choice, integer, list, some};
use super::Reader;
use crate::idempotency::Policy;
use crate::idempotency::policy::{
    BodyMode, FingerprintPolicy, Grpc, KeyFormat, KeyPolicy, KeySyntax, KeyUpstream, MissingKey,
    Mode, On5xx, OnStoreError, OnUnknown, ReplayPolicy,
};

/// Reads `[policy]`.
pub(super) fn base(reader: &mut Reader<'_, '_>, policy: &mut Policy) {
    overlay(reader, policy);
    if !reader.has("policy.failed_ttl") {
        policy.failed_ttl = policy.ttl;
    }
    if !reader.has("policy.unresolved_ttl") {
        policy.unresolved_ttl = policy.ttl;
    }
}

/// Lays what was written over `policy`.
pub(super) fn overlay(reader: &mut Reader<'_, '_>, policy: &mut Policy) {
    reader.set("policy.mode", &mut policy.mode, mode);
    let help = "to cover nothing write mode = \"off\"";
    reader.set("policy.methods", &mut policy.methods, some(method, help));
    reader.set("policy.scope", &mut policy.scope, list(scope_part));
    times(reader, policy);
    reader.set(
        "policy.max_waiters",
        &mut policy.max_waiters,
        integer(0..=u64::MAX),
    );
    reader.set(
        "policy.max_waiters_per_key",
        &mut policy.max_waiters_per_key,
        integer(0..=u64::MAX),
    );
    outcomes(reader, policy);
    reader.set("policy.max_request", &mut policy.max_request, size);
    reader.set("policy.max_response", &mut policy.max_response, size);
    reader.set("policy.stream", &mut policy.stream, boolean);
    reader.set(
        "policy.grpc",
        &mut policy.grpc,
        choice(&[
            ("pass", Grpc::Pass),
            ("unary", Grpc::Unary),
            ("refuse", Grpc::Refuse),
        ]),
    );
    reader.set("policy.docs_url", &mut policy.docs_url, |value, sink| {
        docs_url(value, sink).map(Some)
    });
    key(reader, &mut policy.key);
    fingerprint(reader, &mut policy.fingerprint);
    replay(reader, &mut policy.replay);
}

/// R17, R18, R24: what is done about what happened.
fn outcomes(reader: &mut Reader<'_, '_>, policy: &mut Policy) {
    reader.set(
        "policy.on_5xx",
        &mut policy.on_5xx,
        choice(&[("record", On5xx::Record), ("release", On5xx::Release)]),
    );
    reader.set(
        "policy.on_unknown",
        &mut policy.on_unknown,
        choice(&[
            ("auto", OnUnknown::Auto),
            ("hold", OnUnknown::Hold),
            ("retry", OnUnknown::Retry),
        ]),
    );
    reader.set(
        "policy.on_store_error",
        &mut policy.on_store_error,
        choice(&[
            ("reject", OnStoreError::Reject),
            ("pass", OnStoreError::Pass),
        ]),
    );
    reader.set(
        "policy.release_statuses",
        &mut policy.release_statuses,
        |value, sink| {
            let mut statuses = list(status)(value, sink)?;
            statuses.sort_unstable();
            Some(statuses)
        },
    );
}

fn mode(value: &Value, sink: &mut Sink<'_>) -> Option<Mode> {
    if matches!(&value.shape, Shape::Text(text) if text == "observe") {
        let help = "write \"enforce\" or \"off\"";
        return not_yet(value, sink, "observe", help);
    }
    choice(&[("enforce", Mode::Enforce), ("off", Mode::Off)])(value, sink)
}

fn times(reader: &mut Reader<'_, '_>, policy: &mut Policy) {
    reader.set("policy.ttl", &mut policy.ttl, above_zero);
    reader.set("policy.failed_ttl", &mut policy.failed_ttl, above_zero);
    reader.set(
        "policy.unresolved_ttl",
        &mut policy.unresolved_ttl,
        above_zero,
    );
    reader.set("policy.lease", &mut policy.lease, above_zero);
    reader.set(
        "policy.in_flight_wait",
        &mut policy.in_flight_wait,
        duration,
    );
}

fn key(reader: &mut Reader<'_, '_>, key: &mut KeyPolicy) {
    reader.set("policy.key.header", &mut key.header, field_name);
    reader.set("policy.key.aliases", &mut key.aliases, list(field_name));
    reader.set(
        "policy.key.missing",
        &mut key.missing,
        choice(&[
            ("reject", MissingKey::Reject),
            ("pass", MissingKey::Pass),
            ("generate", MissingKey::Generate),
            ("derive", MissingKey::Derive),
        ]),
    );
    reader.set("policy.key.required_on", &mut key.required_on, list(method));
    reader.set(
        "policy.key.syntax",
        &mut key.syntax,
        choice(&[
            ("lenient", KeySyntax::Lenient),
            ("strict", KeySyntax::Strict),
        ]),
    );
    reader.set(
        "policy.key.format",
        &mut key.format,
        choice(&[("any", KeyFormat::Any), ("uuid", KeyFormat::Uuid)]),
    );
    reader.set(
        "policy.key.max_length",
        &mut key.max_length,
        integer(1..=4096),
    );
    reader.set(
        "policy.key.from_query",
        &mut key.from_query,
        |value, sink| parameter(value, sink).map(Some),
    );
    reader.set("policy.key.from_body", &mut key.from_body, |value, sink| {
        pointer(value, sink).map(Some)
    });
    reader.set(
        "policy.key.derive_window",
        &mut key.derive_window,
        above_zero,
    );
    reader.set(
        "policy.key.upstream",
        &mut key.upstream,
        choice(&[
            ("forward", KeyUpstream::Forward),
            ("strip", KeyUpstream::Strip),
        ]),
    );
}

fn fingerprint(reader: &mut Reader<'_, '_>, fingerprint: &mut FingerprintPolicy) {
    reader.set(
        "policy.fingerprint.headers",
        &mut fingerprint.headers,
        list(field_name),
    );
    reader.set(
        "policy.fingerprint.caller",
        &mut fingerprint.caller,
        list(caller),
    );
    reader.set("policy.fingerprint.query", &mut fingerprint.query, boolean);
    reader.set(
        "policy.fingerprint.body",
        &mut fingerprint.body,
        choice(&[
            ("raw", BodyMode::Raw),
            ("json", BodyMode::Json),
            ("none", BodyMode::None),
        ]),
    );
    reader.set(
        "policy.fingerprint.ignore",
        &mut fingerprint.ignore,
        list(pointer),
    );
}

fn replay(reader: &mut Reader<'_, '_>, replay: &mut ReplayPolicy) {
    reader.set("policy.replay.marker", &mut replay.marker, marker);
    reader.set(
        "policy.replay.announce_expiry",
        &mut replay.announce_expiry,
        boolean,
    );
    reader.set("policy.replay.strip", &mut replay.strip, list(field_name));
}

/// The marker must not replace a field that the answer needs.
fn marker(value: &Value, sink: &mut Sink<'_>) -> Option<HeaderName> {
    let name = field_name(value, sink)?;
    let taken = [
        http::header::CONTENT_LENGTH,
        http::header::CONTENT_TYPE,
        http::header::TRANSFER_ENCODING,
        http::header::CONNECTION,
        http::header::SET_COOKIE,
    ];
    if taken.contains(&name) {
        return value.wrong(
            sink,
            "names a field that answers need",
            "choose another name",
        );
    }
    Some(name)
}
