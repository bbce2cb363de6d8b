//! TLS for tests: a certificate of their own, and sockets that trust it and nothing else.

use std::io;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::folder::Folder;
use crate::real;
use crate::wait::PATIENCE;

/// A socket after its handshake, or shortly before.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A certificate for every host of the default configuration, and its key.
#[derive(Debug)]
pub struct Certificate {
    folder: Folder,
}

impl Certificate {
    /// Makes one.
    #[track_caller]
    pub fn new() -> Self {
        let folder = Folder::new();
        let names = "DNS:localhost,DNS:api.localhost,DNS:*.auth.localhost,IP:127.0.0.1";
        let arguments = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem \
             -out certificate.pem -days 2 -subj /CN=weir-test -addext subjectAltName={names} \
             -addext basicConstraints=critical,CA:FALSE"
        );
        let mut openssl = Command::new("openssl");
        let arguments = arguments.split_whitespace();
        real::run(openssl.args(arguments).current_dir(folder.root())).expect(0);
        Self { folder }
    }

    /// Where the certificate is; it is its own root.
    pub fn path(&self) -> String {
        self.folder.path("certificate.pem").display().to_string()
    }

    /// Where its key is.
    pub fn key(&self) -> String {
        self.folder.path("key.pem").display().to_string()
    }

    /// The lines of a `[[server.https]]` that shows it.
    pub fn https(&self) -> String {
        let (certificate, key) = (self.path(), self.key());
        format!("address = \"127.0.0.1:0\"\ncertificate = \"{certificate}\"\nkey = \"{key}\"")
    }

    /// Connects, and offers these protocols.
    pub fn connect(&self, address: &str, protocols: &[&str]) -> io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut tls = StreamOwned::new(connection, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(tls)
    }
}

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}
