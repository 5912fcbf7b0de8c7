//! Rules about several values together: what cannot work is an error, what weakens a promise is a
//! warning.
//!
//! Invariant: a check points at a line that someone wrote (the route's own before `[policy]`), and
//! keeps silent when one of its values could not be read, since that was reported already.
//!
//! Deliberately absent: single values (`value/`). Read next: `policy.rs`, `routes.rs`.

mod policy;
mod routes;
mod tls;

use std::net::{IpAddr, SocketAddr};

use super::diagnostic::Sink;
use super::document::{Document, RouteTable, Values};
use super::source::Origin;
use super::value::measure::show_duration;
use super::value::{Shape, Value};
use super::{Config, Environment};
use crate::store::StoreUrl;

/// What a check looks at.
pub(super) struct Checks<'c, 'a> {
    pub(super) document: &'c Document,
    /// Where values stand that could not be read.
    pub(super) failed: &'c [Origin],
    pub(super) sink: &'c mut Sink<'a>,
    /// Whether to look into certificate files.
    pub(super) certificates: bool,
}

impl Checks<'_, '_> {
    /// Runs every check.
    pub(super) fn run(&mut self, config: &Config, env: &Environment) {
        self.times(config);
        self.addresses(config);
        self.tls_belongs(config);
        if self.certificates {
            self.certificates(config);
        }
        self.store(config, env);
        self.policy(None, config, &config.policy);
        let document = self.document;
        for (table, route) in document.routes.iter().zip(&config.routes) {
            self.policy(Some(table), config, &route.policy);
        }
        self.routes(config);
    }

    /// Where to point for a finding about `keys`: the first that was written in the route, else
    /// in the tables for all, else the route's header. `None`: one of them could not be read.
    fn spot(&self, route: Option<&RouteTable>, keys: &[&str]) -> Option<Origin> {
        let document = self.document;
        let written = |values: &Values| -> Vec<Origin> {
            let found = keys.iter().filter_map(|key| values.get(*key));
            found.map(|value| value.at.clone()).collect()
        };
        let mut origins = route
            .map(|table| written(&table.values))
            .unwrap_or_default();
        origins.extend(written(&document.globals));
        if origins.iter().any(|origin| self.failed.contains(origin)) {
            return None;
        }
        let header = route.map(|table| table.header.clone());
        Some(
            origins
                .into_iter()
                .next()
                .or(header)
                .unwrap_or(Origin::Whole),
        )
    }

    /// Where `text` stands in the list of strings that was written at `at`.
    fn element(&self, at: &Origin, text: &str) -> Origin {
        let routes = self.document.routes.iter().map(|route| &route.values);
        let mut values = routes
            .chain([&self.document.globals])
            .flat_map(Values::values);
        let list = values.find(|value| value.at == *at);
        let Some(Shape::List(items)) = list.map(|value| &value.shape) else {
            return at.clone();
        };
        let same = |value: &&Value| match &value.shape {
            Shape::Text(written) => written.eq_ignore_ascii_case(text),
            _ => false,
        };
        items
            .iter()
            .find(same)
            .map_or(at, |value| &value.at)
            .clone()
    }

    fn error(
        &mut self,
        route: Option<&RouteTable>,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        if let Some(at) = self.spot(route, keys) {
            self.sink.error(&at, message, help);
        }
    }

    fn warning(
        &mut self,
        route: Option<&RouteTable>,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        if let Some(at) = self.spot(route, keys) {
            self.sink.warning(&at, message, help);
        }
    }

    fn written(&self, key: &str) -> bool {
        self.document.globals.contains_key(key)
    }

