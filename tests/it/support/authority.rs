//! An authority of the test's own: certificates for servers and clients, and clients that trust it.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::PATIENCE;
use super::client::{Answer, read_answer};

/// Who signs.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", self.0.der())
    }

    pub fn server(&self) -> Pair {
        self.server_named(&["localhost", "127.0.0.1"])
    }

    pub fn server_named(&self, names: &[&str]) -> Pair {
        self.signs(names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a server that is a client of its like, too.
    pub fn peer_named(&self, names: &[&str]) -> Pair {
        self.signs_for(names, ExtendedKeyUsagePurpose::ServerAuth, |params| {
            let client = ExtendedKeyUsagePurpose::ClientAuth;
            params.extended_key_usages.push(client);
        })
    }

    /// It was valid a day long, in 2001.
    pub fn server_expired(&self, names: &[&str]) -> Pair {
        self.signs_for(names, ExtendedKeyUsagePurpose::ServerAuth, |params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 2);
        })
    }

    pub fn client(&self) -> Pair {
        self.signs(&["client"], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Nobody but this authority is trusted.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    fn signs(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose) -> Pair {
        self.signs_for(names, purpose, |_| {})
    }

    fn signs_for(
        &self,
        names: &[&str],
        purpose: ExtendedKeyUsagePurpose,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
        }
    }
}

impl Pair {
    /// As `NAME.crt` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) {
        std::fs::write(folder.join(format!("{name}.crt")), &self.certificate).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), &self.key).unwrap();
    }
}

/// A client of rustls.
pub struct TlsClient {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl TlsClient {
    /// Who is trusted, and what is shown if that is asked for. The handshake comes with the first
    /// octet.
    pub fn new(addr: SocketAddr, trusted: &Authority, shown: Option<&Pair>) -> Self {
        Self::with_versions(addr, trusted, shown, rustls::ALL_VERSIONS)
    }

    pub fn with_versions(
        addr: SocketAddr,
        trusted: &Authority,
        shown: Option<&Pair>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(trusted.roots());
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
        };
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: StreamOwned::new(connection, socket),
            buffer: Vec::new(),
        }
    }

    /// Sends octets and reads one answer; `None` where the other side ends it before.
    pub fn send(&mut self, octets: &[u8]) -> Option<Answer> {
        self.stream.write_all(octets).ok()?;
        self.stream.flush().ok()?;
        self.answer()
    }

    pub fn answer(&mut self) -> Option<Answer> {
        read_answer(&mut self.stream, &mut self.buffer, false)
    }
}
