//! Towards servers: who is trusted to vouch for them, and the certificate that is shown to them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{Contents, Finding, Holds, Judged, Live, Side, TlsFile, refused};

/// Whom a TLS client trusts and what it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// Which keys of the configuration name the files.
    pub keys: ClientKeys,
    /// Who vouches for the server, PEM; `None`: whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// The own certificate and those of its issuers with its private key, PEM.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must bear; `None`: the one in its url.
    pub server_name: Option<String>,
}

/// The keys that name a client's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientKeys {
    /// The table that they are in.
    pub table: &'static str,
    ca: TlsFile,
    certificate: TlsFile,
    key: TlsFile,
}

impl ClientKeys {
    /// `[store.tls]`
    pub const STORE: Self = Self {
        table: "store.tls",
        ca: TlsFile {
            key: "store.tls.ca_file",
            holds: Holds::Authorities,
        },
        certificate: TlsFile {
            key: "store.tls.cert_file",
            holds: Holds::Chain,
        },
        key: TlsFile {
            key: "store.tls.key_file",
            holds: Holds::Key,
        },
    };

    /// `[store.cache_tls]`
    pub const CACHE: Self = Self {
        table: "store.cache_tls",
        ca: TlsFile {
            key: "store.cache_tls.ca_file",
            holds: Holds::Authorities,
        },
        certificate: TlsFile {
            key: "store.cache_tls.cert_file",
            holds: Holds::Chain,
        },
        key: TlsFile {
            key: "store.cache_tls.key_file",
            holds: Holds::Key,
        },
    };

    /// `[upstream.tls]`
    pub const UPSTREAM: Self = Self {
        table: "upstream.tls",
        ca: TlsFile {
            key: "upstream.tls.ca_file",
            holds: Holds::Authorities,
        },
        certificate: TlsFile {
            key: "upstream.tls.cert_file",
            holds: Holds::Chain,
        },
        key: TlsFile {
            key: "upstream.tls.key_file",
            holds: Holds::Key,
        },
    };
}

impl ClientSettings {
    /// Nothing written: the system's trust, no certificate.
    pub fn plain(keys: ClientKeys) -> Self {
        Self {
            keys,
            ca_file: None,
            pair: None,
            server_name: None,
        }
    }
}

/// How servers are spoken to.
#[derive(Debug)]
pub struct Offers {
    /// HTTP/2 or HTTP/1.1, as the server likes.
    any: Arc<ClientConfig>,
    /// HTTP/1.1 alone, for what HTTP/2 cannot say.
    http1: Arc<ClientConfig>,
    /// No protocol by name: what is spoken is no HTTP.
    unnamed: Arc<ClientConfig>,
}

/// A connection over TLS.
pub type ClientStream<IO> = tokio_rustls::client::TlsStream<IO>;

/// Makes connections to one server, each with the newest files.
#[derive(Debug, Clone)]
pub struct Connector {
    live: Live<Offers>,
    name: ServerName<'static>,
}

impl Connector {
    /// `host`: of the url, where no other name is wanted. `None`: it is no name or address.
    pub fn new(live: Live<Offers>, settings: &ClientSettings, host: &str) -> Option<Self> {
        let name = settings.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).ok()?;
        Some(Self { live, name })
    }

    /// A handshake over `stream`. `only_http1`: nothing else is offered.
    pub async fn connect<IO>(&self, stream: IO, only_http1: bool) -> io::Result<ClientStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let offers = self.live.now();
        let offer = if only_http1 {
            &offers.http1
        } else {
            &offers.any
        };
        let connector = TlsConnector::from(offer.clone());
        connector.connect(self.name.clone(), stream).await
    }

    /// A handshake over `stream` for another protocol than HTTP: none is named.
    pub async fn connect_unnamed<IO>(&self, stream: IO) -> io::Result<ClientStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.live.now().unnamed.clone());
        connector.connect(self.name.clone(), stream).await
    }

    /// Whether HTTP/2 was agreed on.
    pub fn speaks_http2<IO>(stream: &ClientStream<IO>) -> bool {
        stream.get_ref().1.alpn_protocol() == Some(b"h2")
    }
}

/// Whether a certificate can bear such a name.
pub fn is_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// Why a handshake failed, as far as one may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server's certificate is not one to trust.
    Certificate,
    /// The server said no. `Certificate`: to what we showed, and then it never took the handshake
    /// for finished: no server reads a request before that (RFC 8446 section 4.4).
    Alert {
        /// It is about our certificate.
        certificate: bool,
    },
    /// Anything else: no TLS, or none that both speak.
    Protocol,
}

/// What an error of a TLS stream says; `None`: it is not TLS that failed.
pub fn failure(error: &io::Error) -> Option<Failure> {
    Some(match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(_) => Failure::Certificate,
        rustls::Error::AlertReceived(alert) => Failure::Alert {
            certificate: matches!(
                alert,
                AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::UnknownCA
                    | AlertDescription::CertificateRequired
            ),
        },
        _ => Failure::Protocol,
    })
}

impl Side for ClientSettings {
    type Made = Offers;

    fn files(&self) -> Vec<(TlsFile, &Path)> {
        let keys = self.keys;
        let mut files: Vec<(TlsFile, &Path)> = Vec::new();
        files.extend(self.ca_file.as_deref().map(|path| (keys.ca, path)));
        if let Some((certificate, key)) = &self.pair {
            files.push((keys.certificate, certificate));
            files.push((keys.key, key));
        }
        files
    }

    fn judge(&self, contents: &Contents) -> Judged<Offers> {
        let provider = Arc::new(default_provider());
        let keys = self.keys;
        let roots = match &self.ca_file {
            Some(_) => contents.roots(keys.ca).map_err(|found| vec![found]),
            None => system_roots(keys.ca).map_err(|found| vec![found]),
        };
        let pair = self.pair.as_ref();
        let pair = pair.map(|_| contents.pair(keys.certificate, keys.key, &provider));
        let (roots, pair) = match (roots, pair.transpose()) {
            (Ok(roots), Ok(pair)) => (roots, pair),
            (roots, pair) => {
                let mut found = roots.err().unwrap_or_default();
                found.extend(pair.err().unwrap_or_default());
                return Err(found);
            }
        };
        let out_of_date = |pair: &CertifiedKey| {
            super::files::out_of_date(pair, keys.certificate, "the other side")
        };
        let warning = pair.as_ref().and_then(out_of_date);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(keys.ca.key, &error))?
            .with_root_certificates(roots);
        let mut any = match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        };
        let mut http1 = any.clone();
        let mut unnamed = any.clone();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Of its own: a session is resumed with what was agreed on when it began.
        http1.resumption = Resumption::in_memory_sessions(16);
        unnamed.resumption = Resumption::in_memory_sessions(16);
        let offers = Offers {
            any: Arc::new(any),
            http1: Arc::new(http1),
            unnamed: Arc::new(unnamed),
        };
        Ok((Arc::new(offers), warning))
    }
}

/// Whom this system trusts.
fn system_roots(file: TlsFile) -> Result<Arc<RootCertStore>, Finding> {
    let mut roots = RootCertStore::empty();
    let (_added, _unfit) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Finding {
            key: file.key,
            message: "is not written, and this system names nobody to trust".to_owned(),
            help: "write the authority that vouches for the other side, PEM, or install ca-certificates",
        });
    }
    Ok(Arc::new(roots))
}
