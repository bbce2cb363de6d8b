//! Answers as clients of every kind can read them: pages of other origins, clients of gRPC, and
//! whoever asks in an unusual way, over HTTP/1.1, HTTP/1.1 by TLS, and HTTP/2.

mod browsers;
mod chromium;
mod endings;
mod grpc;

use std::process::Command;

use weir_tests::config::Config;
use weir_tests::folder::Folder;
use weir_tests::real;
use weir_tests::request::CONTROL;
use weir_tests::response::Response;
use weir_tests::wire::Head;
use weir_tests::world::World;

/// A page's origin that the tests allow.
const APP: &str = "https://app.example.com";

/// How a client reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Http1,
    Http1ByTls,
    Http2,
}

const WAYS: [Way; 3] = [Way::Http1, Way::Http1ByTls, Way::Http2];

impl Way {
    /// The same with a version that curl is told.
    fn version(self) -> &'static str {
        match self {
            Self::Http1 | Self::Http1ByTls => "--http1.1",
            Self::Http2 => "--http2",
        }
    }
}

/// A world that is reached by TLS, too.
pub(crate) struct House {
    pub(crate) world: World,
    /// Where TLS is spoken.
    pub(crate) https: String,
    /// Its certificates, and the authority that signed them, `ca.crt`.
    pub(crate) folder: Folder,
}

impl House {
    /// The default configuration as `change` changes it, with a listener for TLS.
    #[track_caller]
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let folder = certificates();
        let [certificate, key] = ["server.crt", "server.key"].map(|name| folder.path(name));
        let listener = format!(
            "address = \"127.0.0.1:0\"\ncertificate = \"{}\"\nkey = \"{}\"",
            certificate.display(),
            key.display()
        );
        let world = World::with(|config| change(config.with("[[server.https]]", &listener)));
        let says = |line: &serde_json::Value| {
            line["message"] == "listening" && line["listener"] == "https"
        };
        let line = world.gateway.log().wait("where https listens", says);
        let https = line["address"].as_str().unwrap().to_owned();
        Self { world, https, folder }
    }

    /// A target of the control host, as a client writes it that comes this way.
    fn url(&self, way: Way, target: &str) -> String {
        let (scheme, address) = match way {
            Way::Http1 => ("http", self.world.gateway.http()),
            Way::Http1ByTls | Way::Http2 => ("https", self.https.as_str()),
        };
        let (_, port) = address.rsplit_once(':').unwrap();
        format!("{scheme}://{CONTROL}:{port}{target}")
    }

    /// What curl says, given these arguments.
    #[track_caller]
    fn curl(&self, way: Way, arguments: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--path-as-is", "--cacert"]);
        curl.arg(self.folder.path("ca.crt")).arg(way.version()).args(arguments);
        real::run(curl.current_dir(self.folder.root())).expect(0).stdout
    }

    /// What one request is answered.
    #[track_caller]
    fn call(&self, way: Way, arguments: &[&str], target: &str) -> Response {
        let url = self.url(way, target);
        // Lines are collected without their ends, so the answer goes by a file.
        self.curl(way, &[arguments, &["-i", "-o", "answer", &url]].concat());
        parse(std::fs::read(self.folder.path("answer")).unwrap())
    }
}

/// Takes apart what curl writes: interim heads, the head, the body.
#[track_caller]
fn parse(mut bytes: Vec<u8>) -> Response {
    let mut response = Response::default();
    loop {
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
        let body = bytes.split_off(end);
        let head = Head::parse(bytes);
        let status = head.start.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
        if (100..200).contains(&status) {
            response.interim.push(head);
            bytes = body;
            continue;
        }
        (response.status, response.head, response.body) = (status, head, body);
        return response;
    }
}

/// An authority, `ca`, and what it signed, `server`, for the hosts of the default configuration.
#[track_caller]
fn certificates() -> Folder {
    let folder = Folder::new();
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        real::run(command.args(arguments.split(' ')).current_dir(folder.root())).expect(0);
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=weir-test-ca \
         -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
    ));
    openssl(&format!("req -new {key} -keyout server.key -out server.csr -subj /CN=server"));
    let names = "DNS:api.localhost,DNS:*.auth.localhost,IP:127.0.0.1";
    folder.write("server.ext", &format!("subjectAltName={names}\n"));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt \
         -days 2 -extfile server.ext",
    );
    folder
}

/// The default configuration, with a control plane that [`APP`] may read, cookies included.
fn readable(config: Config) -> Config {
    let cors = format!("origins = [\"https://other.example\", \"{APP}\"]\ncredentials = true");
    config.with("[planes.control.cors]", &cors)
}
