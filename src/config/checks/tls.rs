//! Checks on the files of `[server.tls]`, `[upstream.tls]`, `[store.tls]` and
//! `[store.cache_tls]`: there, readable, pairs.

use std::fmt;

use super::super::Config;
use super::Checks;
use crate::proxy::UpstreamUrl;
use crate::store::StoreUrl;
use crate::tls::{Side, inspect};

const UPSTREAM: [&str; 4] = [
    "upstream.tls.ca_file",
    "upstream.tls.server_name",
    "upstream.tls.cert_file",
    "upstream.tls.key_file",
];

const STORE: [&str; 4] = [
    "store.tls.ca_file",
    "store.tls.server_name",
    "store.tls.cert_file",
    "store.tls.key_file",
];

const CACHE: [&str; 4] = [
    "store.cache_tls.ca_file",
    "store.cache_tls.server_name",
    "store.cache_tls.cert_file",
    "store.cache_tls.key_file",
];

impl Checks<'_, '_> {
    /// Looks into the files.
    pub(super) fn certificates(&mut self, config: &Config) {
        if let Some(tls) = &config.server.tls {
            let keys = [
                "server.tls.cert_file",
                "server.tls.key_file",
                "server.tls.client_ca_file",
            ];
            self.files(&keys, tls, &[]);
        }
        if matches!(config.proxy.upstream.url, UpstreamUrl::Https(_)) {
            self.files(&UPSTREAM, &config.proxy.upstream.tls, &["upstream.url"]);
        }
        if config.store.url.is_tls() {
            self.files(&STORE, &config.store.tls, &["store.url", "store.url_file"]);
        }
        if let Some(cache) = config
            .store
            .cache
            .as_ref()
            .filter(|cache| cache.url.is_tls())
        {
            self.files(&CACHE, &cache.tls, &["store.cache", "store.cache_file"]);
        }
    }

    fn files(&mut self, keys: &[&str], side: &impl Side, urls: &[&str]) {
        if self.spot(None, keys).is_none() {
            return;
        }
        match inspect(side) {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.warning(None, &[found.key], found.to_string(), found.help);
            }
            Err(findings) => {
                for found in findings {
                    // Where nothing is written it is the url that asks for it.
                    let keys = [&[found.key], urls].concat();
                    self.error(None, &keys, found.to_string(), found.help);
                }
            }
        }
    }

    /// `[upstream.tls]` belongs to `https://`, `[store.tls]` to a store over TLS,
    /// `[store.cache_tls]` to such a cache.
    pub(super) fn tls_belongs(&mut self, config: &Config) {
        let (upstream, store) = (&config.proxy.upstream.url, &config.store.url);
        if !matches!(upstream, UpstreamUrl::Https(_)) {
            let help = "write an https:// url, or remove [upstream.tls]";
            self.means_nothing(&UPSTREAM, &["upstream.url"], &of_url(upstream), help);
        }
        if !store.is_tls() {
            let help = "write a store url with TLS, or remove [store.tls]";
            let urls = ["store.url", "store.url_file"];
            self.means_nothing(&STORE, &urls, &of_url(store), help);
        }
        let cache = config.store.cache.as_ref().map(|cache| &cache.url);
        if !cache.is_some_and(StoreUrl::is_tls) {
            let help = "write a cache url with TLS (rediss://), or remove [store.cache_tls]";
            let urls = ["store.cache", "store.cache_file"];
            let where_not = cache.map_or_else(|| "without `cache`".to_owned(), of_url);
            self.means_nothing(&CACHE, &urls, &where_not, help);
        }
    }

    fn means_nothing(&mut self, keys: &[&str], urls: &[&str], where_not: &str, help: &str) {
        if let Some(key) = keys.iter().find(|key| self.written(key)) {
            let message = format!("`{key}` means nothing {where_not}");
            let keys = [&[*key], urls].concat();
            self.error(None, &keys, message, help);
        }
    }
}

fn of_url(url: &impl fmt::Display) -> String {
    format!("for `{url}`")
}
