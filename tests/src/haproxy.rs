//! A HAProxy for one test, on a free port.

use std::path::Path;
use std::process::Command;

use crate::client::Client;
use crate::folder::Folder;
use crate::process::Process;
use crate::upstream::Upstream;
use crate::wait;

/// A HAProxy that listens.
pub struct Haproxy {
    _process: Process,
    address: String,
    _folder: Folder,
    _port: Upstream,
}

impl Haproxy {
    /// Starts a HAProxy that forwards connections to `server`; `bind` and `server` are the options
    /// of those lines.
    #[track_caller]
    pub fn start(bind: &str, server: &str) -> Self {
        // HAProxy cannot choose a free port. This one stays reserved: no other server gets it.
        let port = Upstream::refusing();
        let address = port.address();
        let folder = Folder::new();
        let config = format!(
            "global\n  stats timeout 5s\n\
             defaults\n  mode tcp\n  timeout connect 5s\n\
             \x20 timeout client 30s\n  timeout server 30s\n\
             listen test\n  bind {address} {bind}\n  server gateway {server}\n"
        );
        let file = folder.write("haproxy.cfg", &config);
        let mut process = Process::spawn("haproxy", command(&file).arg("-db"));
        wait::until("HAProxy to listen", || {
            assert_eq!(process.try_wait(), None, "HAProxy does not start");
            Client::try_connect(&address).ok()
        });
        Self { _process: process, address, _folder: folder, _port: port }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }
}

fn command(file: &Path) -> Command {
    let mut command = Command::new("haproxy");
    command.arg("-f").arg(file);
    command
}
