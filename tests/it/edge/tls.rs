//! Handshakes: versions, names, sessions, failures, and slow readers of TLS responses.

use std::time::Duration;

use rustls::HandshakeKind;
use weir_tests::answer::{Answer, Gate};
use weir_tests::authority::{Authority, VERSIONS};
use weir_tests::client::Client;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{NAMES, handshake, secured, world_of};

/// The name of the certificate that a client with this server name gets.
#[track_caller]
fn shown(authority: &Authority, address: &str, name: &str) -> String {
    // Each candidate accepts only its own name, so the accepted name identifies the certificate.
    let client = Client::connect(address).try_secured(&authority.trusted(), name);
    match client {
        Ok(client) => {
            let first = client.tls().peer_certificates().unwrap()[0].to_vec();
            let names = ["one", "two", "three"];
            let is_it = |one: &&&str| authority.der(&format!("{one}.crt")) == first;
            names.iter().find(is_it).unwrap().to_string()
        }
        Err(error) => {
            assert!(error.to_string().contains("not valid for name"), "{error}");
            "another's".to_owned()
        }
    }
}

#[test]
fn the_server_name_chooses_among_several_certificates() {
    let authority = Authority::new();
    let entries = [
        ("one", "DNS:first.example,IP:127.0.0.1"),
        ("two", "DNS:api.localhost,DNS:*.auth.localhost"),
        ("three", "DNS:acme.auth.localhost"),
    ];
    let world = world_of(&authority, &entries, "", |config| config);
    let address = world.gateway.https();
    let shown = |name| shown(&authority, &address, name);
    assert_eq!(shown("api.localhost"), "two");
    assert_eq!(shown("in_acme.auth.localhost"), "two");
    assert_eq!(shown("acme.auth.localhost"), "three");
    assert_eq!(shown("first.example"), "one");
    // A client that connects to an address sends no name and gets the first certificate.
    assert_eq!(shown("127.0.0.1"), "one");
    assert_eq!(shown("unknown.example"), "another's");
    let listeners = world.gateway.log().json();
    let listens = |line: &&serde_json::Value| line["listener"] == "https";
    assert_eq!(listeners.iter().filter(listens).count(), 1, "one address is one listener");
}

#[test]
fn tls_1_3_is_accepted_and_tls_1_2_only_where_it_is_allowed() {
    let authority = Authority::new();
    for (lines, older) in [("tls_min = \"1.2\"", true), ("tls_min = \"1.3\"", false)] {
        let world = world_of(&authority, &[("server", NAMES)], lines, |config| config);
        for version in VERSIONS {
            let config = authority.client(&[version], None);
            let client = Client::connect(&world.gateway.https());
            let client = client.try_secured(&config, "api.localhost");
            let expected = older || version.version == rustls::ProtocolVersion::TLSv1_3;
            assert_eq!(client.is_ok(), expected, "{lines} {version:?}");
            if let Ok(mut client) = client {
                client.get("/healthz").expect(200);
            }
        }
        let failures = "weir_gateway_handshake_failures_total{reason=\"incompatible\"}";
        let expected = if older { 0.0 } else { 1.0 };
        wait::until("the failure", || (world.gateway.metric(failures) == expected).then_some(()));
    }
}

#[test]
fn a_session_is_resumed_in_both_versions() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    for version in VERSIONS {
        let config = authority.client(&[version], None);
        let kind = || handshake(&world, &config);
        assert_eq!(kind(), HandshakeKind::Full, "{version:?}");
        assert_eq!(kind(), HandshakeKind::Resumed, "{version:?}");
        // A reload that does not change TLS settings keeps sessions valid.
        world.gateway.write_config(&format!("{}\n# another\n", world.config()));
        world.gateway.reload().expect(200);
        assert_eq!(kind(), HandshakeKind::Resumed, "{version:?}");
    }
}

