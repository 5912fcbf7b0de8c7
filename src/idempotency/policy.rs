//! What a route asks for: the meaning of `[policy]` and `[route.policy]` after defaults and
//! overrides are resolved (R2).
//!
//! Plain data. The file's spelling lives in `config/`; nothing here knows of TOML.

use std::time::Duration;

use http::{HeaderName, Method};

/// Everything that decides how one request is treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// R3: whether the rules apply at all.
    pub mode: Mode,
    /// R1: the methods that are covered.
    pub methods: Vec<Method>,
    /// R8: what a key is unique within.
    pub scope: Vec<ScopePart>,
    /// R22: how long a completed record is kept, from completion.
    pub ttl: Duration,
    /// R22: how long a failed record is kept.
    pub failed_ttl: Duration,
    /// R22: how long an unresolved record is kept.
    pub unresolved_ttl: Duration,
    /// R14: the lease of an execution, renewed each third.
    pub lease: Duration,
    /// R13: how long a duplicate waits for the first answer.
    pub in_flight_wait: Duration,
    /// R13: waiters of this process, all keys together.
    pub max_waiters: usize,
    /// R13: waiters of this process on one key.
    pub max_waiters_per_key: usize,
    /// R17: what a 5xx answer does to the record.
    pub on_5xx: On5xx,
    /// R18: what a retry of an unresolved request gets.
    pub on_unknown: OnUnknown,
    /// R24: what happens when the store does not answer before dispatch.
    pub on_store_error: OnStoreError,
    /// R17: answers that mean "not carried out". Sorted.
    pub release_statuses: Vec<u16>,
    /// R12: bytes of a request body.
    pub max_request: u64,
    /// R19: bytes of a response body that are kept.
    pub max_response: u64,
    /// R19: answers go to the client as they arrive.
    pub stream: bool,
    /// R1, R28: how gRPC calls are treated.
    pub grpc: Grpc,
    /// R32: base of the `type` of our own problems.
    pub docs_url: Option<String>,
    /// `[policy.key]`.
    pub key: KeyPolicy,
    /// `[policy.fingerprint]`.
    pub fingerprint: FingerprintPolicy,
    /// `[policy.replay]`.
    pub replay: ReplayPolicy,
}

/// R3. `observe` is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The rules apply.
    Enforce,
    /// Requests stream through.
    Off,
}

/// R1, R28, `grpc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grpc {
    /// Calls without a key pass uncovered to an HTTP/2 upstream; others are requests like any.
    Pass,
    /// Unary calls are covered, and judged by their gRPC status.
    Unary,
    /// No call is taken.
    Refuse,
}

/// R17, `on_5xx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On5xx {
    /// Recorded like any answer: at most one execution.
    Record,
    /// The next try executes: the route is at-least-once.
    Release,
}

/// R18, `on_unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// Hold on POST, PATCH and unknown methods, retry on PUT and DELETE.
    Auto,
    /// The first problem again, until an operator resolves it.
    Hold,
    /// A further try executes.
    Retry,
}

impl OnUnknown {
    /// Whether a retry of `method` may take over an unresolved record.
    pub fn retries(self, method: &Method) -> bool {
        match self {
            Self::Auto => *method == Method::PUT || *method == Method::DELETE,
            Self::Hold => false,
            Self::Retry => true,
        }
    }
}

/// R24, `on_store_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStoreError {
    /// 503, nothing is executed.
    Reject,
    /// Executed without protection, counted and marked.
    Pass,
}

/// One part of the scope (R8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopePart {
    /// `header:NAME`
    Header(HeaderName),
    /// `cookie:NAME`
    Cookie(String),
    /// `basic:user`, the user of HTTP Basic credentials.
    BasicUser,
    /// `client_ip`
    ClientIp,
    /// `route`
    Route,
}

impl ScopePart {
    /// Whether the part is taken from the field `name` (lower case).
    pub fn reads_field(&self, name: &str) -> bool {
        match self {
            Self::Header(header) => header == name,
            Self::Cookie(_) => name == "cookie",
            Self::BasicUser => name == "authorization",
            Self::ClientIp | Self::Route => false,
        }
    }
}

/// As the configuration writes it; part of the record key, so never to be changed.
impl std::fmt::Display for ScopePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::BasicUser => f.write_str("basic:user"),
            Self::ClientIp => f.write_str("client_ip"),
            Self::Route => f.write_str("route"),
        }
    }
}

/// `[policy.key]` (R4 to R7, R9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPolicy {
    /// R4: the field that carries the key.
    pub header: HeaderName,
    /// R4: further names of that field.
    pub aliases: Vec<HeaderName>,
    /// R6: what a request without a key gets.
    pub missing: MissingKey,
    /// R6: the methods `missing` applies to; the others pass.
    pub required_on: Vec<Method>,
    /// R4: which spellings are accepted.
    pub syntax: KeySyntax,
    /// R4: what a key must look like.
    pub format: KeyFormat,
    /// R4: characters after unquoting.
    pub max_length: usize,
    /// R7: query parameter that may carry the key.
    pub from_query: Option<String>,
    /// R7: JSON pointer into the body that may carry the key.
    pub from_body: Option<JsonPointer>,
    /// R6: how long a derived key absorbs repetitions, from completion.
    pub derive_window: Duration,
    /// R9: whether the upstream sees the key.
    pub upstream: KeyUpstream,
}

