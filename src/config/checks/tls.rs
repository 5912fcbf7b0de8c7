//! Checks on the files of `[server.tls]`: there, readable, a pair.

use super::super::Config;
use super::Checks;
use crate::server::tls::inspect;

impl Checks<'_, '_> {
    /// Looks into the files.
    pub(super) fn certificates(&mut self, config: &Config) {
        let Some(tls) = &config.server.tls else {
            return;
        };
        let keys = [
            "server.tls.cert_file",
            "server.tls.key_file",
            "server.tls.client_ca_file",
        ];
        if self.spot(None, &keys).is_none() {
            return;
        }
        match inspect(tls) {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.warning(None, &[found.file.key()], found.to_string(), found.help);
            }
            Err(findings) => {
                for found in findings {
                    self.error(None, &[found.file.key()], found.to_string(), found.help);
                }
            }
        }
    }
}
