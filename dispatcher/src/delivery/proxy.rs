//! A tunnel through an HTTP proxy (CONNECT, RFC 9110 section 9.3.6).
//!
//! Invariant: the proxy is asked for the address that was checked, never for a name, which it could
//! resolve otherwise. TLS verifies the name through the tunnel.
//!
//! Not here: which addresses may be called (`egress`), TLS and HTTP (`connection`).

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_common::secret::Secret;

use crate::config::settings::{Egress, ProxyAddress};

/// The longest head of an answer that is read.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// The operator's proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) at: ProxyAddress,
    /// `user:password`.
    pub(crate) credentials: Option<Secret<String>>,
}

/// Why a proxy opens no tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// It cannot be reached, or its answer is no HTTP.
    #[error("the proxy cannot be used")]
    Unusable(#[source] io::Error),
    /// It answered with this status.
    #[error("the proxy answered {0}")]
    Refused(u16),
}

impl Proxy {
    pub(crate) fn of(egress: &Egress) -> Option<Self> {
        let credentials = egress.proxy_credentials.clone();
        Some(Self { at: egress.proxy.clone()?, credentials })
    }

    /// Asks the proxy at the other end of `stream` for a tunnel to an address.
    pub(crate) async fn open(
        &self,
        stream: &mut TcpStream,
        target: SocketAddr,
    ) -> Result<(), ProxyError> {
        let asked = stream.write_all(self.request(target).as_bytes()).await;
        asked.map_err(ProxyError::Unusable)?;
        match answer(stream).await.map_err(ProxyError::Unusable)? {
            200..=299 => Ok(()),
            status => Err(ProxyError::Refused(status)),
        }
    }

    fn request(&self, target: SocketAddr) -> String {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = &self.credentials {
            let encoded = STANDARD.encode(credentials.expose());
            let _ = write!(request, "Proxy-Authorization: Basic {encoded}\r\n");
        }
        request + "\r\n"
    }
}

/// Reads the head of an answer; returns its status. A refusal may have a body. Nothing follows an
/// open tunnel's head: a receiver sends nothing before it is asked.
async fn answer(stream: &mut TcpStream) -> io::Result<u16> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::new();
    let end = loop {
        if let Some(at) = read.windows(END.len()).position(|part| part == END) {
            break at + END.len();
        }
        if read.len() > HEAD_BYTES_MAX {
            return Err(invalid("its answer is too long"));
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let status = read.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    match status {
        Some(200..=299) if end < read.len() => Err(invalid("it sent more than an answer")),
        Some(status) => Ok(status),
        None => Err(invalid("its answer is not HTTP")),
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