#[test]
fn the_upstream_sees_that_its_client_used_tls() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    secured(&world, &authority).get("/v1/me").expect(200);
    let head = world.control.only().head;
    assert_eq!(head.field("x-forwarded-proto"), Some("https"));
    assert!(head.field("forwarded").unwrap().contains("proto=https"));
    let line = world.gateway.access_log().wait("the request", |line| line["path"] == "/v1/me");
    assert_eq!(line["status"], 200);
}

#[test]
fn failed_handshakes_are_counted_by_reason() {
    let authority = Authority::new();
    let short = |config: weir_tests::config::Config| {
        config.with("[server]", "handshake_timeout = \"300ms\"")
    };
    let world = world_of(&authority, &[("server", NAMES)], "", short);
    let address = world.gateway.https();
    let counted = |reason: &str, what: &str| {
        let name = format!("weir_gateway_handshake_failures_total{{reason=\"{reason}\"}}");
        wait::until(what, || (world.gateway.metric(&name) >= 1.0).then_some(()));
    };
    let mut plain = Client::connect(&address);
    plain.send("GET / HTTP/1.1\r\nHost: api.localhost\r\n\r\n");
    let printed = plain.read_to_end();
    assert!(!printed.starts_with(b"HTTP"), "no HTTP without TLS: {printed:?}");
    counted("malformed", "HTTP where TLS is spoken");
    drop(Client::connect(&address));
    counted("closed", "a client that leaves");
    let mut silent = Client::connect(&address);
    assert_eq!(silent.read_to_end(), b"");
    counted("timeout", "a client that says nothing");
    let other = Authority::new();
    let refused = Client::connect(&address).try_secured(&other.trusted(), "api.localhost");
    assert!(refused.is_err());
    counted("alert", "a client that does not trust us");
    wait::until("every connection to close", || {
        (world.gateway.metric("weir_gateway_connections") == 0.0).then_some(())
    });
    secured(&world, &authority).get("/healthz").expect(200);
}

#[test]
fn a_handshake_that_arrives_byte_by_byte_times_out() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", "handshake_timeout = \"500ms\"")
    });
    let mut client = Client::connect(&world.gateway.https());
    let before = wait::now();
    // The beginning of a TLS record of 512 bytes, and then a byte at a time.
    client.send([22, 3, 1, 2, 0, 1, 0, 1, 252]);
    let ended = wait::within(wait::PATIENCE, || {
        wait::pass(Duration::from_millis(50));
        client.try_send([3]).err()
    });
    assert!(ended.is_some(), "50 ms between two bytes keep a connection open");
    assert!(before.elapsed().as_secs() < 10, "{:?}", before.elapsed());
}

#[test]
fn a_stop_does_not_wait_for_a_handshake() {
    let authority = Authority::new();
    let mut world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", "handshake_timeout = \"60s\"")
    });
    let silent = Client::connect(&world.gateway.https());
    wait::until("the connection to be accepted", || {
        (world.gateway.metric("weir_gateway_connections") == 1.0).then_some(())
    });
    let before = wait::now();
    world.gateway.signal("TERM");
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert!(before.elapsed().as_secs() < 10, "{:?}", before.elapsed());
    drop(silent);
}

#[test]
fn curl_agrees_on_versions_and_protocols() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let address = world.gateway.https();
    let port = address.rsplit(':').next().unwrap();
    let curl = |options: &str| {
        let mut command = std::process::Command::new("curl");
        command.args(["--silent", "--cacert", &authority.path("ca.crt")]);
        command.args(["--write-out", "%{http_code} %{http_version}", "--output", "/dev/null"]);
        command.args(["--resolve", &format!("api.localhost:{port}:127.0.0.1")]);
        command.args(options.split(' ').filter(|option| !option.is_empty()));
        command.arg(format!("https://api.localhost:{port}/healthz"));
        let finished = weir_tests::real::run(&mut command);
        (finished.code, finished.stdout)
    };
    let answered = |version: &str| (Some(0), format!("200 {version}"));
    assert_eq!(curl("--http1.1 --tlsv1.2 --tls-max 1.2"), answered("1.1"));
    assert_eq!(curl("--http1.1 --tlsv1.3"), answered("1.1"));
    assert_eq!(curl("--http2"), answered("2"));
    // curl exits with 35 if the handshake fails.
    assert_eq!(curl("--tls-max 1.1").0, Some(35));
    assert_eq!(curl("--tlsv1.0 --tls-max 1.0 --ciphers DEFAULT@SECLEVEL=0").0, Some(35));
}

