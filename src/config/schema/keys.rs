//! The keys of all tables but `[store]` and `[policy]`, and what does not exist yet. Data only.

use super::{Key, Kind, NotYet};

pub(super) const fn key(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key {
        path,
        kind,
        default,
        doc,
    }
}

/// `[server]`, `[upstream]`.
pub(super) const PROCESS: &[Key] = &[
    key(
        "server.listen",
        Kind::Address,
        r#""0.0.0.0:4390""#,
        "Where clients connect. Port 0 takes a free one; the first log line names it.",
    ),
    key(
        "server.threads",
        Kind::Integer,
        "0",
        "Worker threads; 0 takes the number from the CPU quota.",
    ),
    key(
        "server.max_connections",
        Kind::Integer,
        "10000",
        "Client connections at once; beyond it accepting pauses.",
    ),
    key(
        "server.header_timeout",
        Kind::Duration,
        r#""10s""#,
        "From the first byte of a request's head to its end.",
    ),
    key(
        "server.body_timeout",
        Kind::Duration,
        r#""30s""#,
        "Between two pieces of a request body; then 408.",
    ),
    key(
        "server.write_timeout",
        Kind::Duration,
        r#""30s""#,
        "A client that takes no byte for this long is dropped.",
    ),
    key(
        "server.idle_timeout",
        Kind::Duration,
        r#""75s""#,
        "How long a connection may rest between two requests.",
    ),
    key(
        "server.drain",
        Kind::Duration,
        r#""25s""#,
        "How long exchanges may finish after SIGTERM. Keep a pod's grace period longer.",
    ),
    key(
        "server.buffer_budget",
        Kind::Size,
        r#""256MiB""#,
        "All bytes held for covered requests; beyond it 503.",
    ),
    key(
        "server.underscores",
        Kind::Choice(&["drop", "forward"]),
        r#""drop""#,
        "What happens to request field names with `_` in them.",
    ),
    key(
        "server.header_case",
        Kind::Choice(&["lower", "preserve"]),
        r#""lower""#,
        "How field names are written over HTTP/1.1. `preserve`: as they came, Title-Case where they came without, as from HTTP/2 or a record.",
    ),
    key(
        "server.upgrades",
        Kind::List("protocols"),
        r#"["websocket"]"#,
        "Protocols that an uncovered request may switch to.",
    ),
    key(
        "server.trusted_proxies",
        Kind::List("networks"),
        "[]",
        "Peers whose X-Forwarded-* fields are believed, e.g. `[\"10.0.0.0/8\"]`.",
    ),
    key(
        "server.tls.cert_file",
        Kind::Text("path"),
        "",
        "With it clients come over TLS only. The certificate, then those of its issuers, PEM.",
    ),
    key(
        "server.tls.key_file",
        Kind::Text("path"),
        "",
        "Its private key, PEM, not encrypted. Changed files are taken while Retrysafe runs.",
    ),
    key(
        "server.tls.client_ca_file",
        Kind::Text("path"),
        "",
        "Who vouches for clients, PEM. With it clients show a certificate.",
    ),
    key(
        "server.tls.client_auth",
        Kind::Choice(&["required", "optional"]),
        "",
        "`required` unless written. `optional` takes clients without a certificate too, never with a wrong one.",
    ),
    key(
        "upstream.url",
        Kind::Text("url"),
        r#""http://127.0.0.1:3000""#,
        "The API behind: `http://HOST[:PORT]`, `https://HOST[:PORT]` (HTTP/2 where it offers that) or `h2c://HOST[:PORT]` (HTTP/2 with prior knowledge), without path, query or user info, or `unix:PATH`.",
    ),
    key(
        "upstream.connect_timeout",
        Kind::Duration,
        r#""2s""#,
        "Until a connection to the upstream stands.",
    ),
    key(
        "upstream.answer_within",
        Kind::Duration,
        r#""30s""#,
        "Then the client gets 504, while the exchange goes on.",
    ),
    key(
        "upstream.give_up_after",
        Kind::Duration,
        r#""10m""#,
        "Then the exchange is given up and its outcome is unknown.",
    ),
    key(
        "upstream.max_exchanges",
        Kind::Integer,
        "1024",
        "Exchanges at once, those whose client has gone included; beyond it 503.",
    ),
    key(
        "upstream.pool_idle_timeout",
        Kind::Duration,
        r#""4s""#,
        "How long an idle connection is kept. Shorter than the upstream's own keep-alive.",
    ),
    key(
        "upstream.pool_max_age",
        Kind::Duration,
        r#""1m""#,
        "How long a connection takes new exchanges. So long a changed DNS answer may go unnoticed.",
    ),
    key(
        "upstream.host",
        Kind::Choice(&["preserve", "upstream"]),
        r#""preserve""#,
        "Which Host the upstream sees: the client's or its own.",
    ),
    key(
        "upstream.tls.ca_file",
        Kind::Text("path"),
        "",
        "Who vouches for an `https://` upstream, PEM. Without it whom the system trusts.",
    ),
    key(
        "upstream.tls.server_name",
        Kind::Text("host name"),
        "",
        "The name that the upstream's certificate must bear. Without it the host of `upstream.url`.",
    ),
    key(
        "upstream.tls.cert_file",
        Kind::Text("path"),
        "",
        "The certificate that is shown to the upstream, then those of its issuers, PEM.",
    ),
    key(
        "upstream.tls.key_file",
        Kind::Text("path"),
        "",
        "Its private key, PEM, not encrypted. Changed files are taken while Retrysafe runs.",
    ),
];

/// `[[route]]`, `[health]`, `[log]`.
pub(super) const REST: &[Key] = &[
    key(
        "route.name",
        Kind::Text("name"),
        "",
        "Required, unique. The label in metrics and logs. 1 to 64 of A-Z a-z 0-9 . _ -",
    ),
    key(
        "route.host",
        Kind::Text("host name"),
        "",
        "`api.example.com` or `*.example.com`; without it any host.",
    ),
    key(
        "route.path",
        Kind::Text("path pattern"),
        "",
        "Required. `{name}` is one segment, `{*rest}` one or more, at the end only.",
    ),
    key(
        "route.methods",
        Kind::List("methods"),
        "",
        "Which methods the route matches; without it any.",
    ),
    key(
        "health.listen",
        Kind::Address,
        r#""0.0.0.0:4391""#,
        "`/livez`, `/startupz`, `/readyz`, `/metrics`.",
    ),
    key(
        "health.ready_requires_store",
        Kind::Boolean,
        "false",
        "`true` takes every replica out at once when the store is down.",
    ),
    key(
        "log.format",
        Kind::Choice(&["auto", "text", "json"]),
        r#""auto""#,
        "`auto`: text on a terminal, JSON elsewhere.",
    ),
    key(
        "log.level",
        Kind::Text("filter"),
        r#""info""#,
        "`error`, `warn`, `info`, `debug`, `trace` or `off`, also by part: `info,retrysafe::store=debug`.",
    ),
];

const fn not_yet(path: &'static str, help: &'static str) -> NotYet {
    NotYet { path, help }
}

/// What is planned and does not exist.
pub(super) const NOT_YET: &[NotYet] = &[
    not_yet(
        "jwt",
        "remove it; scopes take `header:NAME` or `basic:user`",
    ),
    not_yet(
        "admin",
        "remove it; `retrysafe key` shows and resolves records",
    ),
];
