//! A connection's socket: TCP alone, or TLS over it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::prelude::{BASE64_STANDARD, Engine};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::edge::open_connection::OpenConnection;
use crate::tls;
use crate::tls::counted::CountedSocket;

/// An accepted socket.
#[derive(Debug)]
pub enum Socket {
    /// Without TLS.
    Plain(TcpStream),
    /// After its handshake.
    Tls(Box<TlsStream<CountedSocket>>),
}

/// A socket whose handshakes are complete.
pub struct Handshaken {
    /// The socket.
    pub socket: Socket,
    /// The client's address: the socket's, or that in a PROXY header.
    pub peer: SocketAddr,
    /// Counts the connection until dropped.
    pub open: Arc<OpenConnection>,
}

impl Socket {
    /// Whether the client chose HTTP/2.
    pub(super) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Whether it is TLS.
    pub(super) fn is_secure(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl Socket {
    /// The client's certificate as the value of `Client-Cert`: base64 between colons (RFC 9440).
    pub(super) fn client_certificate(&self) -> Option<Arc<str>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => {
                let der = tls::client_certificate(stream.get_ref().1)?;
                Some(format!(":{}:", BASE64_STANDARD.encode(der)).into())
            }
        }
    }

    /// Whether TLS has buffered bytes that the kernel has not accepted yet.
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Bytes that TLS has passed to the kernel; 0 without TLS, where each write returns its count.
    pub(super) fn taken(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(stream) => stream.get_ref().0.taken(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Plain(socket) => socket.as_raw_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_raw_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
