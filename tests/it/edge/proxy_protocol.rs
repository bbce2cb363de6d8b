//! Load balancers that name the client's address in a PROXY header.

use std::net::Ipv6Addr;
use std::process::Command;
use std::time::Duration;

use weir_tests::authority::Authority;
use weir_tests::client::Client;
use weir_tests::haproxy::Haproxy;
use weir_tests::real;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{NAMES, world_of};

const V1: &str = "PROXY TCP4 192.0.2.77 198.51.100.1 40000 443\r\n";
const TRUSTS_ONE: &str = "proxy_protocol_from = [\"127.0.0.1\"]\nhandshake_timeout = \"500ms\"";

/// A world that accepts PROXY headers only from 127.0.0.1, and has TLS too.
#[track_caller]
fn balanced() -> (World, Authority) {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", TRUSTS_ONE)
    });
    (world, authority)
}

fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[command, family], &length, rest].concat()
}

/// The client address in the last request to the upstream.
#[track_caller]
fn client_address(world: &World) -> String {
    let head = world.control.requests().pop().unwrap().head;
    head.field("x-forwarded-for").unwrap().to_owned()
}

#[test]
fn the_address_in_a_header_is_the_clients_in_both_versions_with_and_without_tls() {
    let (world, authority) = balanced();
    let v4 = [192, 0, 2, 77, 198, 51, 100, 1, 0x9c, 0x40, 1, 187];
    let long = [&v4[..], &[0x04, 0x10, 0], &[7; 4_096]].concat();
    let ip: [u8; 16] = "2001:db8::77".parse::<Ipv6Addr>().unwrap().octets();
    let v6 = [&ip[..], &ip[..], &[0x9c, 0x40, 1, 187]].concat();
    for (header, client) in [
        (V1.into(), "192.0.2.77"),
        ("PROXY TCP6 2001:db8::77 2001:db8::1 40000 443\r\n".into(), "2001:db8::77"),
        ("PROXY UNKNOWN\r\n".into(), "127.0.0.1"),
        (v2(0x21, 0x11, &v4), "192.0.2.77"),
        (v2(0x21, 0x11, &long), "192.0.2.77"),
        (v2(0x21, 0x21, &v6), "2001:db8::77"),
        (v2(0x20, 0x00, &[]), "127.0.0.1"),
        (v2(0x21, 0x31, &[0; 216]), "127.0.0.1"),
    ] {
        let mut plain = world.client();
        // The request arrives in one write with the header; no byte of it may be lost.
        plain.send([header.as_slice(), &Request::get("/v1/me").head_bytes()].concat());
        plain.read().expect(200);
        assert_eq!(client_address(&world), client);
        let mut client_of_tls = Client::connect(&world.gateway.https());
        client_of_tls.send(&header);
        let mut client_of_tls = client_of_tls.secured(&authority.trusted(), "api.localhost");
        client_of_tls.get("/v1/me").expect(200);
        assert_eq!(client_address(&world), client);
    }
    let line = |line: &serde_json::Value| line["client"] == "192.0.2.77";
    world.gateway.access_log().wait("the client's address", line);
}

#[test]
fn a_header_may_arrive_byte_by_byte() {
    let (world, _) = balanced();
    let v4 = [192, 0, 2, 77, 198, 51, 100, 1, 0x9c, 0x40, 1, 187];
    for header in [V1.as_bytes(), &v2(0x21, 0x11, &v4)] {
        let mut client = world.client();
        for byte in [header, &Request::get("/v1/me").head_bytes()].concat() {
            client.send([byte]);
        }
        client.read().expect(200);
        assert_eq!(client_address(&world), "192.0.2.77");
    }
}

#[test]
fn a_connection_without_its_required_header_is_closed_without_an_answer() {
    let (world, _) = balanced();
    let too_long = v2(0x21, 0x11, &[0; 60_000]);
    let endless = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 300]].concat();
    let request = Request::get("/v1/me").head_bytes();
    for wrong in
        [request.as_slice(), b"PROXY TCP4 1 2 3 4\r\n", b"\x16\x03\x01", &too_long, &endless]
    {
        let mut client = world.client();
        let _ = client.try_send(wrong);
        assert_eq!(client.read_to_end(), b"");
    }
    let malformed = "weir_gateway_handshake_failures_total{reason=\"proxy_header\"}";
    wait::until("five failures", || (world.gateway.metric(malformed) == 5.0).then_some(()));
    world.control.assert_untouched();
}

