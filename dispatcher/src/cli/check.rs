//! Finds problems that would prevent a start, in addition to errors of the configuration: the
//! database, the key file, the addresses. Each is reported at the option that names it.
//!
//! Invariant: a check changes nothing, and does not disturb a running dispatcher.
//!
//! Not here: problems of other systems (receivers, a mail server).

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;
use weir_common::config::document::{Diagnostic, Document};
use weir_common::time::Clock;

use crate::config::settings::Settings;
use crate::live_config::Config;
use crate::store::sqlite::open::OpenError;
use crate::store::sqlite::preview;

/// Reads all files as a start does, and finds further problems.
pub(super) fn check(config: &Config, clock: &Clock) -> Result<(), Vec<Diagnostic>> {
    let active = config.load(clock)?;
    let document = Document::new(&config.file.name(), active.origin.settings_text());
    look(&active.settings, &document);
    let diagnostics = document.diagnostics();
    if diagnostics.is_empty() { Ok(()) } else { Err(diagnostics) }
}

/// Reports the problems in the document of the settings.
fn look(settings: &Settings, document: &Document) {
    let server = &settings.server;
    let addresses = [server.api, server.ingest, server.admin];
    for (address, at) in addresses.into_iter().zip(server.at) {
        match bound(address) {
            Ok(()) => {}
            // Usually in use by the running dispatcher.
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => {}
            Err(why) => document.fault(at, format!("cannot listen on {address}: {why}")),
        }
    }
    let secrets = &settings.secrets;
    if let Err(why) = preview::would_open(&settings.store.path, &secrets.key_file) {
        let at = match &why {
            OpenError::Key(_) | OpenError::WrongKey { .. } => secrets.key_file_at,
            _ => settings.store.path_at,
        };
        document.fault(at, why.to_string());
    }
}

/// Binds the address and releases it, without listening.
fn bound(address: SocketAddr) -> io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}
