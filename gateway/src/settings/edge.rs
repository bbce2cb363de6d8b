//! Reads the addresses that clients call by TLS.
//!
//! Not here: what the files hold (`tls`).

use std::net::SocketAddr;

use weir_common::config::document::{Spanned, Table};

use crate::settings::values::address;

/// One `[[server.https]]`: an address and one certificate. Several of one address are told apart
/// by the name that a client asks for; the first one is for those that ask for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Https {
    /// Where the entry starts in the file.
    pub at: usize,
    /// The address.
    pub address: SocketAddr,
    /// A file with the certificate and what stands between it and its root, PEM.
    pub certificate: Spanned<String>,
    /// A file with the certificate's private key, PEM.
    pub key: Spanned<String>,
    /// Whether clients show certificates of their own, which belongs to the address.
    pub clients: Option<ClientCertificates>,
    /// Whether TLS 1.2 is taken beside 1.3, which belongs to the address.
    pub tls12: bool,
}

/// Who signs clients' certificates, and whether they must show one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// A file with the roots, PEM.
    pub ca: Spanned<String>,
    /// Whether a client without one is turned away.
    pub required: bool,
}

impl Https {
    /// The files it is made of.
    pub fn files(&self) -> impl Iterator<Item = &Spanned<String>> {
        let ca = self.clients.as_ref().map(|clients| &clients.ca);
        [&self.certificate, &self.key].into_iter().chain(ca)
    }
}

pub(super) fn https(table: &mut Table<'_>) -> Https {
    for key in ["address", "certificate", "key"] {
        table.require(key);
    }
    let at = table.at();
    let nothing = || Spanned { value: String::new(), at };
    let listener = table.text("address", "ip:port; entries of one address differ by name (SNI).");
    let listener = listener.and_then(|text| address(table, &text));
    let certificate =
        table.text("certificate", "A PEM file: the certificate, then what leads to its root.");
    let key = table.text("key", "A PEM file: its private key.");
    let ca = table.text("client_ca", "A PEM file of roots: clients show certificates too.");
    let required = table.choice(
        "client_certificate",
        &[("required", true), ("optional", false)],
        "Whether a client without one is turned away; with client_ca.",
    );
    if ca.is_none() && table.has("client_certificate") {
        table.fault("`client_certificate` needs `client_ca`: a file with the roots that sign them");
    }
    let tls12 =
        table.choice("tls_min", &[("1.2", true), ("1.3", false)], "The oldest TLS that is taken.");
    Https {
        at,
        address: listener.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8443))),
        certificate: certificate.unwrap_or_else(nothing),
        key: key.unwrap_or_else(nothing),
        clients: ca.map(|ca| ClientCertificates { ca, required }),
        tls12,
    }
}