#[test]
fn a_header_has_a_deadline_together_with_the_handshake() {
    let (world, _) = balanced();
    let before = wait::now();
    for beginning in ["", "PROXY TCP4 192.0.2.77"] {
        let mut client = world.client();
        client.send(beginning);
        assert_eq!(client.read_to_end(), b"");
    }
    let mut client = Client::connect(&world.gateway.https());
    client.send(&V1[..20]);
    wait::pass(Duration::from_millis(300));
    client.send(&V1[20..]);
    let rest = wait::now();
    assert_eq!(client.read_to_end(), b"");
    assert!(rest.elapsed() < Duration::from_millis(450), "{:?}", rest.elapsed());
    assert!(before.elapsed() >= Duration::from_millis(1_400), "{:?}", before.elapsed());
    let late = "weir_gateway_handshake_failures_total{reason=\"timeout\"}";
    wait::until("three failures", || (world.gateway.metric(late) == 3.0).then_some(()));
}

#[test]
fn a_header_from_an_untrusted_peer_is_no_header() {
    let (world, authority) = balanced();
    let forged = [V1.as_bytes(), &Request::get("/v1/me").head_bytes()].concat();
    let mut client = Client::connect_from("127.0.0.9", world.gateway.http());
    client.exchange(&forged).expect_problem(400);
    let mut client = Client::connect_from("127.0.0.9", &world.gateway.https());
    client.send(V1);
    let refused = client.try_secured(&authority.trusted(), "api.localhost");
    assert!(refused.is_err());
    world.control.assert_untouched();
    let mut client = Client::connect_from("127.0.0.9", world.gateway.http());
    client.get("/v1/me").expect(200);
    assert_eq!(client_address(&world), "127.0.0.9");
    // The admin listener expects no PROXY header.
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
}

#[test]
fn limits_use_the_address_in_the_header() {
    let world = World::with(|config| {
        let lines = "proxy_protocol_from = [\"127.0.0.0/8\"]\nconnections_per_address_max = 2";
        let config = config.with("[server]", lines);
        config.with("[limits.address]", "requests = 2")
    });
    let of = |last: u8| {
        let mut client = world.client();
        client.send(V1.replace("192.0.2.77", &format!("192.0.2.{last}")));
        client
    };
    let served = |mut client: Client| {
        client.try_exchange(Request::get("/healthz").head_bytes()).is_ok().then_some(client)
    };
    let open: Vec<_> = (0..2).filter_map(|_| served(of(1))).collect();
    assert_eq!(open.len(), 2);
    assert!(served(of(1)).is_none(), "a third connection of one client");
    assert!(served(of(2)).is_some());
    drop(open);
    let refused = "weir_gateway_connections_refused_total{reason=\"address\"}";
    wait::until("one refused", || (world.gateway.metric(refused) == 1.0).then_some(()));
    for (last, status) in [(3, 200), (3, 200), (3, 429), (4, 200)] {
        assert_eq!(of(last).get("/v1/me").status, status, "{last}");
    }
}

#[test]
fn haproxy_passes_its_clients_address() {
    let (world, authority) = balanced();
    let (http, https) = (world.gateway.http().to_owned(), world.gateway.https());
    let pem = [authority.read("server.crt"), authority.read("server.key")].concat();
    authority.write("server.pem", &pem);
    let ends = format!("ssl crt {}", authority.path("server.pem"));
    let secret = "https://api.localhost";
    for (bind, server, scheme) in [
        ("", format!("{http} send-proxy"), "http://api.localhost"),
        ("", format!("{http} send-proxy-v2"), "http://api.localhost"),
        ("", format!("{https} send-proxy"), secret),
        ("", format!("{https} send-proxy-v2"), secret),
        // Here HAProxy terminates TLS, and its header records that.
        (ends.as_str(), format!("{http} send-proxy-v2-ssl-cn"), secret),
        (ends.as_str(), format!("{http} send-proxy-v2-ssl"), secret),
    ] {
        let haproxy = Haproxy::start(bind, &server);
        let port = haproxy.address().rsplit(':').next().unwrap().to_owned();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--http1.1", "--interface", "127.0.0.3"]);
        curl.args(["--cacert", &authority.path("ca.crt"), "--output", "/dev/null"]);
        curl.args(["--resolve", &format!("api.localhost:{port}:127.0.0.1")]);
        real::run(curl.arg(format!("{scheme}:{port}/v1/me"))).expect(0);
        assert_eq!(client_address(&world), "127.0.0.3", "{bind} {server}");
    }
}

#[test]
fn curl_as_a_load_balancer_is_understood() {
    let (world, authority) = balanced();
    for (scheme, address) in
        [("http", world.gateway.http().to_owned()), ("https", world.gateway.https())]
    {
        let port = address.rsplit(':').next().unwrap();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--haproxy-protocol", "--output", "/dev/null"]);
        curl.args(["--cacert", &authority.path("ca.crt")]);
        curl.args(["--resolve", &format!("api.localhost:{port}:127.0.0.1")]);
        real::run(curl.arg(format!("{scheme}://api.localhost:{port}/v1/me"))).expect(0);
        assert_eq!(client_address(&world), "127.0.0.1");
    }
}
