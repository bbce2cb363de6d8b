//! The gateway's certificates for TLS clients, and the client certificates that it requires.
//!
//! # Invariants
//!
//! 1. Files are accepted all together or not at all: after an invalid one the earlier ones stay
//!    active.
//! 2. A client certificate is verified in each handshake: where one is requested no session is
//!    resumed, and a root that is removed is no longer trusted after the reload.
//! 3. The memory of sessions is bounded: clients keep tickets, and we keep `SESSIONS_MAX` sessions.
//!
//! # Not here
//!
//! Sockets and deadlines (`listener`), which entries there are (`settings`), how often files are
//! checked (`background`).

mod certificate;
pub mod counted;
mod sni;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{CommonState, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use weir_common::config::certificates;
use weir_common::config::document::Document;
use weir_common::config::files;
use weir_common::config::shown_certificate::ShownCertificate;
use weir_common::time::UnixTime;

use crate::settings::edge::{ClientCertificates, Https};
use crate::tls::certificate::Pair;
use crate::tls::counted::CountedSocket;
use crate::tls::sni::CertificateNames;

/// Sessions of clients without tickets, at most: a few hundred bytes each.
const SESSIONS_MAX: usize = 4_096;

/// What rustls buffers of a response that its client does not read: as much as a kernel's buffer.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// A larger client certificate is refused: upstreams limit the size of headers.
const CLIENT_CERTIFICATE_BYTES_MAX: usize = 8 << 10;

/// The TLS configuration of each address.
#[derive(Clone, Default)]
pub struct Listeners(Vec<Listener>);

#[derive(Clone)]
struct Listener {
    address: SocketAddr,
    config: Arc<ServerConfig>,
    /// A hash of settings and files, to detect changes.
    made_of: Vec<u8>,
    certificates: Vec<ShownCertificate>,
}

/// Reads the files of all entries; adds their faults to `document`.
#[must_use]
pub fn load(entries: &[Https], document: &Document) -> Listeners {
    let mut listeners: Vec<Listener> = Vec::new();
    for entry in entries {
        if listeners.iter().all(|listener| listener.address != entry.address) {
            let all = entries.iter().enumerate().map(|(nth, entry)| Entry { nth, entry });
            let same: Vec<_> = all.filter(|other| other.entry.address == entry.address).collect();
            listeners.extend(listener(&same, document));
        }
    }
    Listeners(listeners)
}

/// One entry, and its place in the list.
#[derive(Clone, Copy)]
struct Entry<'e> {
    nth: usize,
    entry: &'e Https,
}

impl Entry<'_> {
    fn fault(&self, document: &Document, key: &str, why: &str) {
        document.fault_in(&format!("server.https[{}]{key}", self.nth), why);
    }
}

/// The listener of one address, from all its entries.
fn listener(entries: &[Entry<'_>], document: &Document) -> Option<Listener> {
    let first = entries.first()?.entry;
    let faults = document.count();
    let mut reader = Reader { document, seen: Context::new(&SHA256), provider: ring_provider() };
    for entry in entries {
        check_same_settings(first, *entry, document);
    }
    let pairs: Vec<_> =
        entries.iter().filter_map(|entry| Some((*entry, reader.pair(*entry)?))).collect();
    let clients = first.clients.as_ref();
    let verifier = clients.and_then(|clients| reader.verifier(*entries.first()?, clients));
    let names = named(&pairs, document)?;
    if document.count() > faults {
        return None;
    }
    let versions: &[_] = match first.tls12 {
        true => &[&rustls::version::TLS12, &rustls::version::TLS13],
        false => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(reader.provider.clone());
    let builder = builder.with_protocol_versions(versions).ok()?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let config = with_sessions(builder.with_cert_resolver(Arc::new(names)), clients.is_some());
    let shown = |(of, pair): &(Entry<'_>, Pair)| {
        ShownCertificate::of(&of.entry.certificate, &pair.certified.cert)
    };
    let checks = format!("{:?}", (first.tls12, clients.map(|clients| clients.required)));
    reader.seen.update(checks.as_bytes());
    Some(Listener {
        address: first.address,
        config: Arc::new(config),
        made_of: reader.seen.finish().as_ref().to_vec(),
        certificates: pairs.iter().filter_map(shown).collect(),
    })
}

fn ring_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A file: its entry, the entry's key that names it, and its path.
type File<'f> = (Entry<'f>, &'static str, &'f str);

/// Reads the files of one address.
struct Reader<'d> {
    document: &'d Document,
    /// A hash of what has been read, to detect changes.
    seen: Context,
    provider: Arc<CryptoProvider>,
}