    fn times(&mut self, config: &Config) {
        let upstream = &config.proxy.upstream;
        let within = show_duration(upstream.answer_within);
        if upstream.give_up_after < upstream.answer_within {
            let after = show_duration(upstream.give_up_after);
            self.error(
                None,
                &["upstream.give_up_after", "upstream.answer_within"],
                format!("`give_up_after` ({after}) is below `answer_within` ({within})"),
                format!("write at least \"{within}\" for give_up_after"),
            );
        }
        // With both as they are by default nobody chose anything: no warning then.
        let chosen = self.written("server.drain") || self.written("upstream.answer_within");
        if chosen && config.server.drain < upstream.answer_within {
            let drain = show_duration(config.server.drain);
            self.warning(
                None,
                &["server.drain", "upstream.answer_within"],
                format!("`drain` ({drain}) is below `answer_within` ({within})"),
                "a slow exchange is cut off at shutdown and its outcome is unknown; raise drain, \
                 and the pod's grace period with it",
            );
        }
    }

    fn addresses(&mut self, config: &Config) {
        let (proxy, health) = (config.server.listen, config.health.listen);
        if collide(proxy, health) {
            self.error(
                None,
                &["health.listen", "server.listen"],
                format!("`server.listen` and `health.listen` are one address: {health}"),
                "choose another port for one of them",
            );
        }
        let Some(upstream) = config.proxy.upstream.url.place() else {
            return;
        };
        let Ok(ip) = upstream.host.parse::<IpAddr>() else {
            return;
        };
        let own = proxy.port() == upstream.port && proxy.port() != 0;
        if own && (proxy.ip() == ip || (proxy.ip().is_unspecified() && ip.is_loopback())) {
            self.error(
                None,
                &["upstream.url", "server.listen"],
                "the upstream is Retrysafe itself: `upstream.url` is where `server.listen` is",
                "write the address of the API behind",
            );
        }
    }

    /// A cache belongs to a store that reads more slowly, its time to a cache.
    fn cache(&mut self, config: &Config) {
        const CACHE: [&str; 2] = ["store.cache", "store.cache_file"];
        let written = CACHE.iter().any(|key| self.written(key));
        let url = &config.store.url;
        if written && !matches!(url, StoreUrl::Postgres(_)) {
            let key = CACHE.iter().find(|key| self.written(key)).unwrap_or(&"");
            let message = format!("`{key}` means nothing for `{url}`");
            let help = "remove it: this store answers replays itself";
            self.error(
                None,
                &[CACHE.as_slice(), &["store.url"]].concat(),
                message,
                help,
            );
        }
        if !written && self.written("store.cache_ttl") {
            let help = "write cache, the url of a Redis, or remove it";
            let message = "`store.cache_ttl` has no effect without `cache`";
            self.warning(None, &["store.cache_ttl"], message, help);
        }
    }

    fn store(&mut self, config: &Config, env: &Environment) {
        const URL: [&str; 2] = ["store.url", "store.url_file"];
        let store = &config.store;
        let one_replica = matches!(store.url, StoreUrl::Memory | StoreUrl::File(_));
        if store.url == StoreUrl::Memory {
            self.warning(
                None,
                &URL,
                "a `memory:` store forgets every record when the process ends",
                "for trials only; write \"file:PATH\" to survive restarts",
            );
        }
        if one_replica && !store.single_replica && env.contains_key("KUBERNETES_SERVICE_HOST") {
            self.error(
                None,
                &["store.url", "store.url_file", "store.single_replica"],
                "under Kubernetes this store protects one replica only",
                "write a redis:// or postgres:// url, or single_replica = true if there is never a second one",
            );
        }
        if store.single_replica {
            let (message, help) = if one_replica {
                (
                    "`single_replica` is set: a second replica would run requests again",
                    "make sure that updates stop the old replica first (strategy: Recreate)",
                )
            } else {
                (
                    "`single_replica` has no effect with a shared store",
                    "remove it",
                )
            };
            self.warning(None, &["store.single_replica"], message, help);
        }
        self.cache(config);
        if store.allow_eviction {
            self.warning(
                None,
                &["store.allow_eviction"],
                "with `allow_eviction` Redis may drop records: a retry can run again",
                "set maxmemory-policy noeviction in Redis and remove it",
            );
        }
    }
}

/// Whether two listeners cannot both be bound.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (any || a.ip() == b.ip())
}

#[cfg(test)]
mod tests;
