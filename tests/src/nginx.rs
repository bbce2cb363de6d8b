//! An nginx for one test, on a free port.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::client::Client;
use crate::folder::Folder;
use crate::upstream::Upstream;
use crate::wait;

/// An nginx that serves.
pub struct Nginx {
    child: Child,
    address: String,
    folder: Folder,
    _port: Upstream,
}

impl Nginx {
    /// Starts an nginx with the `server` blocks that `servers` writes, given the address to listen
    /// at and a folder for files.
    #[track_caller]
    pub fn start(servers: impl Fn(&str, &Path) -> String) -> Self {
        // nginx cannot choose a free port. This one stays reserved: no other server gets it.
        let port = Upstream::refusing();
        let address = port.address();
        let folder = Folder::new();
        let root = folder.root().display();
        let servers = servers(&address, folder.root());
        let config = format!(
            "pid {root}/nginx.pid; error_log {root}/error.log; daemon off; user root;\n\
             events {{}}\n\
             http {{\n\
               access_log off; client_body_temp_path {root}/bodies; proxy_temp_path {root}/p;\n\
               fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
               types {{ text/plain txt; }} client_max_body_size 8m;\n\
               {servers}\n\
             }}\n"
        );
        let file = folder.write("nginx.conf", &config);
        let mut child = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("nginx does not run ({error}): install it with apt"));
        wait::until("nginx to listen", || {
            assert_eq!(child.try_wait().unwrap(), None, "nginx does not start: {config}");
            Client::try_connect(&address).ok()
        });
        Self { child, address, folder, _port: port }
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // On SIGTERM the master stops its workers; a killed master would leave them running.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
        let _ = self.child.wait();
    }
}
