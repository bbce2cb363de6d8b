//! Decides which certificate a client gets.
//!
//! # Invariants
//!
//! 1. A name is looked up exactly, then as a wildcard for its first label, and no deeper.
//! 2. A client that sends no server name, or an unknown one, gets the first certificate.
//!
//! # Not here
//!
//! The certificates (`tls::certificate`), handshakes (`tls`).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificates of one address, by name.
#[derive(Debug)]
pub(super) struct CertificateNames<C> {
    first: C,
    by_name: HashMap<String, C>,
}

impl<C: Clone> CertificateNames<C> {
    /// `first` is for clients that send no server name, or an unknown one.
    pub(super) fn new(first: C) -> Self {
        Self { first, by_name: HashMap::new() }
    }

    /// Adds a certificate's name; false where another certificate has it already.
    pub(super) fn add(&mut self, name: &str, certificate: C) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        self.by_name.insert(name.to_owned(), certificate);
        true
    }

    /// The certificate for a name.
    fn of(&self, name: Option<&str>) -> &C {
        let found = name.map(str::to_ascii_lowercase).and_then(|name| {
            let wildcard = || name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            let found = self.by_name.get(&name);
            found.or_else(|| wildcard().and_then(|wildcard| self.by_name.get(&wildcard)))
        });
        found.unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for CertificateNames<Arc<CertifiedKey>> {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.of(hello.server_name()).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: Option<&str>, shown: u8) {
        let mut names = CertificateNames::new(0);
        for (name, certificate) in
            [("api.example.com", 1), ("*.example.com", 2), ("*.auth.example.com", 3)]
        {
            assert!(names.add(name, certificate));
        }
        assert!(!names.add("api.example.com", 4), "a name has one certificate");
        assert_eq!(*names.of(name), shown, "{name:?}");
    }

    #[test]
    fn a_name_is_shown_its_own_certificate_before_a_wildcards() {
        check(Some("api.example.com"), 1);
        check(Some("API.Example.Com"), 1);
        check(Some("www.example.com"), 2);
        check(Some("acme.auth.example.com"), 3);
    }

    #[test]
    fn a_wildcard_matches_one_label() {
        check(Some("a.b.example.com"), 0);
        check(Some("example.com"), 0);
        check(Some("*.example.com"), 2);
    }

    #[test]
    fn a_client_without_a_known_name_gets_the_first_certificate() {
        check(None, 0);
        check(Some("localhost"), 0);
        check(Some(""), 0);
    }
}
