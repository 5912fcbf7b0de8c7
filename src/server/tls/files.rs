//! The certificate files: what is in them, and what is wrong with it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};

use super::{Finding, TlsFile, TlsSettings};

/// A file's content, or why there is none.
type Content = Result<Vec<u8>, String>;

/// All files as they are at one time.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Content,
    key: Content,
    client_ca: Option<Content>,
}

/// What a connection is served with.
pub(super) struct Parts {
    pub(super) certified: CertifiedKey,
    pub(super) roots: Option<Arc<RootCertStore>>,
}

impl Contents {
    pub(super) fn read(settings: &TlsSettings) -> Self {
        let read = |path: &Path| std::fs::read(path).map_err(|error| error.to_string());
        Self {
            certificate: read(&settings.cert_file),
            key: read(&settings.key_file),
            client_ca: settings.client_ca_file.as_deref().map(read),
        }
    }

    /// Everything that is wrong with them, or what they hold.
    pub(super) fn parts(&self, provider: &CryptoProvider) -> Result<Parts, Vec<Finding>> {
        let chain = chain(&self.certificate);
        let key = private_key(&self.key);
        let roots = self.client_ca.as_ref().map(roots).transpose();
        let (chain, key, roots) = match (chain, key, roots) {
            (Ok(chain), Ok(key), Ok(roots)) => (chain, key, roots),
            (chain, key, roots) => {
                let found = [chain.err(), key.err(), roots.err()];
                return Err(found.into_iter().flatten().collect());
            }
        };
        let certified = pair(chain, key, provider).map_err(|finding| vec![finding])?;
        Ok(Parts { certified, roots })
    }
}

impl Parts {
    /// Whether clients refuse the certificate for its dates.
    pub(super) fn out_of_date(&self, provider: &CryptoProvider) -> Option<Finding> {
        let leaf = self.certified.end_entity_cert().ok()?;
        let leaf = ParsedCertificate::try_from(leaf).ok()?;
        // Dates come first; that nobody vouches for it is no news.
        let result = verify_server_cert_signed_by_trust_anchor(
            &leaf,
            &RootCertStore::empty(),
            &[],
            UnixTime::now(),
            provider.signature_verification_algorithms.all,
        );
        let Err(Error::InvalidCertificate(error)) = result else {
            return None;
        };
        let (what, help) = match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                "names a certificate that has expired",
                "clients refuse it; renew it: new files are taken while Retrysafe runs",
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
                "names a certificate that is not valid yet",
                "clients refuse it until then; is the clock right?",
            ),
            _ => return None,
        };
        Some(finding(TlsFile::Certificate, what, help))
    }
}

fn finding(file: TlsFile, message: impl Into<String>, help: &'static str) -> Finding {
    Finding {
        file,
        message: message.into(),
        help,
    }
}

/// What the file should hold.
fn expected(file: TlsFile) -> &'static str {
    match file {
        TlsFile::Certificate => {
            "the file holds the certificate, then those of its issuers, as PEM: -----BEGIN CERTIFICATE-----"
        }
        TlsFile::Key => "the file holds the private key as PEM: -----BEGIN PRIVATE KEY-----",
        TlsFile::ClientCa => {
            "the file holds the certificates that vouch for clients as PEM: -----BEGIN CERTIFICATE-----"
        }
    }
}

fn bytes(file: TlsFile, content: &Content) -> Result<&[u8], Finding> {
    match content {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            let message = format!("names a file that cannot be read: {error}");
            Err(finding(file, message, expected(file)))
        }
    }
}

/// Every certificate of a file, at least one.
fn certificates(file: TlsFile, content: &Content) -> Result<Vec<CertificateDer<'static>>, Finding> {
    let bytes = bytes(file, content)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match read {
        Ok(chain) if chain.is_empty() => {
            let what = "names a file without a certificate in it";
            Err(finding(file, what, expected(file)))
        }
        Ok(chain) => Ok(chain),
        Err(_) => Err(broken(file)),
    }
}

fn broken(file: TlsFile) -> Finding {
    let what = "names a file with a certificate that cannot be read";
    finding(
        file,
        what,
        "certificates are X.509, version 3; was it copied whole?",
    )
}

/// The server's own certificate, then those of its issuers.
fn chain(content: &Content) -> Result<Vec<CertificateDer<'static>>, Finding> {
    let chain = certificates(TlsFile::Certificate, content)?;
    let own = chain.first().map(ParsedCertificate::try_from);
    match own {
        Some(Ok(_)) => Ok(chain),
        Some(Err(_)) | None => Err(broken(TlsFile::Certificate)),
    }
}

fn private_key(content: &Content) -> Result<PrivateKeyDer<'static>, Finding> {
    const FILE: TlsFile = TlsFile::Key;
    let bytes = bytes(FILE, content)?;
    let contains = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
    if contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED") {
        let help =
            "Retrysafe asks for no password: decrypt it with `openssl pkey`, and guard the file";
        return Err(finding(FILE, "names a file whose key is encrypted", help));
    }
    PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
        finding(
            FILE,
            "names a file without a private key in it",
            expected(FILE),
        )
    })
}

/// Who vouches for clients.
fn roots(content: &Content) -> Result<Arc<RootCertStore>, Finding> {
    const FILE: TlsFile = TlsFile::ClientCa;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(FILE, content)? {
        roots.add(certificate).map_err(|_| broken(FILE))?;
    }
    Ok(Arc::new(roots))
}

/// The certificate with its key, if they are a pair.
fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Finding> {
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => finding(
            TlsFile::Key,
            "names a key that does not belong to the certificate of `cert_file`",
            "the server's own certificate comes first in cert_file; write the key it was made with",
        ),
        error => finding(
            TlsFile::Key,
            format!("names a key that cannot be used: {error}"),
            "take ECDSA (P-256, P-384), Ed25519 or RSA of 2048 bits and more",
        ),
    })
}