impl Reader<'_> {
    fn pair(&mut self, of: Entry<'_>) -> Option<Pair> {
        let file = (of, ".certificate", &*of.entry.certificate);
        let chain = self.read(file, certificates::chain);
        let key = self.read((of, ".key", &of.entry.key), certificates::key);
        let pair = certificate::pair(chain?, key?);
        pair.map_err(|why| self.wrong(file, &format!("is not accepted: {why}"))).ok()
    }

    fn verifier(
        &mut self,
        of: Entry<'_>,
        clients: &ClientCertificates,
    ) -> Option<Arc<dyn ClientCertVerifier>> {
        let file = (of, ".client_ca", &*clients.ca);
        let roots = Arc::new(self.read(file, certificates::roots)?.store);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, self.provider.clone());
        let verifier = match clients.required {
            true => verifier,
            false => verifier.allow_unauthenticated(),
        };
        let verifier = verifier.build();
        verifier.map_err(|why| self.wrong(file, &format!("is not accepted: {why}"))).ok()
    }

    fn read<T>(&mut self, file: File<'_>, made: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = files::read(Path::new(file.2));
        let text = text.map_err(|why| format!("cannot be read: {why}"));
        let text = text.map_err(|why| self.wrong(file, &why)).ok()?;
        // With lengths the hash differs when text moves from the end of one file to the next.
        self.seen.update(&text.len().to_be_bytes());
        self.seen.update(text.as_bytes());
        made(&text).map_err(|why| self.wrong(file, &why)).ok()
    }

    fn wrong(&self, (of, key, path): File<'_>, why: &str) {
        of.fault(self.document, key, &format!("`{path}` {why}"));
    }
}

/// Reports settings of an address that differ between its entries.
fn check_same_settings(first: &Https, of: Entry<'_>, document: &Document) {
    if first.clients != of.entry.clients || first.tls12 != of.entry.tls12 {
        let why = "entries of one address must agree in client_ca, client_certificate and tls_min";
        of.fault(document, "", why);
    }
}

/// Certificates by name; none where there is no certificate.
fn named(
    pairs: &[(Entry<'_>, Pair)],
    document: &Document,
) -> Option<CertificateNames<Arc<rustls::sign::CertifiedKey>>> {
    let (_, first) = pairs.first()?;
    let mut names = CertificateNames::new(first.certified.clone());
    for (nth, (of, pair)) in pairs.iter().enumerate() {
        let fault = |why: &str| {
            let text = format!("`{}` {why}", of.entry.certificate);
            of.fault(document, ".certificate", &text);
        };
        if nth > 0 && pair.names.is_empty() {
            fault("names no host (subjectAltName): it would never be shown");
        }
        for name in &pair.names {
            let is_own = pair.names.iter().filter(|own| *own == name).count() > 1;
            if !names.add(name, pair.certified.clone()) && !is_own {
                fault(&format!("is for `{name}`, as is an earlier one of the same address"));
            }
        }
    }
    Some(names)
}

fn with_sessions(mut config: ServerConfig, requests_certificates: bool) -> ServerConfig {
    config.alpn_protocols = ["h2", "http/1.1", "http/1.0"].map(Into::into).to_vec();
    if requests_certificates {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        return config;
    }
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
    // Without random bytes for a key no tickets are issued; the sessions above remain.
    if let Ok(ticketer) = rustls::crypto::ring::Ticketer::new() {
        config.ticketer = ticketer;
    }
    config
}

impl Listeners {
    /// The TLS configuration of an address.
    #[must_use]
    pub fn config(&self, address: SocketAddr) -> Option<&Arc<ServerConfig>> {
        self.0.iter().find(|listener| listener.address == address).map(|l| &l.config)
    }

    /// Keeps listeners of `earlier` that have not changed, with their sessions.
    #[must_use]
    pub fn keeping(mut self, earlier: &Self) -> Self {
        for listener in &mut self.0 {
            if let Some(same) = earlier.0.iter().find(|earlier| *earlier == listener) {
                *listener = same.clone();
            }
        }
        self
    }

    /// When the first of the certificates expires.
    #[must_use]
    pub fn expires(&self) -> Option<UnixTime> {
        self.certificates().map(|certificate| certificate.expires).min()
    }

    /// All certificates.
    pub fn certificates(&self) -> impl Iterator<Item = &ShownCertificate> {
        self.0.iter().flat_map(|listener| &listener.certificates)
    }
}

impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        (self.address, &self.made_of) == (other.address, &other.made_of)
    }
}

impl PartialEq for Listeners {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Listeners {}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|listener| listener.address)).finish()
    }
}

/// Performs a handshake. The error is a label of the metric.
pub async fn handshake(
    config: Arc<ServerConfig>,
    socket: TcpStream,
) -> Result<TlsStream<CountedSocket>, &'static str> {
    let bounded = |connection: &mut rustls::ServerConnection| {
        connection.set_buffer_limit(Some(UNSENT_BYTES_MAX));
    };
    let shaken = TlsAcceptor::from(config).accept_with(CountedSocket::new(socket), bounded).await;
    let stream = shaken.map_err(|error| reason(&error))?;
    let certificate = client_certificate(stream.get_ref().1);
    match certificate.is_some_and(|der| der.len() > CLIENT_CERTIFICATE_BYTES_MAX) {
        true => Err("client_certificate"),
        false => Ok(stream),
    }
}

/// The client's certificate, which the handshake has verified, in DER.
#[must_use]
pub fn client_certificate(connection: &CommonState) -> Option<&[u8]> {
    connection.peer_certificates().and_then(|chain| chain.first()).map(AsRef::as_ref)
}

/// Why a handshake failed, as a label of the metric.
fn reason(error: &io::Error) -> &'static str {
    use rustls::Error;
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match of_tls {
        None => "closed",
        Some(Error::AlertReceived(_)) => "alert",
        Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => "client_certificate",
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => "incompatible",
        Some(
            Error::InvalidMessage(_)
            | Error::PeerMisbehaved(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::DecryptError
            | Error::PeerSentOversizedRecord,
        ) => "malformed",
        Some(_) => "other",
    }
}