/// R6, `key.missing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    /// 400 `idempotency_key_missing`.
    Reject,
    /// Streams through, unprotected.
    Pass,
    /// A `UUIDv7` is minted.
    Generate,
    /// The fingerprint is the key.
    Derive,
}

/// R4, `key.syntax`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySyntax {
    /// `"abc"` and `abc`.
    Lenient,
    /// `"abc"` only, as in the IETF draft.
    Strict,
}

/// R4, `key.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// Any text.
    Any,
    /// A UUID in its hyphenated form.
    Uuid,
}

/// R9, `key.upstream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUpstream {
    /// As received.
    Forward,
    /// Removed.
    Strip,
}

/// `[policy.fingerprint]` (R10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintPolicy {
    /// Request fields that must not change between tries.
    pub headers: Vec<HeaderName>,
    /// Request fields that tell callers apart; kept as hashes.
    pub caller: Vec<HeaderName>,
    /// Whether the query counts.
    pub query: bool,
    /// How the body counts.
    pub body: BodyMode,
    /// Members left out of a JSON body.
    pub ignore: Vec<JsonPointer>,
}

/// R10, `fingerprint.body`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyMode {
    /// Octet by octet.
    Raw,
    /// RFC 8785 canonical form; what is no JSON is compared raw.
    Json,
    /// Not at all.
    None,
}

/// `[policy.replay]` (R21, R23).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayPolicy {
    /// The field that marks a replay.
    pub marker: HeaderName,
    /// R23: `Idempotency-Expires` on answers.
    pub announce_expiry: bool,
    /// Fields that are not replayed.
    pub strip: Vec<HeaderName>,
}

/// A JSON pointer (RFC 6901) that was checked to be one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer(String);

impl JsonPointer {
    /// Parses a pointer: empty, or `/`-separated with `~0` and `~1` as the only escapes.
    pub fn parse(text: &str) -> Option<Self> {
        if !text.is_empty() && !text.starts_with('/') {
            return None;
        }
        let mut rest = text;
        while let Some(at) = rest.find('~') {
            let after = rest.get(at + 1..)?;
            if !after.starts_with(['0', '1']) {
                return None;
            }
            rest = after;
        }
        Some(Self(text.to_owned()))
    }

    /// The pointer as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for KeyPolicy {
    fn default() -> Self {
        Self {
            header: HeaderName::from_static("idempotency-key"),
            aliases: Vec::new(),
            missing: MissingKey::Reject,
            required_on: covered_methods(),
            syntax: KeySyntax::Lenient,
            format: KeyFormat::Any,
            max_length: 255,
            from_query: None,
            from_body: None,
            derive_window: Duration::from_secs(10),
            upstream: KeyUpstream::Forward,
        }
    }
}

impl Default for FingerprintPolicy {
    fn default() -> Self {
        Self {
            headers: vec![http::header::CONTENT_TYPE, http::header::CONTENT_ENCODING],
            caller: vec![
                http::header::AUTHORIZATION,
                http::header::COOKIE,
                HeaderName::from_static("x-api-key"),
                HeaderName::from_static("api-key"),
                HeaderName::from_static("x-auth-token"),
            ],
            query: true,
            body: BodyMode::Raw,
            ignore: Vec::new(),
        }
    }
}

impl Default for ReplayPolicy {
    fn default() -> Self {
        Self {
            marker: HeaderName::from_static("idempotent-replayed"),
            announce_expiry: false,
            strip: Vec::new(),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        let day = Duration::from_hours(24);
        Self {
            mode: Mode::Enforce,
            methods: covered_methods(),
            scope: Vec::new(),
            ttl: day,
            failed_ttl: day,
            unresolved_ttl: day,
            lease: Duration::from_secs(30),
            in_flight_wait: Duration::from_secs(10),
            max_waiters: 10_000,
            max_waiters_per_key: 1_000,
            on_5xx: On5xx::Record,
            on_unknown: OnUnknown::Auto,
            on_store_error: OnStoreError::Reject,
            release_statuses: vec![401, 403, 407, 409, 421, 423, 425, 429],
            max_request: 1 << 20,
            max_response: 1 << 20,
            stream: false,
            grpc: Grpc::Pass,
            docs_url: None,
            key: KeyPolicy::default(),
            fingerprint: FingerprintPolicy::default(),
            replay: ReplayPolicy::default(),
        }
    }
}

/// R1: POST, PUT, PATCH, DELETE.
pub fn covered_methods() -> Vec<Method> {
    vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_holds_what_http_does_not_call_idempotent() {
        let retried = [Method::PUT, Method::DELETE];
        let held = [
            Method::POST,
            Method::PATCH,
            Method::from_bytes(b"MERGE").unwrap(),
        ];
        assert!(retried.iter().all(|method| OnUnknown::Auto.retries(method)));
        assert!(held.iter().all(|method| !OnUnknown::Auto.retries(method)));
        assert!(OnUnknown::Retry.retries(&Method::POST));
        assert!(!OnUnknown::Hold.retries(&Method::PUT));
    }

    #[test]
    fn pointers_follow_rfc_6901() {
        for good in ["", "/", "/a/b", "/a~1b", "/m~0n", "/0"] {
            assert!(JsonPointer::parse(good).is_some(), "{good}");
        }
        for bad in ["a", "a/b", "/a~", "/a~2", "#/a"] {
            assert!(JsonPointer::parse(bad).is_none(), "{bad}");
        }
    }
}
