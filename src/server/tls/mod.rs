//! TLS towards clients: which certificate is shown, which clients are let in.
//!
//! Invariant: what serves was checked whole, the key fits the certificate. A new pair that is not
//! fit never replaces one that is.
//!
//! Deliberately absent: early data (a replay of the network's own), revocation lists, several
//! certificates by name.
//!
//! Read next: `files.rs` (what is read and refused), `renewal.rs`.

mod files;
mod renewal;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use files::{Contents, Parts};

/// `[server.tls]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
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

/// One of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// `cert_file`
    Certificate,
    /// `key_file`
    Key,
    /// `client_ca_file`
    ClientCa,
}

impl TlsFile {
    /// The key that names it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Certificate => "server.tls.cert_file",
            Self::Key => "server.tls.key_file",
            Self::ClientCa => "server.tls.client_ca_file",
        }
    }
}

/// What is wrong with a file. Never shows its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub file: TlsFile,
    /// What, as it follows the key's name.
    pub message: String,
    /// What to do.
    pub help: &'static str,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` {}", self.file.key(), self.message)
    }
}

/// What is in use now. Each connection takes the newest.
#[derive(Debug, Clone)]
pub struct Tls(watch::Receiver<Arc<ServerConfig>>);

impl Tls {
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.borrow().clone())
    }
}

/// The certificate files and what was made of them.
pub struct Certificates {
    settings: TlsSettings,
    /// The contents that were judged last.
    judged: Contents,
    current: watch::Sender<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Certificates {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Certificates {
    /// Reads and checks every file.
    pub fn load(settings: &TlsSettings) -> Result<Self, Vec<Finding>> {
        let judged = Contents::read(settings);
        let (server, _warning) = judge(settings, &judged)?;
        Ok(Self {
            settings: settings.clone(),
            judged,
            current: watch::Sender::new(server),
        })
    }

    /// For a listener.
    pub fn tls(&self) -> Tls {
        Tls(self.current.subscribe())
    }
}

/// Whether the files are fit to be served with: a warning, or every error.
pub fn inspect(settings: &TlsSettings) -> Result<Option<Finding>, Vec<Finding>> {
    judge(settings, &Contents::read(settings)).map(|(_, warning)| warning)
}

/// How connections are to be spoken to, with these contents.
fn judge(
    settings: &TlsSettings,
    contents: &Contents,
) -> Result<(Arc<ServerConfig>, Option<Finding>), Vec<Finding>> {
    let provider = Arc::new(ring::default_provider());
    let parts = contents.parts(&provider)?;
    let warning = parts.out_of_date(&provider);
    let refused = |error: rustls::Error, file| {
        let message = format!("cannot be used: {error}");
        let help = "";
        vec![Finding {
            file,
            message,
            help,
        }]
    };
    let Parts { certified, roots } = parts;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error, TlsFile::Certificate))?;
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier = match settings.client_auth {
                ClientAuth::Required => verifier,
                ClientAuth::Optional => verifier.allow_unauthenticated(),
            };
            let verifier: Arc<dyn ClientCertVerifier> = verifier.build().map_err(|error| {
                let error = rustls::Error::General(error.to_string());
                refused(error, TlsFile::ClientCa)
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let shown = Arc::new(SingleCertAndKey::from(certified));
    let mut server = builder.with_cert_resolver(shown);
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(server), warning))
}
