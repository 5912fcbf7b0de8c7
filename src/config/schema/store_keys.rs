//! The keys of `[store]`. Data only.

use super::keys::key;
use super::{Key, Kind};

/// `[store]`.
pub(super) const STORE: &[Key] = &[
    key(
        "store.url",
        Kind::Text("url"),
        r#""file:retrysafe.db""#,
        "Where records are kept: `memory:`, `file:PATH`, `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `redis+unix://[...@]/PATH[?db=DB]`, `redis+sentinel://[...@]HOST[:PORT],.../MASTER[/DB]` or `redis+cluster://[...@]HOST[:PORT],...`, or `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE`. `rediss` in place of `redis` is the same over TLS.",
    ),
    key(
        "store.url_file",
        Kind::Text("path"),
        "",
        "A file that holds the store url, instead of `url`. One line break at its end is ignored.",
    ),
    key(
        "store.namespace",
        Kind::Text("name"),
        r#""retrysafe""#,
        "Part of every record key. Another namespace is an empty store. 1 to 64 of A-Z a-z 0-9 . _ -",
    ),
    key(
        "store.secret",
        Kind::Text("secret"),
        "",
        "Record keys and fingerprints are HMACs under it. 32 characters or more; another one forgets every key.",
    ),
    key(
        "store.secret_file",
        Kind::Text("path"),
        "",
        "A file that holds the secret, instead of `secret`. One line break at its end is ignored.",
    ),
    key(
        "store.timeout",
        Kind::Duration,
        r#""250ms""#,
        "The deadline of one store call.",
    ),
    key(
        "store.wait_replicas",
        Kind::Integer,
        "0",
        "Redis: replicas that must have a claim or settle before it counts. What they have survives a failover to one of them.",
    ),
    key(
        "store.single_replica",
        Kind::Boolean,
        "false",
        "`memory:` and `file:` stores under Kubernetes need `true`.",
    ),
    key(
        "store.hold_off",
        Kind::Duration,
        r#""20s""#,
        "Redis, PostgreSQL: how long absent keys are not given out (503) after it lost its memory. Where it is not set it is two thirds of the longest lease, two renewals; \"0s\": nobody looks.",
    ),
    key(
        "store.allow_eviction",
        Kind::Boolean,
        "false",
        "Start although Redis may evict records. An evicted record lets a retry run again.",
    ),
    key(
        "store.max_records",
        Kind::Integer,
        "1000000",
        "Records in a `memory:` or `file:` store; beyond it claims are refused.",
    ),
    key(
        "store.connections",
        Kind::Integer,
        "8",
        "Sessions with a `postgres://` store at most, for the whole process. One more waits for wake-ups.",
    ),
    key(
        "store.cache",
        Kind::Text("url"),
        "",
        "A Redis that answers replays for a `postgres://` store: `redis://` or `rediss://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `redis+unix:///PATH`.",
    ),
    key(
        "store.cache_file",
        Kind::Text("path"),
        "",
        "A file that holds the cache's url, instead of `cache`. One line break at its end is ignored.",
    ),
    key(
        "store.cache_ttl",
        Kind::Duration,
        r#""60s""#,
        "How long a copy in the cache is used at most.",
    ),
    key(
        "store.compress_above",
        Kind::Size,
        "",
        "Records from this size on are compressed (LZ4). Without it none is. Of no use where answers come compressed.",
    ),
    key(
        "store.encryption.key_file",
        Kind::Text("path"),
        "",
        "Records are sealed under the first key of this file and opened by any of them: 32 octets in base64 on each line.",
    ),
    key(
        "store.encryption.accept_plaintext",
        Kind::Boolean,
        "false",
        "Records that are not sealed are read too: while they are still there, after sealing was switched on.",
    ),
    key(
        "store.tls.ca_file",
        Kind::Text("path"),
        "",
        "Who vouches for a store over TLS, PEM. Without it whom the system trusts.",
    ),
    key(
        "store.tls.server_name",
        Kind::Text("host name"),
        "",
        "The name that the store's certificate must bear. Without it the host that is connected to.",
    ),
    key(
        "store.tls.cert_file",
        Kind::Text("path"),
        "",
        "The certificate that is shown to the store, then those of its issuers, PEM.",
    ),
    key(
        "store.tls.key_file",
        Kind::Text("path"),
        "",
        "Its private key, PEM, not encrypted. Changed files are taken while Retrysafe runs.",
    ),
    key(
        "store.cache_tls.ca_file",
        Kind::Text("path"),
        "",
        "Who vouches for a cache over TLS, PEM. Without it whom the system trusts.",
    ),
    key(
        "store.cache_tls.server_name",
        Kind::Text("host name"),
        "",
        "The name that the cache's certificate must bear. Without it the host that is connected to.",
    ),
    key(
        "store.cache_tls.cert_file",
        Kind::Text("path"),
        "",
        "The certificate that is shown to the cache, then those of its issuers, PEM.",
    ),
    key(
        "store.cache_tls.key_file",
        Kind::Text("path"),
        "",
        "Its private key, PEM, not encrypted. Changed files are taken while Retrysafe runs.",
    ),
];
