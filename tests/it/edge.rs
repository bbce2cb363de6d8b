//! A gateway that faces the internet: how clients connect to it, and what limits each of them.

mod certificate_renewal;
mod certificates;
mod client_certificates;
mod connection_limits;
mod proxy_protocol;
mod slow_clients;
mod tls;
mod tls_scanners;

use std::sync::Arc;

use rustls::{ClientConfig, HandshakeKind};
use weir_tests::authority::Authority;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::world::World;

/// A world with TLS entries of these names and subjects, in this order; `lines` are added to each.
#[track_caller]
fn world_of(
    authority: &Authority,
    entries: &[(&str, &str)],
    lines: &str,
    change: impl FnOnce(Config) -> Config,
) -> World {
    World::with(|config| {
        let add = |config: Config, (name, subjects): &(&str, &str)| {
            config
                .with("[[server.https]]", &format!("{}\n{lines}", authority.entry(name, subjects)))
        };
        change(entries.iter().fold(config, add))
    })
}

/// The subjects of certificates in tests for which the name does not matter.
const NAMES: &str = "DNS:api.localhost,DNS:*.auth.localhost";

/// A connection over TLS.
#[track_caller]
fn secured(world: &World, authority: &Authority) -> Client {
    let client = Client::connect(&world.gateway.https());
    client.secured(&authority.trusted(), "api.localhost")
}

/// The kind of handshake that a client with these settings gets; it keeps its sessions in them.
#[track_caller]
fn handshake(world: &World, config: &Arc<ClientConfig>) -> HandshakeKind {
    let client = Client::connect(&world.gateway.https());
    let mut client = client.secured(config, "api.localhost");
    client.get("/healthz").expect(200);
    client.tls().handshake_kind().expect("the handshake is complete")
}
