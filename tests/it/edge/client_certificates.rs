//! Client certificates: which ones a listener accepts, and which headers about them the upstream
//! gets.

use base64::prelude::{BASE64_STANDARD, Engine};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use weir_tests::authority::{Authority, VERSIONS};
use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{NAMES, world_of};

/// A world that requests client certificates, which the authority of `clients` signs.
#[track_caller]
fn with_client_certificates(authority: &Authority, clients: &Authority, how: &str) -> World {
    let lines =
        format!("client_ca = \"{}\"\nclient_certificate = \"{how}\"", clients.path("ca.crt"));
    world_of(authority, &[("server", NAMES)], &lines, |config| config)
}

/// Signs a client certificate by `clients`, and copies it with its key to the folder of
/// `authority`, whose `client` reads them.
#[track_caller]
fn client_of(authority: &Authority, clients: &Authority, name: &str) {
    clients.sign(name, "DNS:client.example", 2);
    for end in ["crt", "key"] {
        authority.write(&format!("{name}.{end}"), &clients.read(&format!("{name}.{end}")));
    }
}

#[test]
fn a_listener_that_requires_client_certificates_accepts_only_those_of_its_authority() {
    let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    client_of(&authority, &clients, "client");
    client_of(&authority, &others, "other");
    let world = with_client_certificates(&authority, &clients, "required");
    for version in VERSIONS {
        for (presented, accepted) in [(Some("client"), true), (None, false), (Some("other"), false)]
        {
            let config = authority.client(&[version], presented);
            let client = Client::connect(&world.gateway.https());
            // In TLS 1.3 a client completes its handshake before the server has checked its
            // certificate.
            let answer = client
                .try_secured(&config, "api.localhost")
                .and_then(|mut client| client.try_exchange(Request::get("/healthz").head_bytes()));
            assert_eq!(answer.is_ok(), accepted, "{version:?} {presented:?}");
        }
    }
    let failures = "weir_gateway_handshake_failures_total{reason=\"client_certificate\"}";
    wait::until("four failures", || (world.gateway.metric(failures) == 4.0).then_some(()));
    assert_eq!(world.control.requests().len(), 2);
}

#[test]
fn the_upstream_gets_the_verified_client_certificate_and_no_forged_one() {
    let (authority, clients) = (Authority::new(), Authority::new());
    client_of(&authority, &clients, "client");
    let world = with_client_certificates(&authority, &clients, "optional");
    let forged = Request::get("/v1/me")
        .field("Client-Cert", ":Zm9yZ2Vk:")
        .field("client_cert", ":Zm9yZ2Vk:")
        .field("Client-Cert-Chain", ":Zm9yZ2Vk:");
    let forwarded = || {
        let head = world.control.requests().pop().unwrap().head;
        assert_eq!((head.field("client-cert-chain"), head.field("client_cert")), (None, None));
        head.all("client-cert").into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let real = format!(":{}:", BASE64_STANDARD.encode(clients.der("client.crt")));
    for (presented, expected) in [(Some("client"), vec![real]), (None, vec![])] {
        let config = authority.client(VERSIONS, presented);
        let client = Client::connect(&world.gateway.https());
        let mut client = client.secured(&config, "api.localhost");
        for _ in 0..2 {
            client.call(&forged).expect(200);
            assert_eq!(forwarded(), expected);
        }
    }
    // A forged header of a client without TLS is removed too.
    world.gateway.client().call(&forged).expect(200);
    assert_eq!(forwarded(), Vec::<String>::new());
}

#[test]
fn over_http2_the_upstream_gets_the_same_certificate_headers() {
    let (authority, clients) = (Authority::new(), Authority::new());
    client_of(&authority, &clients, "client");
    let world = with_client_certificates(&authority, &clients, "optional");
    let address = world.gateway.https();
    let port = address.rsplit(':').next().unwrap();
    let curl = |presented: bool| {
        let mut command = std::process::Command::new("curl");
        command.args(["--silent", "--fail", "--http2", "--cacert", &authority.path("ca.crt")]);
        command.args(["--resolve", &format!("api.localhost:{port}:127.0.0.1")]);
        command.args(["--header", "Client-Cert: :Zm9yZ2Vk:", "--output", "/dev/null"]);
        if presented {
            let (cert, key) = (authority.path("client.crt"), authority.path("client.key"));
            command.args(["--cert", &cert, "--key", &key]);
        }
        command.arg(format!("https://api.localhost:{port}/v1/me"));
        weir_tests::real::run(&mut command).expect(0);
        let head = world.control.requests().pop().unwrap().head;
        head.field("client-cert").map(str::to_owned)
    };
    let real = format!(":{}:", BASE64_STANDARD.encode(clients.der("client.crt")));
    assert_eq!(curl(true), Some(real));
    assert_eq!(curl(false), None);
}

#[test]
fn a_removed_authority_admits_no_client() {
    let (authority, clients, next) = (Authority::new(), Authority::new(), Authority::new());
    client_of(&authority, &clients, "client");
    let world = with_client_certificates(&authority, &clients, "required");
    for version in VERSIONS {
        let old_ca = clients.read("ca.crt");
        let config = authority.client(&[version], Some("client"));
        let accepted = || {
            let client = Client::connect(&world.gateway.https());
            let mut client = client.try_secured(&config, "api.localhost").ok()?;
            client.try_exchange(Request::get("/healthz").head_bytes()).ok()?;
            client.tls().handshake_kind()
        };
        // Each client certificate is verified again: no session is resumed.
        assert_eq!(accepted(), Some(HandshakeKind::Full));
        assert_eq!(accepted(), Some(HandshakeKind::Full));
        clients.write("ca.crt", &next.read("ca.crt"));
        world.gateway.reload().expect(200);
        assert_eq!(accepted(), None, "{version:?}");
        clients.write("ca.crt", &old_ca);
        world.gateway.reload().expect(200);
    }
}

#[test]
fn an_expired_client_certificate_is_refused() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let world = with_client_certificates(&authority, &clients, "optional");
    for (days, accepted) in [(2, true), (-1, false)] {
        clients.sign("client", "DNS:client.example", days);
        for end in ["crt", "key"] {
            authority.write(&format!("client.{end}"), &clients.read(&format!("client.{end}")));
        }
        for version in VERSIONS {
            assert_eq!(answers(&authority, &world, version), accepted, "{version:?} {days}");
        }
    }
    let failures = "weir_gateway_handshake_failures_total{reason=\"client_certificate\"}";
    wait::until("two failures", || (world.gateway.metric(failures) == 2.0).then_some(()));
}

/// An operator might not expect this, so `docs/security.md` states it: an authority is trusted for
/// as long as its file exists, even after it has expired.
#[test]
fn an_expired_authority_is_trusted_until_it_is_removed() {
    let (authority, clients) = (Authority::new(), Authority::new());
    client_of(&authority, &clients, "client");
    clients.expire();
    let world = with_client_certificates(&authority, &clients, "required");
    for version in VERSIONS {
        assert!(answers(&authority, &world, version), "{version:?}");
    }
}

/// Whether a client with the certificate `client` gets a response.
fn answers(
    authority: &Authority,
    world: &World,
    version: &'static SupportedProtocolVersion,
) -> bool {
    let config = authority.client(&[version], Some("client"));
    // In TLS 1.3 a client completes its handshake before the server has checked its certificate.
    let answer = Client::connect(&world.gateway.https())
        .try_secured(&config, "api.localhost")
        .and_then(|mut client| client.try_exchange(Request::get("/healthz").head_bytes()));
    answer.is_ok()
}
