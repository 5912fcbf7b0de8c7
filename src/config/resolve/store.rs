//! `[store]`: the url or the file that holds it, the cache's likewise, and the rest.

use std::time::Duration;

use super::{Reader, url};
use crate::config::Config;
use crate::config::diagnostic::Sink;
use crate::config::url::{UrlError, parse_store_url};
use crate::config::value::measure::{above_zero, duration};
use crate::config::value::{Value, boolean, choice, integer, label, text};
use crate::idempotency::Secret;
use crate::store::tier::Tier;
use crate::store::{Cache, StoreUrl};

/// Unless `store.cache_ttl` says otherwise.
const CACHE_TTL: Duration = Duration::from_mins(1);

/// Sets `store`.
pub(super) fn store(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let store = &mut config.store;
    either(
        reader,
        ["store.url", "store.url_file"],
        &mut store.url,
        parse_store_url,
    );
    reader.set(
        "policy.require_tier",
        &mut store.require_tier,
        choice(&[
            ("T0", Tier::T0),
            ("T1", Tier::T1),
            ("T2", Tier::T2),
            ("T3", Tier::T3),
            ("T4", Tier::T4),
            ("T5", Tier::T5),
        ]),
    );
    reader.set("store.namespace", &mut store.namespace, label);
    either(
        reader,
        ["store.secret", "store.secret_file"],
        &mut store.secret,
        secret,
    );
    reader.set("store.timeout", &mut store.timeout, above_zero);
    reader.set(
        "store.wait_replicas",
        &mut store.wait_replicas,
        integer(0..=100),
    );
    reader.set("store.single_replica", &mut store.single_replica, boolean);
    reader.set("store.allow_eviction", &mut store.allow_eviction, boolean);
    reader.set(
        "store.max_records",
        &mut store.max_records,
        integer(1..=u64::MAX),
    );
    reader.set(
        "store.connections",
        &mut store.connections,
        integer(2..=1000),
    );
    let (mut cache, mut ttl) = (None, CACHE_TTL);
    either(
        reader,
        ["store.cache", "store.cache_file"],
        &mut cache,
        |text| cache_url(text).map(Some),
    );
    reader.set("store.cache_ttl", &mut ttl, above_zero);
    let cache_tls = super::tls::cache(reader);
    store.cache = cache.map(|url| Cache {
        url,
        ttl,
        tls: cache_tls,
    });
}

/// By default two renewals of the longest lease: by then whoever runs a request has spoken twice.
pub(super) fn hold_off(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let leases = config.routes.iter().map(|route| route.policy.lease);
    let longest = leases.fold(config.policy.lease, Duration::max);
    config.store.hold_off = longest / 3 * 2;
    reader.set("store.hold_off", &mut config.store.hold_off, duration);
}

fn secret(text: &str) -> Result<Option<Secret>, UrlError> {
    // An environment made of a file may keep its last line break; the secret is the same.
    match Secret::new(text.trim_end_matches(['\r', '\n']).as_bytes()) {
        Some(secret) => Ok(Some(secret)),
        None => Err(UrlError {
            message: "is too short".to_owned(),
            help: "take 32 characters or more, e.g. of `openssl rand -base64 32`".to_owned(),
        }),
    }
}

/// One Redis and nothing else.
fn cache_url(text: &str) -> Result<StoreUrl, UrlError> {
    const HELP: &str =
        "write \"redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]\", or \"rediss://\" for TLS";
    match parse_store_url(text)? {
        url @ StoreUrl::Redis(_)
            if ["redis://", "rediss://", "redis+unix://"]
                .iter()
                .any(|way| text.starts_with(way)) =>
        {
            Ok(url)
        }
        _ => Err(UrlError {
            message: "is no single Redis".to_owned(),
            help: HELP.to_owned(),
        }),
    }
}

/// Reads what is written itself or stands in a file: the keys in that order.
fn either<T>(
    reader: &mut Reader<'_, '_>,
    [key, file_key]: [&'static str; 2],
    target: &mut T,
    parse: impl Fn(&str) -> Result<T, UrlError>,
) {
    if let Some(file) = reader.values.get(file_key).filter(|_| reader.has(key)) {
        let message = format!("`{key}` and `{file_key}` are both set");
        reader.sink.error(&file.at, message, "keep one of the two");
        reader.failed.push(file.at.clone());
    } else {
        reader.set(file_key, target, |value, sink| content(value, sink, &parse));
    }
    reader.set(key, target, |value, sink| url(value, sink, &parse));
}

/// Reads the file that `value` names. The content is never shown.
fn content<T>(
    value: &Value,
    sink: &mut Sink<'_>,
    parse: impl Fn(&str) -> Result<T, UrlError>,
) -> Option<T> {
    let path = text(value, sink)?;
    let content = match std::fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) => {
            let help = "the file holds the value and nothing else";
            return value.wrong(sink, format!("cannot be read: {error}"), help);
        }
    };
    let line = content.strip_suffix('\n').unwrap_or(&content);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match parse(line) {
        Ok(url) => Some(url),
        Err(UrlError { message, help }) => {
            value.wrong(sink, format!("names a file whose content {message}"), help)
        }
    }
}
