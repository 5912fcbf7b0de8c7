//! `[store]`: the url or the file that holds it, the cache's likewise, and the rest.

use std::time::Duration;

use super::{Reader, url};
use crate::config::Config;
use crate::config::diagnostic::Sink;
use crate::config::url::{UrlError, parse_store_url};
use crate::config::value::measure::above_zero;
use crate::config::value::{Value, boolean, integer, label, text};
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
    reader.set("store.namespace", &mut store.namespace, label);
    reader.set("store.timeout", &mut store.timeout, above_zero);
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
    store.cache = cache.map(|url| Cache { url, ttl });
}

/// A Redis and nothing else.
fn cache_url(text: &str) -> Result<StoreUrl, UrlError> {
    const HELP: &str = "write \"redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]\"";
    match parse_store_url(text)? {
        url @ StoreUrl::Redis(_) => Ok(url),
        _ => Err(UrlError {
            message: "is no Redis".to_owned(),
            help: HELP.to_owned(),
        }),
    }
}

/// Reads a url that is written itself or stands in a file: `keys`, in that order.
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
        reader.set(file_key, target, |value, sink| {
            url_file(value, sink, &parse)
        });
    }
    reader.set(key, target, |value, sink| url(value, sink, &parse));
}

/// Reads a url out of the file that `value` names. The content is never shown.
fn url_file<T>(
    value: &Value,
    sink: &mut Sink<'_>,
    parse: impl Fn(&str) -> Result<T, UrlError>,
) -> Option<T> {
    let path = text(value, sink)?;
    let content = match std::fs::read_to_string(path) {
        Ok(content) => content,
        Err(error) => {
            let help = "the file holds the store url and nothing else";
            return value.wrong(sink, format!("cannot be read: {error}"), help);
        }
    };
    let line = content.strip_suffix('\n').unwrap_or(&content);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match parse(line) {
        Ok(url) => Some(url),
        Err(UrlError { message, help }) => {
            value.wrong(sink, format!("names a file whose url {message}"), help)
        }
    }
}