#[test]
fn every_close_sends_close_notify() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", "idle_timeout = \"300ms\"\nhead_timeout = \"300ms\"")
    });
    let closing = Request::get("/healthz").field("Connection", "close").head_bytes();
    for (sent, answer) in [
        (closing.as_slice(), "HTTP/1.1 200"),
        (b"GET / HTTP/1.1\r\nHost: api", "HTTP/1.1 408"),
        (b"GET / HTTP/9\r\n\r\n", "HTTP/1.1 400"),
        (b"", ""),
    ] {
        let mut client = secured(&world, &authority);
        client.send(sent);
        let printed = client.read_to_close_notify();
        assert!(printed.starts_with(answer.as_bytes()), "{}", String::from_utf8_lossy(&printed));
    }
}

#[test]
fn a_response_that_is_not_read_costs_little_memory() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let large = 64 << 20;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {large}\r\n\r\n");
    world.control.always(Answer::script().send(head).flood(large));
    secured(&world, &authority).call(&Request::new("HEAD", "/healthz")).expect(200);
    let before = world.gateway.resident_bytes();
    let request = Request::get("/v1/me/large").head_bytes();
    let mut lazy: Vec<Client> = (0..4).map(|_| secured(&world, &authority)).collect();
    for client in &mut lazy {
        client.send(&request);
        client.read_head_only().expect(200);
    }
    wait::pass(Duration::from_secs(1));
    let grown = world.gateway.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "four answers take {} MiB", grown >> 20);
}

/// Clients that request responses of many lengths and do not read yet: the end of one response is
/// buffered in the gateway, of another in TLS, of a third in the kernel. The last bytes of each
/// response wait at the upstream for `gate`.
#[track_caller]
fn lazy(world: &World, authority: &Authority, gate: &Gate) -> Vec<(u64, Client)> {
    let gate = gate.clone();
    world.dispatcher.answer(move |request| {
        let target = String::from_utf8(request.target()).unwrap();
        let length: u64 = target.rsplit('/').next().unwrap().parse().unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length + 4);
        Answer::script().send(head).flood(length).wait(&gate).send("done")
    });
    let begin = |nth: u64| {
        let length = nth * (40 << 10);
        let client = Client::connect_with_small_buffer(&world.gateway.https());
        let mut client = client.secured(&authority.trusted(), "api.localhost");
        client.send(Request::get(&format!("/assets/{length}")).head_bytes());
        (length, client)
    };
    (1..=110).map(begin).collect()
}

#[test]
fn a_slow_client_gets_the_available_part_of_an_unfinished_response() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let gate = Gate::new();
    let mut clients = lazy(&world, &authority, &gate);
    wait::pass(Duration::from_secs(1));
    for (length, client) in &mut clients {
        client.read_head_only().expect(200);
        client.skip(*length);
    }
    gate.open();
    for (_, client) in &mut clients {
        client.skip(4);
    }
}

#[test]
fn a_client_that_does_not_read_the_end_is_disconnected() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[server]", "body_timeout = \"300ms\"\nidle_timeout = \"300ms\"")
    });
    let gate = Gate::new();
    gate.open();
    let clients = lazy(&world, &authority, &gate);
    wait::until("every connection to close", || {
        (world.gateway.metric("weir_gateway_connections") == 0.0).then_some(())
    });
    drop(clients);
}
