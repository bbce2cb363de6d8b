//! The compared proxies over TLS, and load for them: `h2load`, over HTTP/1.1 and HTTP/2.
//!
//! Each is configured like its namesake in `targets`, on a port with TLS and one certificate; the
//! client chooses the HTTP version. Only Weir has limits.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::flags::{fail, sibling};
use crate::lab::{Folder, Process, free_address};
use crate::load::Aim;
use crate::targets::{Limits, Plane, Target, run_haproxy, run_nginx, weir_with};

/// A certificate and its key, in files.
pub struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    /// Creates a certificate in `folder` with `openssl`.
    #[must_use]
    pub fn new(folder: &Folder) -> Self {
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path(name));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=bench", "-addext"])
            .args(["subjectAltName=DNS:api.localhost", "-addext"])
            .args(["basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            fail("openssl makes no certificate");
        }
        Self { certificate, key }
    }

    /// The gateway's `[[server.https]]` table for `address` with this certificate.
    #[must_use]
    pub fn https(&self, address: &str) -> String {
        let [certificate, key] = self.paths();
        format!(
            "[[server.https]]\naddress = \"{address}\"\n\
             certificate = \"{certificate}\"\nkey = \"{key}\"\n"
        )
    }

    /// The certificate's file.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    fn paths(&self) -> [String; 2] {
        [&self.certificate, &self.key].map(|path| path.display().to_string())
    }

    /// Both in one file, as HAProxy requires.
    fn both(&self, folder: &Folder) -> String {
        let text = [&self.certificate, &self.key].map(std::fs::read_to_string);
        let text = text.map(|text| text.unwrap_or_else(|error| fail(&error.to_string())));
        folder.write("both.pem", &text.concat()).display().to_string()
    }
}

/// nginx that answers 204, over HTTP/1.1 and HTTP/2.
#[must_use]
pub fn receiver(folder: &Folder, pair: &Pair) -> Target {
    let (address, [certificate, key]) = (free_address(), pair.paths());
    let http = "access_log off;";
    let server = format!(
        "listen {address} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {key};
        location / {{ return 204; }}"
    );
    let process = run_nginx(folder, "receiver", http, &server);
    Target::new("nginx", Limits::None, address, process)
}

/// nginx without limits.
#[must_use]
pub fn nginx(folder: &Folder, upstream: &Aim, pair: &Pair) -> Target {
    let (address, [certificate, key]) = (free_address(), pair.paths());
    let upstream = upstream.address;
    let http = format!(
        "access_log off; http2_max_requests 1000000000;
        upstream up {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}"
    );
    let server = format!(
        "listen {address} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {key};
        location / {{
            proxy_pass http://up; proxy_http_version 1.1;
            proxy_set_header Connection ''; proxy_set_header Host $host;
        }}"
    );
    let process = run_nginx(folder, "nginx-tls", &http, &server);
    Target::new("nginx", Limits::None, address, process)
}

/// HAProxy without limits.
#[must_use]
pub fn haproxy(folder: &Folder, upstream: &Aim, pair: &Pair) -> Target {
    let address = free_address();
    let bind = format!("{address} ssl crt {} alpn h2,http/1.1", pair.both(folder));
    let process = run_haproxy(folder, "haproxy-tls", &bind, upstream.address, "");
    Target::new("HAProxy", Limits::None, address, process)
}

/// Bare Pingora without limits.
#[must_use]
pub fn bare(folder: &Folder, upstream: &Aim, pair: &Pair) -> Target {
    let address = free_address();
    let [listen, up] = [address, upstream.address].map(|address| address.to_string());
    let [certificate, key] = pair.paths();
    let args = [&listen, &up, "--tls", &certificate, &key];
    let program = sibling("bare-pingora-mimalloc");
    let process = Process::start(folder, "bare-pingora-tls", &program, &args);
    Target::new("bare pingora, mimalloc", Limits::None, address, process)
}

/// weir-gateway with two limits.
#[must_use]
pub fn weir(folder: &Folder, gateway: &Path, upstream: &Aim, pair: &Pair) -> Target {
    let more =
        format!("requests_per_connection_max = 1_000_000_000\n{}", pair.https("127.0.0.1:0"));
    let row = (Plane::Control, Limits::Admit, false);
    let mut target = weir_with(folder, gateway, upstream.address, row, &more);
    target.aim.address = target.https();
    target
}

/// A version of HTTP, as an argument of `h2load`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1: one request at a time on a connection.
    One,
    /// HTTP/2: ten requests at a time on a connection.
    Two,
}

impl Version {
    /// Its name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "HTTP/1.1 by TLS",
            Self::Two => "HTTP/2",
        }
    }
}

/// Sends `requests` on sixteen new connections; all of them must succeed.
pub fn load(aim: &Aim, version: Version, requests: usize) {
    load_as(aim, version, requests, "2xx", &[]);
}

/// The same with `more` arguments of `h2load`; every status must be of `class`, such as `4xx`.
pub fn load_as(aim: &Aim, version: Version, requests: usize, class: &str, more: &[&str]) {
    let how = if version == Version::One { "--h1" } else { "-m10" };
    let authority = format!(":authority: {}", aim.host);
    let output = Command::new("h2load")
        .args(["-t1", "-c16", how, "-n", &requests.to_string(), "-H", &authority])
        .args(more)
        .arg(format!("https://{}{}", aim.address, aim.path))
        .output()
        .unwrap_or_else(|e| fail(&format!("h2load: {e} (Debian: apt install nghttp2-client)")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let codes = text.lines().find_map(|line| line.strip_prefix("status codes: "));
    let all = format!("{requests} {class}");
    if !codes.is_some_and(|codes| codes.split(", ").any(|count| count == all)) {
        fail(&format!("h2load at {}, wanted {class}: {text}", aim.address));
    }
}
