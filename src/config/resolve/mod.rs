//! From named values to [`Config`]: each value that was written replaces a default.
//!
//! Invariant: every key of `schema/` is read exactly here or in `policy.rs`, `routes.rs`, `tls.rs` and `vault.rs`; what
//! cannot be read keeps its default and is remembered as failed, so that no check builds on it.
//!
//! Deliberately absent: rules about two values together (`checks/`).

mod policy;
mod routes;
mod store;
mod tls;
mod vault;

use super::Config;
use super::diagnostic::Sink;
use super::document::{Document, Values};
use super::source::Origin;
use super::url::{UrlError, parse_upstream_url};
use super::value::http::protocol;
use super::value::measure::{above_zero, duration, size};
use super::value::{Value, address, boolean, choice, integer, list, log_filter, network, text};
use crate::proxy::{HostHeader, Underscores};
use crate::telemetry::LogFormat;

/// Lays written values over a target.
pub(super) struct Reader<'r, 'a> {
    values: &'r Values,
    sink: &'r mut Sink<'a>,
    /// Where values stand that could not be read.
    failed: &'r mut Vec<Origin>,
}

impl Reader<'_, '_> {
    /// Sets `target` if the key was written and can be read.
    fn set<T>(
        &mut self,
        key: &str,
        target: &mut T,
        read: impl FnOnce(&Value, &mut Sink<'_>) -> Option<T>,
    ) {
        let Some(value) = self.values.get(key) else {
            return;
        };
        match read(value, self.sink) {
            Some(meaning) => *target = meaning,
            None => self.failed.push(value.at.clone()),
        }
    }

    fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }
}

/// A configuration as meant, and the places of values that could not be read.
pub(super) fn resolve(document: &Document, sink: &mut Sink<'_>) -> (Config, Vec<Origin>) {
    let mut config = Config::default();
    let mut failed = Vec::new();
    let mut reader = Reader {
        values: &document.globals,
        sink,
        failed: &mut failed,
    };
    server(&mut reader, &mut config);
    tls::server(&mut reader, &mut config);
    upstream(&mut reader, &mut config);
    tls::upstream(&mut reader, &mut config);
    store::store(&mut reader, &mut config);
    tls::store(&mut reader, &mut config);
    vault::vault(&mut reader, &mut config);
    health_and_log(&mut reader, &mut config);
    policy::base(&mut reader, &mut config.policy);
    config.routes = routes::routes(document, &config.policy, &mut reader);
    store::hold_off(&mut reader, &mut config);
    (config, failed)
}

fn server(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let (server, proxy) = (&mut config.server, &mut config.proxy);
    reader.set("server.listen", &mut server.listen, address);
    reader.set("server.threads", &mut server.threads, integer(0..=1024));
    reader.set(
        "server.max_connections",
        &mut server.max_connections,
        integer(1..=u64::MAX),
    );
    reader.set(
        "server.header_timeout",
        &mut server.header_timeout,
        above_zero,
    );
    reader.set("server.idle_timeout", &mut server.idle_timeout, above_zero);
    reader.set(
        "server.write_timeout",
        &mut server.write_timeout,
        above_zero,
    );
    proxy.write_timeout = server.write_timeout;
    reader.set("server.drain", &mut server.drain, duration);
    reader.set("server.body_timeout", &mut proxy.body_timeout, above_zero);
    reader.set(
        "server.buffer_budget",
        &mut proxy.buffer_budget,
        |value, sink| match size(value, sink)? {
            0 => value.wrong(sink, "must not be zero", "nothing could be held then"),
            bytes => Some(bytes),
        },
    );
    reader.set(
        "server.underscores",
        &mut proxy.underscores,
        choice(&[
            ("drop", Underscores::Drop),
            ("forward", Underscores::Forward),
        ]),
    );
    reader.set(
        "server.header_case",
        &mut server.preserve_header_case,
        choice(&[("lower", false), ("preserve", true)]),
    );
    proxy.preserve_header_case = server.preserve_header_case;
    reader.set("server.upgrades", &mut proxy.upgrades, list(protocol));
    reader.set(
        "server.trusted_proxies",
        &mut proxy.trusted_proxies,
        list(network),
    );
}

fn upstream(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let upstream = &mut config.proxy.upstream;
    reader.set("upstream.url", &mut upstream.url, |value, sink| {
        url(value, sink, parse_upstream_url)
    });
    reader.set(
        "upstream.connect_timeout",
        &mut upstream.connect_timeout,
        above_zero,
    );
    reader.set(
        "upstream.answer_within",
        &mut upstream.answer_within,
        above_zero,
    );
    reader.set(
        "upstream.give_up_after",
        &mut upstream.give_up_after,
        above_zero,
    );
    reader.set(
        "upstream.max_exchanges",
        &mut upstream.max_exchanges,
        integer(1..=u64::MAX),
    );
    reader.set(
        "upstream.pool_idle_timeout",
        &mut upstream.pool_idle_timeout,
        duration,
    );
    reader.set(
        "upstream.pool_max_age",
        &mut upstream.pool_max_age,
        duration,
    );
    reader.set(
        "upstream.host",
        &mut upstream.host_header,
        choice(&[
            ("preserve", HostHeader::Preserve),
            ("upstream", HostHeader::Upstream),
        ]),
    );
}

/// Reads a url with `parse`.
fn url<T>(
    value: &Value,
    sink: &mut Sink<'_>,
    parse: impl FnOnce(&str) -> Result<T, UrlError>,
) -> Option<T> {
    match parse(text(value, sink)?) {
        Ok(meaning) => Some(meaning),
        Err(UrlError { message, help }) => value.wrong(sink, message, help),
    }
}

fn health_and_log(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let (health, log) = (&mut config.health, &mut config.log);
    reader.set("health.listen", &mut health.listen, address);
    reader.set(
        "health.ready_requires_store",
        &mut health.ready_requires_store,
        boolean,
    );
    reader.set(
        "log.format",
        &mut log.format,
        choice(&[
            ("auto", LogFormat::Auto),
            ("text", LogFormat::Text),
            ("json", LogFormat::Json),
        ]),
    );
    reader.set("log.level", &mut log.level, log_filter);
}
