//! The keys of `[policy]` and its tables; `[route.policy]` has the same ones. Data only.

use super::keys::key;
use super::{Key, Kind};

/// `[policy]`, `[policy.key]`, `[policy.fingerprint]`, `[policy.replay]`.
pub(super) const POLICY: &[Key] = &[
    key(
        "policy.mode",
        Kind::Choice(&["enforce", "off"]),
        r#""enforce""#,
        "Whether the rules apply; `off` streams everything through.",
    ),
    key(
        "policy.methods",
        Kind::List("methods"),
        r#"["POST", "PUT", "PATCH", "DELETE"]"#,
        "The methods that are covered.",
    ),
    key(
        "policy.scope",
        Kind::List("scope parts"),
        "[]",
        "What a key is unique within: `header:NAME`, `cookie:NAME`, `basic:user`, `client_ip`, `route`.",
    ),
    key(
        "policy.ttl",
        Kind::Duration,
        r#""24h""#,
        "How long a completed record is kept, from completion.",
    ),
    key(
        "policy.failed_ttl",
        Kind::Duration,
        r#""24h""#,
        "The same for a failed one. Where it is not set it is `ttl`.",
    ),
    key(
        "policy.unresolved_ttl",
        Kind::Duration,
        r#""24h""#,
        "The same for an unresolved one. Where it is not set it is `ttl`.",
    ),
    key(
        "policy.lease",
        Kind::Duration,
        r#""30s""#,
        "The lease of a running request, renewed each third. A lapsed lease is an unknown outcome.",
    ),
    key(
        "policy.max_waiters",
        Kind::Integer,
        "10000",
        "Duplicates that wait, in the whole process. Not in a route.",
    ),
    key(
        "policy.max_waiters_per_key",
        Kind::Integer,
        "1000",
        "Duplicates that wait on one key; beyond it 409 at once.",
    ),
    key(
        "policy.in_flight_wait",
        Kind::Duration,
        r#""10s""#,
        "How long a duplicate waits for the first answer; `\"0s\"`: 409 at once.",
    ),
    key(
        "policy.on_5xx",
        Kind::Choice(&["record", "release"]),
        r#""record""#,
        "Whether a 5xx answer is replayed, or a retry runs again.",
    ),
    key(
        "policy.on_unknown",
        Kind::Choice(&["auto", "hold", "retry"]),
        r#""auto""#,
        "What a retry of an unknown outcome gets. `auto`: POST and PATCH hold, PUT and DELETE retry.",
    ),
    key(
        "policy.on_store_error",
        Kind::Choice(&["reject", "pass"]),
        r#""reject""#,
        "Without the store: 503 and nothing runs, or run without protection.",
    ),
    key(
        "policy.release_statuses",
        Kind::List("statuses"),
        "[401, 403, 407, 409, 421, 423, 425, 429]",
        "Answers that mean \"not carried out\": a retry runs again. So does 503 with Retry-After.",
    ),
    key(
        "policy.max_request",
        Kind::Size,
        r#""1MiB""#,
        "The largest request body; beyond it 413.",
    ),
    key(
        "policy.max_response",
        Kind::Size,
        r#""1MiB""#,
        "The largest answer that is kept; a retry of a larger one gets 410.",
    ),
    key(
        "policy.docs_url",
        Kind::Text("url"),
        "",
        "The base of `type` in our own answers; the code is appended.",
    ),
    key(
        "policy.key.header",
        Kind::Text("field name"),
        r#""Idempotency-Key""#,
        "The field that carries the key.",
    ),
    key(
        "policy.key.aliases",
        Kind::List("field names"),
        "[]",
        "Other fields that carry it, e.g. `[\"X-Idempotency-Key\"]`.",
    ),
    key(
        "policy.key.missing",
        Kind::Choice(&["reject", "pass", "generate", "derive"]),
        r#""reject""#,
        "What a request without a key gets.",
    ),
    key(
        "policy.key.required_on",
        Kind::List("methods"),
        r#"["POST", "PUT", "PATCH", "DELETE"]"#,
        "The methods `missing` applies to; the others pass.",
    ),
    key(
        "policy.key.syntax",
        Kind::Choice(&["lenient", "strict"]),
        r#""lenient""#,
        "`lenient`: `\"abc\"` and `abc`; `strict`: quoted only, as in the IETF draft.",
    ),
    key(
        "policy.key.format",
        Kind::Choice(&["any", "uuid"]),
        r#""any""#,
        "What a key must look like.",
    ),
    key(
        "policy.key.max_length",
        Kind::Integer,
        "255",
        "Characters of a key, without the quotes; 1 to 4096.",
    ),
    key(
        "policy.key.from_query",
        Kind::Text("parameter name"),
        "",
        "A query parameter that may carry the key.",
    ),
    key(
        "policy.key.from_body",
        Kind::Text("JSON pointer"),
        "",
        "A member of a JSON body that may carry the key, e.g. `\"/idempotency_key\"`.",
    ),
    key(
        "policy.key.derive_window",
        Kind::Duration,
        r#""10s""#,
        "How long a derived key absorbs repetitions, from completion.",
    ),
    key(
        "policy.key.upstream",
        Kind::Choice(&["forward", "strip"]),
        r#""forward""#,
        "Whether the upstream sees the key.",
    ),
    key(
        "policy.fingerprint.headers",
        Kind::List("field names"),
        r#"["content-type", "content-encoding"]"#,
        "Request fields that must not change between two tries.",
    ),
    key(
        "policy.fingerprint.caller",
        Kind::List("field names"),
        r#"["authorization", "cookie", "x-api-key", "api-key", "x-auth-token"]"#,
        "Request fields that tell callers apart; kept as hashes.",
    ),
    key(
        "policy.fingerprint.query",
        Kind::Boolean,
        "true",
        "Whether the query counts.",
    ),
    key(
        "policy.fingerprint.body",
        Kind::Choice(&["raw", "json", "none"]),
        r#""raw""#,
        "`json`: the order of members and blanks do not matter; `none`: the body does not count.",
    ),
    key(
        "policy.fingerprint.ignore",
        Kind::List("JSON pointers"),
        "[]",
        "Members left out of a json body, e.g. `[\"/sent_at\"]`. Needs `body = \"json\"`.",
    ),
    key(
        "policy.replay.marker",
        Kind::Text("field name"),
        r#""Idempotent-Replayed""#,
        "The field that marks a replay.",
    ),
    key(
        "policy.replay.announce_expiry",
        Kind::Boolean,
        "false",
        "`Idempotency-Expires` on answers.",
    ),
    key(
        "policy.replay.strip",
        Kind::List("field names"),
        "[]",
        "Fields that are not replayed, e.g. `[\"set-cookie\"]`.",
    ),
];
