//! Reads the TLS listeners.
//!
//! Not here: the content of the files (`tls`).

use std::net::SocketAddr;

use weir_common::config::document::table::Table;

use crate::settings::values::{address, plain};

/// One `[[server.https]]`: an address and one certificate. Of several entries with one address, the
/// name in the handshake (SNI) selects one; without a name it is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Https {
    /// The address.
    pub address: SocketAddr,
    /// A file with the certificate and its chain, PEM.
    pub certificate: String,
    /// A file with the certificate's private key, PEM.
    pub key: String,
    /// Client certificates; the same in all entries of an address.
    pub clients: Option<ClientCertificates>,
    /// Whether TLS 1.2 is accepted as well as 1.3; the same in all entries of an address.
    pub tls12: bool,
}

/// Which client certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// A file with the roots, PEM.
    pub ca: String,
    /// Whether a client without one is refused.
    pub required: bool,
}

impl Https {
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        let ca = self.clients.as_ref().map(|clients| &clients.ca);
        [&self.certificate, &self.key].into_iter().chain(ca)
    }
}

pub(super) fn https(table: &mut Table<'_>) -> Https {
    for key in ["address", "certificate", "key"] {
        table.require(key);
    }
    let listener = table.text("address", "ip:port; entries of one address differ by name (SNI).");
    let listener = listener.and_then(|text| address(table, &text));
    let certificate = table.text("certificate", "A PEM file with the certificate and its chain.");
    let key = table.text("key", "A PEM file with its private key.");
    let ca = table.text("client_ca", "A PEM file with the roots of client certificates.");
    let required = table.choice(
        "client_certificate",
        &[("required", true), ("optional", false)],
        "Whether a client without one is refused; with client_ca.",
    );
    if ca.is_none() && table.has("client_certificate") {
        table.fault("`client_certificate` needs `client_ca`: a file with the roots that sign them");
    }
    let tls12 = table.choice(
        "tls_min",
        &[("1.2", true), ("1.3", false)],
        "The oldest version of TLS accepted.",
    );
    Https {
        address: listener.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8443))),
        certificate: plain(certificate).unwrap_or_default(),
        key: plain(key).unwrap_or_default(),
        clients: ca.map(|ca| ClientCertificates { ca: ca.value, required }),
        tls12,
    }
}
