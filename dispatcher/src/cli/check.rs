//! Finds problems that would prevent a start, in addition to errors of the configuration: the
//! database, the key file, the addresses; with `--online` also what would fail later: the directory
//! over HTTP. Each is reported at the option that names it.
//!
//! Invariant: a check changes nothing, and does not disturb a running dispatcher.
//!
//! Not here: problems of other systems (receivers, a mail server).

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;
use weir_common::cli::{EXIT_FAILURE, fail, print, refuse, runtime, warn};
use weir_common::config::document::{Document, lines};
use weir_common::time::Clock;

use crate::config::settings::Settings;
use crate::live_config::ActiveConfig;
use crate::live_config::source::Config;
use crate::store::sqlite::open::OpenError;
use crate::store::sqlite::preview::{self, Previewed};

/// Reads all files as a start does, reports every problem, and returns the exit code.
pub(super) fn check(config: &Config, online: bool) -> u8 {
    let name = config.file.name();
    let clock = Clock::system();
    let active = match config.load(&clock) {
        Ok(active) => active,
        Err(diagnostics) => return refuse(&diagnostics),
    };
    let document = active.origin.document(&name);
    let unchecked = look(&active.settings, &document);
    let diagnostics = document.diagnostics();
    if !diagnostics.is_empty() {
        return refuse(&diagnostics);
    }
    let now = clock.now().unix;
    warn(active.certificate.iter().filter_map(|certificate| certificate.expired(now)));
    warn(unchecked.into_iter());
    if !online {
        return print(&format!("{name}: no problems"));
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(why) => return fail(EXIT_FAILURE, &why),
    };
    runtime.block_on(try_directory(&active, &document));
    let diagnostics = document.diagnostics();
    if diagnostics.is_empty() {
        return print(&format!("{name}: no problems, and what it names works"));
    }
    fail(EXIT_FAILURE, &lines(&diagnostics))
}

/// Tries the directory over HTTP, where there is one.
async fn try_directory(active: &ActiveConfig, document: &Document) {
    let Some(client) = &active.origin.directory else { return };
    if let Err(why) = client.try_out("weir-dispatcher-check").await {
        document.fault_in("directory.url", why);
    }
}

/// Reports the problems in the document of the settings; returns what was not checked.
fn look(settings: &Settings, document: &Document) -> Option<String> {
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
    match preview::would_open(&settings.store.path, &secrets.key_file) {
        Ok(Previewed::WithKey) => None,
        Ok(Previewed::WithoutKey) => Some(format!(
            "the database {} is in use, or was not shut down cleanly: whether {} is its key was \
             not checked",
            settings.store.path.display(),
            secrets.key_file.display()
        )),
        Err(why) => {
            let at = match &why {
                OpenError::Key(_) | OpenError::WrongKey { .. } => secrets.key_file_at,
                _ => settings.store.path_at,
            };
            document.fault(at, why.to_string());
            None
        }
    }
}

/// Binds the address and releases it, without listening.
fn bound(address: SocketAddr) -> io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}
