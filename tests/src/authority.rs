//! A certificate authority for one test, made with openssl: the certificates that it signs, and
//! clients that trust it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

use crate::folder::Folder;
use crate::{real, wait};

/// Arguments for small keys, which are quick to generate.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// Every host of the default configuration, and of the servers behind a gateway.
pub const NAMES: &str = "DNS:localhost,DNS:api.localhost,DNS:in_acme.auth.localhost,\
                         DNS:*.auth.localhost,DNS:backend.test,IP:127.0.0.1";

/// Both accepted TLS versions.
pub const VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS12, &rustls::version::TLS13];

/// An authority: a folder with `ca.crt`, `ca.key`, and the certificates that it signed.
#[derive(Debug)]
pub struct Authority {
    folder: Folder,
}

impl Authority {
    /// A new authority.
    #[track_caller]
    pub fn new() -> Self {
        let authority = Self { folder: Folder::new() };
        authority.openssl(&format!(
            "req -x509 {KEY} -keyout ca.key -out ca.crt -days 2 -subj /CN=weir-test-ca \
             -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
        ));
        authority
    }

    /// Makes `name.crt` with `name.key`, signed by itself, as plain `openssl req -x509` does.
    #[track_caller]
    pub fn sign_itself(&self, name: &str) {
        self.openssl(&format!(
            "req -x509 {KEY} -keyout {name}.key -out {name}.crt -days 2 -subj /CN=localhost"
        ));
    }

    /// A new authority that has signed a certificate `server` for [`NAMES`].
    #[track_caller]
    pub fn of_server() -> Self {
        let authority = Self::new();
        authority.sign("server", NAMES, 2);
        authority
    }

    /// Signs `name.crt` with `name.key` for subjects such as `DNS:a.example,IP:127.0.0.1`, valid
    /// for `days`; a negative number makes an expired certificate.
    #[track_caller]
    pub fn sign(&self, name: &str, subjects: &str, days: i32) {
        let key = if self.folder.path(&format!("{name}.key")).exists() {
            format!("-key {name}.key")
        } else {
            format!("{KEY} -keyout {name}.key")
        };
        self.sign_as(name, subjects, days, &key);
    }

    /// Signs a certificate as [`Authority::sign`] does, with a new key by these arguments.
    #[track_caller]
    pub fn sign_with(&self, name: &str, subjects: &str, key: &str) {
        self.sign_as(name, subjects, 2, &format!("{key} -nodes -keyout {name}.key"));
    }

    #[track_caller]
    fn sign_as(&self, name: &str, subjects: &str, days: i32, key: &str) {
        self.openssl(&format!("req -new {key} -out {name}.csr -subj /CN={name}"));
        let names = match subjects {
            "" => "basicConstraints=CA:FALSE\n".to_owned(),
            names => format!("subjectAltName={names}\n"),
        };
        self.folder.write(&format!("{name}.ext"), &names);
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial \
             -out {name}.new -days {days} -extfile {name}.ext"
        ));
        let signed = self.read(&format!("{name}.new"));
        self.folder.write(&format!("{name}.crt"), &signed);
    }

    /// Signs `name.crt` with `name.key` for subjects, valid from 2020 until a few seconds from now.
    #[track_caller]
    pub fn sign_briefly(&self, name: &str, subjects: &str, seconds: u64) {
        let at = format!("--date=@{}", wait::unix_seconds() + seconds);
        let mut date = Command::new("date");
        let until = real::run(date.args(["--utc", &at, "+%Y%m%d%H%M%SZ"])).expect(0).stdout;
        self.sign_expired(name, subjects, until.trim());
    }

    /// Signs `name.crt` with `name.key` for subjects, valid from 2020 until this time, such as
    /// `20200201000000Z`.
    #[track_caller]
    pub fn sign_expired(&self, name: &str, subjects: &str, until: &str) {
        self.openssl(&format!(
            "req -new {KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        self.folder.write(&format!("{name}.ext"), &format!("subjectAltName={subjects}\n"));
        self.folder.write("index.txt", "");
        let config = "[ca]\ndefault_ca=own\n[own]\nnew_certs_dir=.\ndatabase=index.txt\n\
            serial=own.srl\ndefault_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n";
        self.folder.write("ca.cnf", config);
        self.openssl(&format!(
            "ca -batch -notext -config ca.cnf -create_serial -cert ca.crt -keyfile ca.key \
             -in {name}.csr -out {name}.crt -extfile {name}.ext -startdate 20200101000000Z \
             -enddate {until}"
        ));
    }

    /// Replaces the authority's certificate with one of the same key that expired yesterday.
    #[track_caller]
    pub fn expire(&self) {
        self.openssl("x509 -in ca.crt -signkey ca.key -days -1 -out ca.new");
        self.write("ca.crt", &self.read("ca.new"));
    }

    /// Signs a certificate for two days, and returns the lines of a listener entry at a free port.
    #[track_caller]
    pub fn entry(&self, name: &str, subjects: &str) -> String {
        self.sign(name, subjects, 2);
        self.entry_of(name)
    }

    /// The lines of a listener entry with an existing certificate, at a free port.
    pub fn entry_of(&self, name: &str) -> String {
        format!(
            "address = \"127.0.0.1:0\"\ncertificate = \"{}\"\nkey = \"{}\"",
            self.path(&format!("{name}.crt")),
            self.path(&format!("{name}.key"))
        )
    }

    /// The folder of its files.
    pub fn root(&self) -> &Path {
        self.folder.root()
    }

    /// The path of a file of this name.
    pub fn path(&self, name: &str) -> String {
        self.folder.path(name).display().to_string()
    }

    /// The text of a file.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path(name)).unwrap()
    }

    /// Replaces a file.
    pub fn write(&self, name: &str, text: &str) {
        self.folder.write(name, text);
    }

    /// A certificate in DER.
    #[track_caller]
    pub fn der(&self, name: &str) -> Vec<u8> {
        CertificateDer::from_pem_file(self.folder.path(name)).unwrap().to_vec()
    }

    /// A client that trusts this authority and has no client certificate.
    #[track_caller]
    pub fn trusted(&self) -> Arc<ClientConfig> {
        self.client(VERSIONS, None)
    }

    /// The same client, offering this ALPN protocol.
    #[track_caller]
    pub fn speaking(&self, protocol: &str) -> Arc<ClientConfig> {
        let mut config = Arc::unwrap_or_clone(self.trusted());
        config.alpn_protocols = vec![protocol.into()];
        Arc::new(config)
    }

    /// A client that trusts this authority, accepts these TLS versions, and presents this
    /// certificate.
    #[track_caller]
    pub fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        shown: Option<&str>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.path("ca.crt")).unwrap()).unwrap();
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(ring);
        let builder =
            builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let file = |end: &str| self.folder.path(&format!("{name}.{end}"));
                let chain = vec![CertificateDer::from_pem_file(file("crt")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// A server's side of one connection, with this certificate and without ALPN.
    #[track_caller]
    pub fn server(&self, name: &str) -> ServerConnection {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(ring);
        let builder = builder.with_protocol_versions(VERSIONS).unwrap().with_no_client_auth();
        let file = |end: &str| self.folder.path(&format!("{name}.{end}"));
        let chain = vec![CertificateDer::from_pem_file(file("crt")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
        ServerConnection::new(Arc::new(builder.with_single_cert(chain, key).unwrap())).unwrap()
    }

    #[track_caller]
    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        real::run(command.args(arguments.split(' ')).current_dir(self.folder.root())).expect(0);
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}
