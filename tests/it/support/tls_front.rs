//! TLS in front of a server that speaks none: what a test's upstream or store stands behind.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::authority::{Authority, Pair};

/// What a front speaks.
pub struct Front<'a> {
    /// What it shows.
    pub shown: &'a Pair,
    /// What it agrees to, the best first.
    pub protocols: &'a [&'a str],
    /// Who vouches for its clients.
    pub clients: Option<&'a Authority>,
    /// Versions of TLS.
    pub versions: &'a [&'static rustls::SupportedProtocolVersion],
}

/// One handshake, as far as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Met {
    /// The name that was asked for.
    pub name: Option<String>,
    /// What was agreed on.
    pub protocol: Option<String>,
    /// Whether a client certificate was shown.
    pub certified: bool,
}

/// A running front.
#[derive(Debug, Clone)]
pub struct TlsFront {
    pub addr: SocketAddr,
    seen: Arc<Seen>,
}

type Seen = Mutex<Vec<Met>>;

impl TlsFront {
    /// Passes what comes on to `to`. `politely`: says goodbye at the end (`close_notify`), else
    /// only the connection ends.
    pub fn start(front: &Front<'_>, to: SocketAddr, politely: bool) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config(front)));
        let seen = Arc::new(Seen::default());
        let noting = seen.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serve(
                        acceptor.clone(),
                        socket,
                        to,
                        politely,
                        noting.clone(),
                    ));
                }
            });
        });
        Self { addr, seen }
    }

    /// Every handshake that was finished.
    pub fn met(&self) -> Vec<Met> {
        self.seen.lock().unwrap().clone()
    }
}

fn config(front: &Front<'_>) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(front.versions)
        .unwrap();
    let builder = match front.clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(authority.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = CertificateDer::from_pem_slice(front.shown.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(front.shown.key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(vec![chain], key).unwrap();
    config.alpn_protocols = front
        .protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    config
}

async fn serve(
    acceptor: TlsAcceptor,
    socket: TcpStream,
    to: SocketAddr,
    politely: bool,
    seen: Arc<Seen>,
) {
    socket.set_nodelay(true).unwrap();
    let Ok(mut near) = acceptor.accept(socket).await else {
        return;
    };
    let (_, session) = near.get_ref();
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let met = Met {
        name: session.server_name().map(str::to_owned),
        protocol: session.alpn_protocol().map(text),
        certified: session.peer_certificates().is_some(),
    };
    seen.lock().unwrap().push(met);
    let Ok(mut far) = TcpStream::connect(to).await else {
        return;
    };
    far.set_nodelay(true).unwrap();
    if politely {
        drop(copy_bidirectional(&mut near, &mut far).await);
        return;
    }
    // Towards the client only octets, no goodbye.
    let (mut from_near, mut to_near) = tokio::io::split(near);
    let (mut from_far, mut to_far) = far.split();
    let up = async { tokio::io::copy(&mut from_near, &mut to_far).await };
    let down = async {
        drop(tokio::io::copy(&mut from_far, &mut to_near).await);
        drop(to_near.flush().await);
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}
