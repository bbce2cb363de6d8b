//! Picks the server and address that a request is sent to.
//!
//! The healthy servers of an upstream are picked round-robin. When a connection fails, nothing has
//! been sent, so another server is tried for any method.
//!
//! # Invariants
//!
//! 1. Every wait on a server has a deadline; `edge::connection` times the silence of a tunnel.
//! 2. No request waits for a name lookup: `operations::background` resolves names.
//! 3. No address is tried twice for one request while there is an untried healthy one, nor a second
//!    address of a server while an untried server has one that is not ejected.
//! 4. An address that failed requests is ejected only while another can serve: ejection alone never
//!    causes a refusal.
//! 5. Connections with different credentials are never shared. With TLS the certificate is always
//!    checked against a name.
//!
//! # Not here
//!
//! Health checks (`operations::background`), name lookups (`names`), retries and the response to a
//! failure (`proxy`).

pub mod names;
pub mod single_request;

pub mod address;

pub mod credentials;

pub mod ejection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::tls::CaType;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::CertKey;
use prometheus::IntGaugeVec;
use weir_common::log::limiter::LogLimiter;
use weir_common::time::Tick;

use crate::request::upload;
use crate::settings::upstream::{Speaks, UpstreamSettings};
use crate::telemetry::metrics::Metrics;
use crate::upstream::address::Address;
use crate::upstream::credentials::Credentials;
use crate::upstream::ejection::Change;

/// Requests on one HTTP/2 connection at a time: what servers commonly allow. A server that allows
/// fewer announces it in SETTINGS.
const STREAMS_MAX: u32 = 100;

/// Bytes of one HTTP/2 response that a server may send ahead of its client: 25 MB/s at a round trip
/// of 10 ms.
const RESPONSE_WINDOW: u32 = 256 * 1024;

/// The same of all responses of a connection, twenty times what they can send: clients that do not
/// read theirs delay no other. h2 ends a connection, with all its requests, once what small frames
/// cost beyond their bytes is half of this, by its own count of 256 bytes each: this much allows
/// all responses to wait in frames of 24 bytes.
const CONNECTION_WINDOW: u32 = 20 * STREAMS_MAX * RESPONSE_WINDOW;

/// How often it is logged that an upstream is unreachable.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A set of interchangeable servers.
pub struct Upstream {
    /// Its name in the settings.
    pub name: String,
    /// Its settings.
    pub settings: UpstreamSettings,
    /// In the order of the settings.
    pub servers: Vec<Arc<Server>>,
    ca: Option<Arc<CaType>>,
    client_certificate: Option<Arc<CertKey>>,
    /// Keeps connections with other credentials apart: Pingora's pools compare only address and
    /// name.
    group: u64,
    turn: AtomicUsize,
    unreachable_log: LogLimiter<()>,
}

/// One server: `host:port`, with one address or several.
pub struct Server {
    /// `host:port`, as in the settings.
    pub name: String,
    /// Its current addresses; empty until its name has been resolved.
    addresses: ArcSwap<Vec<Arc<Address>>>,
    turn: AtomicUsize,
}

/// The server and address that a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The index of the server.
    pub server: usize,
    /// The address.
    pub address: SocketAddr,
}

