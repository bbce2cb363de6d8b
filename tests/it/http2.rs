//! HTTP/2 clients: their requests, the gateway's responses, and the bounds on one connection.

mod bounds;
mod conformance;
mod refusals;
mod requests;
mod small_frames;
mod stopping;
mod tools;

use weir_tests::authority::Authority;
use weir_tests::config::Config;
use weir_tests::http2::{End, Http2};
use weir_tests::wait;
use weir_tests::world::World;

/// A world with a TLS listener.
pub(crate) struct Edge {
    pub(crate) world: World,
    pub(crate) authority: Authority,
    pub(crate) address: String,
}

impl Edge {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    #[track_caller]
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let authority = Authority::of_server();
        let https = authority.entry_of("server");
        let world = World::with(|config| change(config).with("[[server.https]]", &https));
        let address = world.gateway.https();
        Self { world, authority, address }
    }

    /// A new connection.
    #[track_caller]
    pub(crate) fn client(&self) -> Http2 {
        Http2::connect(&self.address, &self.authority)
    }

    /// The value of a metric.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.world.gateway.metric(name)
    }

    /// Waits until no request is in flight.
    #[track_caller]
    pub(crate) fn wait_until_idle(&self) {
        let idle = || self.metric("weir_gateway_requests_in_flight") == 0.0;
        wait::until("no request in flight", || idle().then_some(()));
    }

    /// Waits until no client is connected.
    #[track_caller]
    pub(crate) fn wait_until_empty(&self) {
        let empty = || self.metric("weir_gateway_connections") == 0.0;
        wait::until("no connection", || empty().then_some(()));
        self.wait_until_idle();
    }
}

/// How a stream ended, as a short text.
pub(crate) fn outcome(end: End) -> String {
    match end {
        End::Answer(answer) => answer.status.to_string(),
        End::Reset(code) => format!("reset {code}"),
        End::Gone(Some(code)) => format!("goaway {code}"),
        End::Gone(None) => "gone".to_owned(),
    }
}
