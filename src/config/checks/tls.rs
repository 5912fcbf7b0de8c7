//! Checks on the files of `[server.tls]` and `[upstream.tls]`: there, readable, pairs.

use super::super::Config;
use super::Checks;
use crate::proxy::UpstreamUrl;
use crate::tls::{Side, inspect};

const UPSTREAM: [&str; 4] = [
    "upstream.tls.ca_file",
    "upstream.tls.server_name",
    "upstream.tls.cert_file",
    "upstream.tls.key_file",
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
            self.files(&keys, tls);
        }
        if matches!(config.proxy.upstream.url, UpstreamUrl::Https(_)) {
            self.files(&UPSTREAM, &config.proxy.upstream.tls);
        }
    }

    fn files(&mut self, keys: &[&str], side: &impl Side) {
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
                    let keys = [found.key, "upstream.url"];
                    self.error(None, &keys, found.to_string(), found.help);
                }
            }
        }
    }

    /// `[upstream.tls]` belongs to `https://`.
    pub(super) fn upstream_tls(&mut self, config: &Config) {
        let url = &config.proxy.upstream.url;
        let written = UPSTREAM.into_iter().find(|key| self.written(key));
        if let Some(key) = written.filter(|_| !matches!(url, UpstreamUrl::Https(_))) {
            self.error(
                None,
                &[key, "upstream.url"],
                format!("`{key}` means nothing for `{url}`"),
                "write an https:// url, or remove [upstream.tls]",
            );
        }
    }
}
