//! Certificates are replaced while clients connect and disconnect.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::HandshakeKind;
use weir_tests::authority::{Authority, VERSIONS};
use weir_tests::client::Client;
use weir_tests::process::{self, Process};
use weir_tests::request::Request;
use weir_tests::wait;

use super::{NAMES, handshake, world_of};

#[test]
fn certificates_replaced_under_load_fail_no_connection() {
    let authority = Authority::new();
    for fields in [&[][..], &["-H", "Connection: close"]] {
        let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
        let url = format!("https://{}/healthz", world.gateway.https());
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "-c8", "-d60s", "--timeout", "20s", "-H", "Host: api.localhost"]);
        let wrk = Process::spawn("wrk", wrk.args(fields).arg(&url));
        world.control.wait_for_requests(1);
        for _ in 0..8 {
            authority.sign("server", NAMES, 2);
            world.gateway.reload().expect(200);
            wait::pass(Duration::from_millis(100));
        }
        let metrics = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
        let failed = |line: &&str| line.starts_with("weir_gateway_handshake_failures_total");
        let failed: Vec<&str> = metrics.lines().filter(failed).collect();
        // wrk first opens a connection to check that the port is open.
        let own = |line: &&str| line.ends_with("{reason=\"closed\"} 1");
        assert!(failed.iter().all(own), "{failed:?}");
        // When interrupted, wrk prints its counts.
        wrk.signal("INT");
        let output = process::finish(wrk).stdout;
        assert!(output.contains(" requests in "), "{output}");
        assert!(!output.contains("Socket errors") && !output.contains("Non-2xx"), "{output}");
        // wrk sends an address as the server name in each handshake; that must not log a line each
        // time.
        assert!(world.gateway.log().json().len() < 50);
    }
}

#[test]
fn a_session_of_an_earlier_certificate_gets_a_full_handshake_and_the_next_is_resumed() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    for version in VERSIONS {
        let config = authority.client(&[version], None);
        let kind = || handshake(&world, &config);
        assert_eq!([kind(), kind()], [HandshakeKind::Full, HandshakeKind::Resumed]);
        authority.sign("server", NAMES, 2);
        world.gateway.reload().expect(200);
        // A client that offers its old session is not refused.
        assert_eq!([kind(), kind()], [HandshakeKind::Full, HandshakeKind::Resumed]);
    }
}

#[test]
fn early_data_is_refused() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let mut config = Arc::unwrap_or_clone(authority.trusted());
    config.enable_early_data = true;
    let config = Arc::new(config);
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        // The ticket allows no early data.
        let name = "api.localhost".try_into().unwrap();
        let mut early = rustls::ClientConnection::new(config.clone(), name).unwrap();
        assert!(early.early_data().is_none());
        let mut client = Client::connect(&world.gateway.https()).secured(&config, "api.localhost");
        client.get("/healthz").expect(200);
        assert_eq!(client.tls().handshake_kind(), Some(expected));
    }
}
