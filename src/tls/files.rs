//! The certificate files: what is in them, and what is wrong with it.

use std::sync::Arc;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, InconsistentKeys, RootCertStore};

use super::{Finding, Holds, Side, TlsFile};

/// A file's content, or why there is none.
type Content = Result<Vec<u8>, String>;

/// All files as they are at one time.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents(Vec<(TlsFile, Content)>);

impl std::fmt::Debug for Contents {
    /// Without what is in them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

impl Contents {
    pub(super) fn read(settings: &impl Side) -> Self {
        let files = settings.files();
        let read = files.into_iter().map(|(file, path)| {
            let content = std::fs::read(path).map_err(|error| error.to_string());
            (file, content)
        });
        Self(read.collect())
    }

    fn bytes(&self, file: TlsFile) -> Result<&[u8], Finding> {
        let found = self.0.iter().find(|(other, _)| *other == file);
        match found.map(|(_, content)| content) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(error)) => {
                let message = format!("names a file that cannot be read: {error}");
                Err(finding(file, message, expected(file)))
            }
            None => Err(finding(file, "is not written", expected(file))),
        }
    }

    /// A certificate with its key; or everything that is wrong with the two.
    pub(super) fn pair(
        &self,
        certificate: TlsFile,
        key: TlsFile,
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, Vec<Finding>> {
        let chain = self.chain(certificate);
        let private = self.private_key(key);
        match (chain, private) {
            (Ok(chain), Ok(private)) => {
                fitting(chain, private, (certificate, key), provider).map_err(|found| vec![found])
            }
            (chain, private) => Err([chain.err(), private.err()].into_iter().flatten().collect()),
        }
    }

    /// Who vouches for others.
    pub(super) fn roots(&self, file: TlsFile) -> Result<Arc<RootCertStore>, Finding> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(file)? {
            roots.add(certificate).map_err(|_| broken(file))?;
        }
        Ok(Arc::new(roots))
    }

    /// Every certificate of a file, at least one.
    fn certificates(&self, file: TlsFile) -> Result<Vec<CertificateDer<'static>>, Finding> {
        let bytes = self.bytes(file)?;
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

    /// The own certificate, then those of its issuers.
    fn chain(&self, file: TlsFile) -> Result<Vec<CertificateDer<'static>>, Finding> {
        let chain = self.certificates(file)?;
        let own = chain.first().map(ParsedCertificate::try_from);
        match own {
            Some(Ok(_)) => Ok(chain),
            Some(Err(_)) | None => Err(broken(file)),
        }
    }

    fn private_key(&self, file: TlsFile) -> Result<PrivateKeyDer<'static>, Finding> {
        let bytes = self.bytes(file)?;
        let contains = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        if contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED") {
            let help = "Retrysafe asks for no password: decrypt it with `openssl pkey`, and guard the file";
            return Err(finding(file, "names a file whose key is encrypted", help));
        }
        PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
            let what = "names a file without a private key in it";
            finding(file, what, expected(file))
        })
    }
}

/// Whether `peers` refuse the certificate for its dates.
pub(super) fn out_of_date(certified: &CertifiedKey, file: TlsFile, peers: &str) -> Option<Finding> {
    let leaf = certified.end_entity_cert().ok()?;
    let leaf = ParsedCertificate::try_from(leaf).ok()?;
    // Dates come first; that nobody vouches for it is no news.
    let result = verify_server_cert_signed_by_trust_anchor(
        &leaf,
        &RootCertStore::empty(),
        &[],
        UnixTime::now(),
        default_provider().signature_verification_algorithms.all,
    );
    let Err(Error::InvalidCertificate(error)) = result else {
        return None;
    };
    let (what, help) = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "has expired",
            "renew it: new files are taken while Retrysafe runs",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ("is not valid yet", "is the clock right?")
        }
        _ => return None,
    };
    let message = format!("names a certificate that {what}: {peers} will refuse it");
    Some(finding(file, message, help))
}

fn finding(file: TlsFile, message: impl Into<String>, help: &'static str) -> Finding {
    Finding {
        key: file.key,
        message: message.into(),
        help,
    }
}

/// What the file should hold.
fn expected(file: TlsFile) -> &'static str {
    match file.holds {
        Holds::Chain => {
            "the file holds the certificate, then those of its issuers, as PEM: -----BEGIN CERTIFICATE-----"
        }
        Holds::Key => "the file holds the private key as PEM: -----BEGIN PRIVATE KEY-----",
        Holds::Authorities => {
            "the file holds the certificates of who vouches for the other side, as PEM: -----BEGIN CERTIFICATE-----"
        }
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

/// The certificate with its key, if they are a pair.
fn fitting(
    chain: Vec<CertificateDer<'static>>,
    private: PrivateKeyDer<'static>,
    (certificate, key): (TlsFile, TlsFile),
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Finding> {
    CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let (_, name) = certificate.key.rsplit_once('.').unwrap_or_default();
            finding(
                key,
                format!("names a key that does not belong to the certificate of `{name}`"),
                "the own certificate comes first in cert_file; write the key it was made with",
            )
        }
        error => finding(
            key,
            format!("names a key that cannot be used: {error}"),
            "take ECDSA (P-256, P-384), Ed25519 or RSA of 2048 bits and more",
        ),
    })
}
