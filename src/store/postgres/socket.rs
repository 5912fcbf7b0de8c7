//! One socket to PostgreSQL: TCP or Unix, plain or over TLS.
//!
//! Invariant: with TLS wanted nothing but the request for it goes out in the clear, and a server
//! that has none is an error.
//!
//! Deliberately absent: channel binding. The certificate is verified, name included.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::address::{PostgresAddress, PostgresPlace};
use crate::tls::Connector;

/// Octets both ways.
trait Octets: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Octets for T {}

/// A socket of whichever kind, before and after the handshake.
pub(super) struct Socket(Box<dyn Octets>);

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

/// Connects, without a word of the protocol.
pub(super) async fn open(address: &PostgresAddress) -> io::Result<Socket> {
    match &address.place {
        PostgresPlace::Host(host) => {
            let stream = TcpStream::connect((host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            Ok(Socket(Box::new(stream)))
        }
        PostgresPlace::Folder(folder) => {
            let path = folder.join(format!(".s.PGSQL.{}", address.port));
            Ok(Socket(Box::new(UnixStream::connect(path).await?)))
        }
    }
}

/// How the library gets TLS.
pub(super) struct Encrypt(pub(super) Connector);

impl TlsConnect<Socket> for Encrypt {
    type Stream = Socket;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let stream = self.0.connect_unnamed(socket).await?;
            Ok(Socket(Box::new(stream)))
        })
    }
}

impl TlsStream for Socket {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, octets)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
