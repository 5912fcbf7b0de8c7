//! Towards clients: the certificate they are shown, and which of them are let in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;
use tokio_rustls::TlsAcceptor;

use super::{Contents, Holds, Judged, Live, Side, TlsFile, refused};

/// `[server.tls]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// The certificate and those of its issuers, PEM.
    pub cert_file: PathBuf,
    /// Its private key, PEM.
    pub key_file: PathBuf,
    /// Who vouches for clients; `None`: nobody is asked for a certificate.
    pub client_ca_file: Option<PathBuf>,
    /// Whether a client may come without one.
    pub client_auth: ClientAuth,
}

/// `server.tls.client_auth`, where there is a `client_ca_file`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate, no connection.
    Required,
    /// None is taken, a wrong one is not.
    Optional,
}

const CERTIFICATE: TlsFile = TlsFile {
    key: "server.tls.cert_file",
    holds: Holds::Chain,
};
const KEY: TlsFile = TlsFile {
    key: "server.tls.key_file",
    holds: Holds::Key,
};
const CLIENT_CA: TlsFile = TlsFile {
    key: "server.tls.client_ca_file",
    holds: Holds::Authorities,
};

/// Takes handshakes, each with the newest files.
#[derive(Debug, Clone)]
pub struct Acceptor(Live<ServerConfig>);

impl Acceptor {
    /// Over what is in use.
    pub fn new(live: Live<ServerConfig>) -> Self {
        Self(live)
    }

    /// For one connection.
    pub fn now(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.now())
    }
}

impl Side for ServerSettings {
    type Made = ServerConfig;

    fn files(&self) -> Vec<(TlsFile, &Path)> {
        let mut files = vec![
            (CERTIFICATE, self.cert_file.as_path()),
            (KEY, self.key_file.as_path()),
        ];
        files.extend(self.client_ca_file.as_deref().map(|path| (CLIENT_CA, path)));
        files
    }

    fn judge(&self, contents: &Contents) -> Judged<ServerConfig> {
        let provider = Arc::new(default_provider());
        let pair = contents.pair(CERTIFICATE, KEY, &provider);
        let roots = self.client_ca_file.as_ref();
        let roots = roots.map(|_| contents.roots(CLIENT_CA)).transpose();
        let (certified, roots) = match (pair, roots) {
            (Ok(certified), Ok(roots)) => (certified, roots),
            (pair, roots) => {
                let mut found = pair.err().unwrap_or_default();
                found.extend(roots.err());
                return Err(found);
            }
        };
        let warning = super::files::out_of_date(&certified, CERTIFICATE, "clients");
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(CERTIFICATE.key, &error))?;
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match self.client_auth {
                    ClientAuth::Required => verifier,
                    ClientAuth::Optional => verifier.allow_unauthenticated(),
                };
                let verifier: Arc<dyn ClientCertVerifier> = verifier.build().map_err(|error| {
                    let error = rustls::Error::General(error.to_string());
                    refused(CLIENT_CA.key, &error)
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let shown = Arc::new(SingleCertAndKey::from(certified));
        let mut server = builder.with_cert_resolver(shown);
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok((Arc::new(server), warning))
    }
}