impl Server {
    fn new(name: &str) -> Self {
        let literal = name.parse().into_iter().map(|socket| Arc::new(Address::new(socket)));
        Self {
            name: name.to_owned(),
            addresses: ArcSwap::from_pointee(literal.collect()),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether its name must be resolved.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.name.parse::<SocketAddr>().is_err()
    }

    /// Its addresses, sorted.
    #[must_use]
    pub fn addresses(&self) -> Arc<Vec<Arc<Address>>> {
        self.addresses.load_full()
    }

    /// Sets its addresses, of which there is at least one. Addresses that it had before keep their
    /// state.
    pub fn found_at(&self, mut sockets: Vec<SocketAddr>) {
        sockets.sort();
        sockets.dedup();
        let earlier = self.addresses();
        let known = |socket: &SocketAddr| earlier.iter().find(|a| a.socket == *socket).cloned();
        let address = |socket| known(&socket).unwrap_or_else(|| Arc::new(Address::new(socket)));
        self.addresses.store(Arc::new(sockets.into_iter().map(address).collect()));
    }

    /// How many of its addresses are healthy by health checks.
    #[must_use]
    pub fn healthy(&self) -> usize {
        self.addresses.load().iter().filter(|address| address.is_healthy()).count()
    }

    /// How many of its addresses are ejected.
    #[must_use]
    pub fn ejected(&self) -> usize {
        self.addresses.load().iter().filter(|address| address.is_ejected()).count()
    }

    /// The next of its addresses, round-robin, that `may` accepts.
    fn next(&self, may: &dyn Fn(&Address) -> bool) -> Option<SocketAddr> {
        let addresses = self.addresses.load();
        let from = match addresses.len() {
            0 | 1 => 0,
            _ => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        let nth = |nth: usize| addresses.get(from.wrapping_add(nth) % addresses.len());
        let mut in_turn = (0..addresses.len()).filter_map(nth);
        in_turn.find(|address| may(address)).map(|address| address.socket)
    }

    /// Whether one of its addresses is among `tried`.
    fn is_among(&self, tried: &[SocketAddr]) -> bool {
        if tried.is_empty() {
            return false;
        }
        let addresses = self.addresses.load();
        addresses.iter().any(|address| tried.contains(&address.socket))
    }

    /// The name that its certificate must have.
    fn host(&self) -> &str {
        self.name.rsplit_once(':').map_or(&*self.name, |(host, _)| host)
    }
}

impl Upstream {
    /// An upstream with these settings. Servers that `earlier` also has keep their state.
    #[must_use]
    pub fn new(
        settings: &UpstreamSettings,
        credentials: &Credentials,
        earlier: Option<&Self>,
    ) -> Self {
        let known =
            |name: &str| earlier?.servers.iter().find(|server| server.name == name).cloned();
        let server = |name: &str| known(name).unwrap_or_else(|| Arc::new(Server::new(name)));
        Self {
            name: settings.name.clone(),
            settings: settings.clone(),
            servers: settings.servers.iter().map(|name| server(name)).collect(),
            ca: credentials.ca(),
            client_certificate: credentials.shown(),
            group: credentials.number(&settings.name),
            turn: AtomicUsize::new(0),
            unreachable_log: LogLimiter::new(LOG_EVERY),
        }
    }

    /// The next server, round-robin, and a healthy address of it. An address that was not `tried`
    /// precedes one that was; of those not tried, an ejected address comes last, and an address of
    /// a server that was not tried comes first.
    #[must_use]
    pub fn pick(&self, tried: &[SocketAddr], now: Tick) -> Option<Pick> {
        let from = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        let in_turn = |of_tried: bool| {
            let servers = (0..count).map(move |nth| from.wrapping_add(nth) % count);
            let servers = servers.filter_map(|at| Some((at, self.servers.get(at)?)));
            servers.filter(move |(_, server)| server.is_among(tried) == of_tried)
        };
        let policy = &self.settings.ejection;
        let fresh = |address: &Address| address.is_healthy() && !tried.contains(&address.socket);
        let permitted = |address: &Address| fresh(address) && address.admits(policy, now);
        let again = |address: &Address| address.is_healthy() && !address.is_ejected();
        let first = |of_tried, may: &dyn Fn(&Address) -> bool| {
            in_turn(of_tried)
                .find_map(|(server, at)| at.next(may).map(|address| Pick { server, address }))
        };
        let any = |may: &dyn Fn(&Address) -> bool| {
            first(false, may).or_else(|| first(true, may).filter(|_| !tried.is_empty()))
        };
        any(&permitted)
            .or_else(|| any(&fresh))
            .or_else(|| any(&again))
            .or_else(|| any(&Address::is_healthy))
    }

    /// Records that a request failed at a server. Its address is ejected only if another can take
    /// over.
    pub fn failed(&self, pick: Pick, now: Tick) -> Option<Change> {
        let mut all = self.servers.iter().flat_map(|server| (*server.addresses()).clone());
        let could = |other: &Address| {
            other.socket != pick.address && other.is_healthy() && !other.is_ejected()
        };
        let may_eject = all.any(|other| could(&other));
        self.address(pick)?.failed(&self.settings.ejection, may_eject, now)
    }

    /// Records that a request succeeded at a server.
    pub fn succeeded(&self, pick: Pick) -> Option<Change> {
        self.address(pick)?.succeeded()
    }

    /// Whether the picked address is ejected.
    #[must_use]
    pub fn is_ejected(&self, pick: Pick) -> bool {
        self.address(pick).is_some_and(|address| address.is_ejected())
    }

    /// Whether any address of its servers is healthy by health checks.
    #[must_use]
    pub fn has_healthy(&self) -> bool {
        let is_healthy =
            |server: &Arc<Server>| server.addresses.load().iter().any(|a| a.is_healthy());
        self.servers.iter().any(is_healthy)
    }

    /// Records whether the connection to the picked address was established.
    pub fn connected(&self, pick: Pick, connected: bool) {
        if let Some(address) = self.address(pick) {
            address.connected(connected);
        }
    }

    /// Whether the last connection to each of its addresses failed.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        let all = || self.servers.iter().flat_map(|server| (*server.addresses()).clone());
        all().next().is_some() && all().all(|address| address.is_unreachable())
    }

    /// Whether to log now that the upstream is unreachable: once every [`LOG_EVERY`].
    pub fn should_log(&self, now: Tick) -> bool {
        self.unreachable_log.due((), now).is_some()
    }

    /// The state of the picked address; none if the name no longer resolves to it.
    fn address(&self, pick: Pick) -> Option<Arc<Address>> {
        let addresses = self.servers.get(pick.server)?.addresses.load();
        addresses.iter().find(|address| address.socket == pick.address).cloned()
    }

    /// How long until the first address may be healthy again, when none is.
    #[must_use]
    pub fn back_in(&self) -> Duration {
        let health = self.settings.health.as_ref();
        let all = self.servers.iter().flat_map(|server| (*server.addresses()).clone());
        let unhealthy: Vec<_> = all.filter(|address| !address.is_healthy()).collect();
        let waits =
            health.into_iter().flat_map(|health| unhealthy.iter().map(|a| a.healthy_in(health)));
        waits.min().unwrap_or_default()
    }

    /// Starts the counters of what fails.
    pub fn start_counters(&self, metrics: &Metrics) {
        for kind in ["connect", "answer"] {
            drop(metrics.upstream_failures.with_label_values(&[self.name.as_str(), kind]));
        }
        for server in &self.servers {
            let labels = [&self.name, &server.name];
            drop(metrics.upstream_ejections.with_label_values(&labels));
        }
    }

    /// Sets the gauges of its servers.
    pub fn show(&self, metrics: &Metrics) {
        let set = |gauges: &IntGaugeVec, server: &Server, count: usize| {
            let gauge = gauges.with_label_values(&[&self.name, &server.name]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        for server in &self.servers {
            set(&metrics.upstream_ejected, server, server.ejected());
            if self.settings.health.is_some() {
                set(&metrics.upstream_healthy, server, server.healthy());
            }
        }
    }

    /// How Pingora connects to a server. A request that `switches` protocols is sent over HTTP/1.1,
    /// unless the upstream has `http = "2"`; the client's connection times its silence.
    #[must_use]
    pub fn peer(&self, pick: Pick, switches: bool) -> Box<HttpPeer> {
        let settings = &self.settings;
        let name = match &settings.tls {
            None => String::new(),
            Some(tls) => {
                let host = || self.servers.get(pick.server).map_or("", |server| server.host());
                tls.server_name.as_deref().unwrap_or_else(host).to_owned()
            }
        };
        let mut peer = Box::new(HttpPeer::new(pick.address, settings.tls.is_some(), name));
        peer.client_cert_key = self.client_certificate.clone();
        peer.group_key = self.group;
        let options = &mut peer.options;
        match settings.speaks {
            Speaks::Http1 => options.set_http_version(1, 1),
            Speaks::Either if switches => options.set_http_version(1, 1),
            Speaks::Either => options.set_http_version(2, 1),
            Speaks::Http2 => options.set_http_version(2, 2),
        }
        options.ca = self.ca.clone();
        options.max_h2_streams = STREAMS_MAX as usize;
        options.h2_stream_window_size = Some(RESPONSE_WINDOW);
        options.h2_connection_window_size = Some(CONNECTION_WINDOW);
        options.connection_timeout = Some(settings.connect_timeout);
        options.total_connection_timeout = Some(settings.connect_timeout);
        options.read_timeout =
            Some(upload::deferrable(settings.read_timeout)).filter(|_| !switches);
        options.write_timeout = Some(settings.write_timeout);
        options.idle_timeout = Some(settings.idle_timeout);
        peer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn upstream(servers: &[&str]) -> Upstream {
        let second = Duration::from_secs(1);
        let settings = UpstreamSettings {
            name: "test".to_owned(),
            servers: servers.iter().map(|name| (*name).to_owned()).collect(),
            speaks: Speaks::Http1,
            tls: None,
            ejection: crate::settings::upstream::Ejection {
                failures: 2,
                pause: second,
                pause_max: second,
                gateway_errors: true,
            },
            connect_timeout: second,
            read_timeout: second,
            write_timeout: second,
            idle_timeout: second,
            tunnel_timeout: second,
            tries: 3,
            health: None,
        };
        Upstream::new(&settings, &Credentials::default(), None)
    }

    fn picked(upstream: &Upstream, tried: &[SocketAddr]) -> u16 {
        upstream.pick(tried, Tick(0)).map_or(0, |pick| pick.address.port())
    }

    const HEALTH: crate::settings::upstream::Health = crate::settings::upstream::Health {
        path: String::new(),
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        unhealthy_after: 2,
        healthy_after: 2,
    };

    #[test]
    fn servers_are_picked_round_robin() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
        let turns: Vec<u16> = (0..6).map(|_| picked(&upstream, &[])).collect();
        assert_eq!(turns, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn clients_that_read_nothing_leave_room_for_the_other_responses_of_a_connection() {
        let options = upstream(&["127.0.0.1:1"]).peer(at(1), false).options;
        let [one, all] = [options.h2_stream_window_size, options.h2_connection_window_size];
        let streams = u32::try_from(options.max_h2_streams).unwrap();
        assert!(one.unwrap() * streams <= all.unwrap(), "{one:?} {all:?}");
    }

    #[test]
    fn another_is_tried_before_the_same_again() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let one = "127.0.0.1:1".parse().unwrap();
        let two = "127.0.0.1:2".parse().unwrap();
        assert_eq!(picked(&upstream, &[one]), 2);
        assert_eq!(picked(&upstream, &[one]), 2);
        assert_ne!(picked(&upstream, &[one, two]), 0);
    }

    /// An upstream with one server of this name, at these ports on loopback.
    fn several(name: &str, ports: &[u16]) -> Upstream {
        let upstream = upstream(&[name]);
        upstream.servers[0].found_at(ports.iter().map(|port| socket(*port)).collect());
        upstream
    }

    fn socket(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// The first server at a port on loopback.
    fn at(port: u16) -> Pick {
        Pick { server: 0, address: socket(port) }
    }

    #[test]
    fn of_several_addresses_the_unhealthy_one_gets_nothing_and_the_others_all() {
        let upstream = several("backend:80", &[1, 2, 3]);
        let unhealthy = upstream.address(at(1)).unwrap();
        assert!(!unhealthy.checked(false, &HEALTH) && unhealthy.checked(false, &HEALTH));
        let picked: Vec<u16> = (0..6).map(|_| picked(&upstream, &[])).collect();
        assert!(!picked.contains(&1) && picked.contains(&2) && picked.contains(&3), "{picked:?}");
        assert_eq!(upstream.servers[0].healthy(), 2);
        assert!(upstream.has_healthy());
    }

    #[test]
    fn of_several_addresses_only_the_one_that_fails_requests_is_ejected() {
        let upstream = several("backend:80", &[1, 2, 3]);
        assert!((0..2).any(|_| upstream.failed(at(2), Tick(0)).is_some()));
        let picked: Vec<u16> = (0..6).map(|_| picked(&upstream, &[])).collect();
        assert!(!picked.contains(&2) && picked.contains(&1) && picked.contains(&3), "{picked:?}");
        assert_eq!(upstream.servers[0].ejected(), 1);
        let _ = [1, 1, 3, 3, 3].map(|port| upstream.failed(at(port), Tick(0)));
        assert_eq!(upstream.servers[0].ejected(), 2, "the last address is never ejected");
    }

    #[test]
    fn every_address_of_a_name_is_tried_before_one_is_tried_again() {
        let upstream = several("backend:80", &[1, 2, 3]);
        let _ = [3, 3].map(|port| upstream.failed(at(port), Tick(0)));
        for _ in 0..4 {
            assert_eq!(picked(&upstream, &[socket(1)]), 2, "before one that is ejected");
            assert_eq!(picked(&upstream, &[socket(1), socket(2)]), 3, "which comes then");
            assert_ne!(picked(&upstream, &[1, 2, 3].map(socket)), 3);
        }
    }

    #[test]
    fn an_address_that_stays_keeps_what_is_known_of_it() {
        let upstream = several("backend:80", &[1, 2]);
        let unhealthy = upstream.address(at(1)).unwrap();
        let _ = (unhealthy.checked(false, &HEALTH), unhealthy.checked(false, &HEALTH));
        upstream.servers[0].found_at(vec![socket(3), socket(1), socket(3)]);
        assert_eq!([(); 4].map(|()| picked(&upstream, &[])), [3; 4]);
        assert_eq!(upstream.failed(at(2), Tick(0)), None, "gone, and no server's failure");
    }

    #[test]
    fn an_unhealthy_server_gets_nothing_until_it_is_healthy() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let first = &upstream.address(at(1)).unwrap();
        assert!(!first.checked(false, &HEALTH));
        assert!(!first.checked(true, &HEALTH), "a good answer in between starts the count anew");
        assert!(!first.checked(false, &HEALTH));
        assert!(first.checked(false, &HEALTH));
        assert_eq!([picked(&upstream, &[]), picked(&upstream, &[])], [2, 2]);
        assert!(!first.checked(true, &HEALTH));
        assert!(first.checked(true, &HEALTH));
        assert_eq!(picked(&upstream, &[]) + picked(&upstream, &[]), 3);
    }

    #[test]
    fn an_upstream_is_unreachable_while_every_address_failed_its_last_connection() {
        let upstream = several("backend:80", &[1, 2]);
        upstream.connected(at(1), false);
        assert!(!upstream.is_unreachable(), "the other was not tried");
        upstream.connected(at(2), false);
        assert!(upstream.is_unreachable());
        upstream.connected(at(1), true);
        assert!(!upstream.is_unreachable());
        upstream.connected(at(1), false);
        let _ = upstream.address(at(1)).unwrap().checked(true, &HEALTH);
        assert!(!upstream.is_unreachable(), "a health check reached it");
        assert!(!self::upstream(&["backend:80"]).is_unreachable(), "it is nowhere yet");
    }

    #[test]
    fn an_unreachable_upstream_is_logged_once_a_minute() {
        let upstream = upstream(&["127.0.0.1:1"]);
        let logged = [0, 1, 59, 60, 61, 120]
            .map(|second| upstream.should_log(Tick(0).plus(Duration::from_secs(second))));
        assert_eq!(logged, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_name_that_is_not_resolved_is_nowhere() {
        let upstream = upstream(&["backend:80"]);
        assert_eq!(picked(&upstream, &[]), 0);
        assert!(!upstream.has_healthy());
        upstream.servers[0].found_at(vec![socket(80)]);
        assert_eq!(picked(&upstream, &[]), 80);
    }

    #[test]
    fn a_reload_keeps_what_is_known_of_a_server() {
        let earlier = upstream(&["127.0.0.1:1"]);
        let unhealthy = earlier.address(at(1)).unwrap();
        assert!(!unhealthy.checked(false, &HEALTH) && unhealthy.checked(false, &HEALTH));
        let none = Credentials::default();
        let later = Upstream::new(&earlier.settings, &none, Some(&earlier));
        assert_eq!(picked(&later, &[]), 0);
    }

    #[test]
    fn a_server_that_fails_requests_is_ejected_and_returns() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let now = Tick(0);
        assert_eq!(upstream.failed(at(1), now), None);
        assert!(matches!(upstream.failed(at(1), now), Some(Change::Ejected(_))));
        assert_eq!((0..4).map(|_| picked(&upstream, &[])).collect::<Vec<_>>(), [2; 4]);
        let later = now.plus(Duration::from_secs(1));
        let mut ports: Vec<u16> =
            (0..4).filter_map(|_| upstream.pick(&[], later)).map(|p| p.address.port()).collect();
        ports.sort();
        assert_eq!(ports, [1, 2, 2, 2], "one request decides");
        assert_eq!(upstream.succeeded(at(1)), Some(Change::Returned));
        assert_eq!(picked(&upstream, &[]) + picked(&upstream, &[]), 3);
    }

    #[test]
    fn the_last_server_is_used_however_it_fails() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let two = Pick { server: 1, ..at(2) };
        for _ in 0..9 {
            let _ = (upstream.failed(at(1), Tick(0)), upstream.failed(two, Tick(0)));
        }
        assert_eq!(upstream.servers.iter().map(|server| server.ejected()).sum::<usize>(), 1);
        let lone = self::upstream(&["127.0.0.1:1"]);
        assert!((0..9).all(|_| lone.failed(at(1), Tick(0)).is_none()));
        assert_eq!(picked(&lone, &[]), 1);
    }

    #[test]
    fn an_ejected_server_is_the_last_resort_when_the_others_are_unhealthy() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let _ = [1, 1].map(|port| upstream.failed(at(port), Tick(0)));
        let two = upstream.address(Pick { server: 1, ..at(2) }).unwrap();
        assert!(!two.checked(false, &HEALTH) && two.checked(false, &HEALTH));
        assert_eq!(picked(&upstream, &[]), 1);
    }

    #[test]
    fn an_ejected_server_is_tried_before_one_that_was_tried_already() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let _ = [1, 1].map(|port| upstream.failed(at(port), Tick(0)));
        let two = "127.0.0.1:2".parse().unwrap();
        assert_eq!([(); 4].map(|()| picked(&upstream, &[two])), [1; 4]);
    }

    #[test]
    fn another_server_is_tried_before_another_address_of_the_same() {
        let upstream = upstream(&["backend:80", "127.0.0.1:2"]);
        let addresses = ["127.0.0.1:80", "127.0.0.2:80"].map(|a| a.parse().unwrap());
        upstream.servers[0].found_at(addresses.to_vec());
        for _ in 0..4 {
            assert_eq!(picked(&upstream, &addresses[..1]), 2);
        }
    }

    #[test]
    fn a_refusal_reports_when_the_first_server_may_be_back() {
        let mut upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let health =
            crate::settings::upstream::Health { interval: Duration::from_secs(5), ..HEALTH };
        upstream.settings.health = Some(health.clone());
        let [one, two] = [at(1), Pick { server: 1, ..at(2) }].map(|p| upstream.address(p).unwrap());
        for address in [&one, &two] {
            let _ = (address.checked(false, &health), address.checked(false, &health));
        }
        assert_eq!(upstream.back_in(), Duration::from_secs(10), "two good answers");
        let _ = two.checked(true, &health);
        assert_eq!(upstream.back_in(), Duration::from_secs(5), "one more");
    }
}
