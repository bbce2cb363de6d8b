//! Responses as clients of every kind read them: pages of other origins, gRPC clients,
//! HTTP/1.0, HEAD and upgrades, over HTTP/1.1, HTTP/1.1 with TLS, and HTTP/2.

mod browsers;
mod chromium;
mod framing;
mod grpc;
mod unauthorized;

use std::process::Command;

use weir_tests::authority::Authority;
use weir_tests::config::Config;
use weir_tests::http1::Head;
use weir_tests::real;
use weir_tests::request::CONTROL;
use weir_tests::response::Response;
use weir_tests::world::World;

/// A page's origin that the tests allow.
const APP: &str = "https://app.example.com";

/// How a client reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http1OverTls,
    Http2,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Http1, Protocol::Http1OverTls, Protocol::Http2];

impl Protocol {
    /// curl's argument for the HTTP version.
    fn version(self) -> &'static str {
        match self {
            Self::Http1 | Self::Http1OverTls => "--http1.1",
            Self::Http2 => "--http2",
        }
    }
}

/// A world with a TLS listener too.
pub(crate) struct House {
    pub(crate) world: World,
    /// The address of the TLS listener.
    pub(crate) https: String,
    /// The signer of its certificate; clients run in its folder.
    pub(crate) authority: Authority,
}

impl House {
    /// The default configuration as `change` changes it, with a listener for TLS.
    #[track_caller]
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let authority = Authority::of_server();
        let listener = authority.entry_of("server");
        let world = World::with(|config| change(config.with("[[server.https]]", &listener)));
        let https = world.gateway.https();
        Self { world, https, authority }
    }

    /// The URL of a target on the control host.
    fn url(&self, protocol: Protocol, target: &str) -> String {
        let (scheme, address) = match protocol {
            Protocol::Http1 => ("http", self.world.gateway.http()),
            Protocol::Http1OverTls | Protocol::Http2 => ("https", self.https.as_str()),
        };
        let (_, port) = address.rsplit_once(':').unwrap();
        format!("{scheme}://{CONTROL}:{port}{target}")
    }

    /// The output of curl with these arguments.
    #[track_caller]
    fn curl(&self, protocol: Protocol, arguments: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--path-as-is", "--cacert"]);
        curl.arg(self.authority.path("ca.crt")).arg(protocol.version()).args(arguments);
        real::run(curl.current_dir(self.authority.root())).expect(0).stdout
    }

    /// The response to one request.
    #[track_caller]
    fn call(&self, protocol: Protocol, arguments: &[&str], target: &str) -> Response {
        let url = self.url(protocol, target);
        // Output is collected by lines, without line ends, so curl writes the response to a file.
        self.curl(protocol, &[arguments, &["-i", "-o", "answer", &url]].concat());
        parse(std::fs::read(self.authority.path("answer")).unwrap())
    }
}

/// Parses curl's output: interim heads, the head, the body.
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

/// The default configuration, with a control plane that [`APP`] may read, cookies included.
fn readable(config: Config) -> Config {
    let cors = format!("origins = [\"https://other.example\", \"{APP}\"]\ncredentials = true");
    config.with("[planes.control.cors]", &cors)
}
