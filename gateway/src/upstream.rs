//! Chooses which server a request goes to, and says when another is tried.
//!
//! The well servers of an upstream take turns. One that does not let us connect has been sent
//! nothing, so another is tried whatever the method.
//!
//! # Invariants
//!
//! 1. Every wait on a server has a deadline; silence in a tunnel has its own (`wire`).
//! 2. No request waits for a name: names are resolved in the background (`watch`).
//! 3. No server is tried twice for one request while there is another that was not.
//! 4. A server that failed requests rests only while another is there: this alone never turns a
//!    request away.
//! 5. Connections made with other credentials are never shared, and a certificate is always
//!    checked: where TLS is spoken there is a name to check it against.
//!
//! # Not here
//!
//! Asking servers whether they are well (`watch`), what a failure is answered with (`proxy`).

pub mod credentials;

// core
pub mod passive;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::tls::CaType;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::CertKey;
use weir_common::time::Tick;

use self::credentials::Credentials;
use self::passive::{Change, Leave, Record};
use crate::metrics::Metrics;
use crate::settings::{self, Speaks};
use crate::upload;

/// Requests on one HTTP/2 connection at a time: what servers commonly allow. One that allows
/// fewer says so.
const STREAMS_MAX: usize = 100;

/// Servers that answer for one another.
pub struct Upstream {
    /// Its name in the settings.
    pub name: String,
    /// As they were read.
    pub settings: settings::Upstream,
    /// In the order of the settings.
    pub servers: Vec<Arc<Server>>,
    ca: Option<Arc<CaType>>,
    shown: Option<Arc<CertKey>>,
    /// Keeps connections apart that were made with other credentials: Pingora's pools go by
    /// address and name alone.
    group: u64,
    turn: AtomicUsize,
}

/// One server: `host:port`.
pub struct Server {
    /// As the settings have it.
    pub name: String,
    /// Where it is now; nothing while its name has not been resolved.
    pub addresses: ArcSwap<Vec<SocketAddr>>,
    is_well: AtomicBool,
    /// Answers in a row that were not as `is_well` has it.
    against: AtomicU32,
    record: Mutex<Record>,
    /// Whether the record is other than a fresh one: what is asked first, without the lock.
    is_troubled: AtomicBool,
    turn: AtomicUsize,
}

/// What a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which server.
    pub server: usize,
    /// Where it is.
    pub address: SocketAddr,
}

impl Server {
    fn new(name: &str) -> Self {
        let literal: Vec<SocketAddr> = name.parse().into_iter().collect();
        Self {
            name: name.to_owned(),
            addresses: ArcSwap::from_pointee(literal),
            is_well: AtomicBool::new(true),
            against: AtomicU32::new(0),
            record: Mutex::default(),
            is_troubled: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether the name has to be resolved.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.name.parse::<SocketAddr>().is_err()
    }

    /// Whether health checks let it have requests.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.is_well.load(Ordering::Relaxed)
    }

    /// Takes note of an answer to a health check. True where it changed whether requests come.
    pub fn checked(&self, well: bool, health: &settings::Health) -> bool {
        if well == self.is_well() {
            self.against.store(0, Ordering::Relaxed);
            return false;
        }
        let against = self.against.fetch_add(1, Ordering::Relaxed) + 1;
        let needed = if well { health.healthy_after } else { health.unhealthy_after };
        if against < needed {
            return false;
        }
        self.against.store(0, Ordering::Relaxed);
        self.is_well.store(well, Ordering::Relaxed);
        true
    }

    /// How long it takes at least until health checks find it well, should it be so now.
    fn well_in(&self, health: &settings::Health) -> Duration {
        let against = self.against.load(Ordering::Relaxed);
        health.interval.saturating_mul(health.healthy_after.saturating_sub(against).max(1))
    }

    /// Whether it rests, for having failed requests.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.is_troubled() && !matches!(*self.record(), Record::Fine { .. })
    }

    fn is_troubled(&self) -> bool {
        self.is_troubled.load(Ordering::Relaxed)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, mut kept: MutexGuard<'_, Record>, record: Record) {
        *kept = record;
        self.is_troubled.store(record != Record::default(), Ordering::Relaxed);
    }

    /// Whether it may be sent the next request; takes note where that is the one that decides.
    fn lets(&self, policy: &settings::Ejection, now: Tick) -> bool {
        if !self.is_troubled() {
            return true;
        }
        let record = self.record();
        match record.ask(policy, now) {
            Leave::Any => true,
            Leave::Probe(probing) => {
                self.keep(record, probing);
                true
            }
            Leave::Rest => false,
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        let addresses = self.addresses.load();
        match addresses.as_slice() {
            [] => None,
            [only] => Some(*only),
            several => {
                several.get(self.turn.fetch_add(1, Ordering::Relaxed) % several.len()).copied()
            }
        }
    }

    /// Whether one of its addresses is among these.
    fn is_among(&self, tried: &[SocketAddr]) -> bool {
        !tried.is_empty() && self.addresses.load().iter().any(|address| tried.contains(address))
    }

    /// The name that its certificate must have.
    fn host(&self) -> &str {
        self.name.rsplit_once(':').map_or(&*self.name, |(host, _)| host)
    }
}

impl Upstream {
    /// An upstream of these settings. Servers that `earlier` has too go on as they are.
    #[must_use]
    pub fn new(
        name: &str,
        settings: &settings::Upstream,
        credentials: &Credentials,
        earlier: Option<&Self>,
    ) -> Self {
        let known =
            |name: &str| earlier?.servers.iter().find(|server| server.name == name).cloned();
        let server = |name: &str| known(name).unwrap_or_else(|| Arc::new(Server::new(name)));
        Self {
            name: name.to_owned(),
            settings: settings.clone(),
            servers: settings.servers.iter().map(|name| server(&name.value)).collect(),
            ca: credentials.ca(),
            shown: credentials.shown(),
            group: credentials.number(name),
            turn: AtomicUsize::new(0),
        }
    }

    /// The next server in turn, and where it is. Of those that are well, one that was not
    /// `tried` comes before one that was; among those, one that rests is the last resort.
    #[must_use]
    pub fn pick(&self, tried: &[SocketAddr], now: Tick) -> Option<Pick> {
        let from = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len().max(1);
        let well = || {
            let in_turn = (0..self.servers.len()).map(move |nth| (from.wrapping_add(nth)) % count);
            let all = in_turn.filter_map(|at| Some((at, self.servers.get(at)?)));
            all.filter(|(_, server)| server.is_well())
        };
        let found = |(server, at): (usize, &Arc<Server>)| {
            at.address().map(|address| Pick { server, address })
        };
        let policy = &self.settings.ejection;
        let fresh = || well().filter(|(_, server)| !server.is_among(tried));
        let awake = |(_, server): &(usize, &Arc<Server>)| {
            // A server without an address is not asked: it could not make use of its probe.
            !server.addresses.load().is_empty() && server.lets(policy, now)
        };
        let first = || fresh().find(awake).and_then(found);
        let last = || fresh().find_map(found);
        let again = || well().filter(|one| !one.1.rests()).find_map(found);
        first().or_else(last).or_else(again).or_else(|| well().find_map(found))
    }

    /// Takes note that a server failed a request. It rests only where another could take over.
    pub fn failed(&self, server: usize, now: Tick) -> Option<Change> {
        let others = self.servers.iter().enumerate().filter(|(at, _)| *at != server);
        let could = |other: &Server| {
            other.is_well() && !other.rests() && !other.addresses.load().is_empty()
        };
        let may_rest = others.into_iter().any(|(_, other)| could(other));
        let server = self.servers.get(server)?;
        let record = server.record();
        let (next, change) = record.failed(&self.settings.ejection, may_rest, now);
        server.keep(record, next);
        change
    }

    /// Takes note that a server did what it was asked.
    pub fn went_well(&self, server: usize) -> Option<Change> {
        let server = self.servers.get(server).filter(|server| server.is_troubled())?;
        let record = server.record();
        let (next, change) = record.went_well();
        server.keep(record, next);
        change
    }

    /// In how long the first server may be there again, when none is.
    #[must_use]
    pub fn back_in(&self) -> Duration {
        let health = self.settings.health.as_ref();
        let ill = self.servers.iter().filter(|server| !server.is_well());
        let waits = health.into_iter().flat_map(|health| ill.clone().map(|s| s.well_in(health)));
        waits.min().unwrap_or_default()
    }

    /// Writes down which servers rest.
    pub fn show(&self, metrics: &Metrics) {
        for server in &self.servers {
            let gauge = metrics.upstream_resting.with_label_values(&[&self.name, &server.name]);
            gauge.set(i64::from(server.rests()));
        }
    }

    /// What Pingora is told of a server. One that `switches` protocols is spoken to in HTTP/1.1,
    /// and its silence is timed by the client's connection.
    #[must_use]
    pub fn peer(&self, pick: Pick, switches: bool) -> Box<HttpPeer> {
        let settings = &self.settings;
        let name = match &settings.tls {
            None => String::new(),
            Some(tls) => {
                let host = || self.servers.get(pick.server).map_or("", |server| server.host());
                tls.server_name.as_ref().map_or_else(host, |name| &*name.value).to_owned()
            }
        };
        let mut peer = Box::new(HttpPeer::new(pick.address, settings.tls.is_some(), name));
        peer.client_cert_key = self.shown.clone();
        peer.group_key = self.group;
        let options = &mut peer.options;
        match settings.speaks {
            Speaks::Http1 => options.set_http_version(1, 1),
            Speaks::Either if switches => options.set_http_version(1, 1),
            Speaks::Either => options.set_http_version(2, 1),
            Speaks::Http2 => options.set_http_version(2, 2),
        }
        options.ca = self.ca.clone();
        options.max_h2_streams = STREAMS_MAX;
        options.connection_timeout = Some(settings.connect_timeout);
        options.total_connection_timeout = Some(settings.connect_timeout);
        options.read_timeout = Some(upload::asking(settings.read_timeout)).filter(|_| !switches);
        options.write_timeout = Some(settings.write_timeout);
        options.idle_timeout = Some(settings.idle_timeout);
        peer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::reader::At;

    use super::*;

    fn upstream(servers: &[&str]) -> Upstream {
        let second = Duration::from_secs(1);
        let servers = servers.iter().map(|name| At { value: (*name).to_owned(), at: 0 }).collect();
        let settings = settings::Upstream {
            servers,
            speaks: Speaks::Http1,
            tls: None,
            ejection: settings::Ejection {
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
        Upstream::new("test", &settings, &Credentials::default(), None)
    }

    fn picked(upstream: &Upstream, tried: &[SocketAddr]) -> u16 {
        upstream.pick(tried, Tick(0)).map_or(0, |pick| pick.address.port())
    }

    const HEALTH: settings::Health = settings::Health {
        path: String::new(),
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        unhealthy_after: 2,
        healthy_after: 2,
    };

    #[test]
    fn servers_take_turns() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
        let turns: Vec<u16> = (0..6).map(|_| picked(&upstream, &[])).collect();
        assert_eq!(turns, [1, 2, 3, 1, 2, 3]);
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

    #[test]
    fn a_server_that_is_not_well_gets_nothing_until_it_is() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let first = &upstream.servers[0];
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
    fn a_name_that_is_not_resolved_is_nowhere() {
        let upstream = upstream(&["backend:80"]);
        assert_eq!(picked(&upstream, &[]), 0);
        upstream.servers[0].addresses.store(Arc::new(vec!["127.0.0.1:80".parse().unwrap()]));
        assert_eq!(picked(&upstream, &[]), 80);
    }

    #[test]
    fn a_reload_keeps_what_is_known_of_a_server() {
        let earlier = upstream(&["127.0.0.1:1"]);
        let _ = earlier.servers[0].checked(false, &HEALTH);
        assert!(earlier.servers[0].checked(false, &HEALTH));
        let none = Credentials::default();
        let later = Upstream::new("test", &earlier.settings, &none, Some(&earlier));
        assert_eq!(picked(&later, &[]), 0);
    }

    #[test]
    fn a_server_that_fails_requests_rests_and_returns() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let now = Tick(0);
        assert_eq!(upstream.failed(0, now), None);
        assert!(matches!(upstream.failed(0, now), Some(Change::Rested(_))));
        assert_eq!((0..4).map(|_| picked(&upstream, &[])).collect::<Vec<_>>(), [2; 4]);
        let later = now.plus(Duration::from_secs(1));
        let mut ports: Vec<u16> =
            (0..4).filter_map(|_| upstream.pick(&[], later)).map(|p| p.address.port()).collect();
        ports.sort();
        assert_eq!(ports, [1, 2, 2, 2], "one request decides");
        assert_eq!(upstream.went_well(0), Some(Change::Returned));
        assert_eq!(picked(&upstream, &[]) + picked(&upstream, &[]), 3);
    }

    #[test]
    fn the_last_server_goes_on_however_it_fails() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        for _ in 0..9 {
            let _ = (upstream.failed(0, Tick(0)), upstream.failed(1, Tick(0)));
        }
        assert_eq!(upstream.servers.iter().filter(|server| server.rests()).count(), 1);
        let lone = self::upstream(&["127.0.0.1:1"]);
        assert!((0..9).all(|_| lone.failed(0, Tick(0)).is_none()));
        assert_eq!(picked(&lone, &[]), 1);
    }

    #[test]
    fn one_that_rests_is_the_last_resort_when_health_checks_take_the_others() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let _ = (upstream.failed(0, Tick(0)), upstream.failed(0, Tick(0)));
        let _ = upstream.servers[1].checked(false, &HEALTH);
        assert!(upstream.servers[1].checked(false, &HEALTH));
        assert_eq!(picked(&upstream, &[]), 1);
    }

    #[test]
    fn one_that_rests_is_tried_before_one_that_was_tried_already() {
        let upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let _ = (upstream.failed(0, Tick(0)), upstream.failed(0, Tick(0)));
        let two = "127.0.0.1:2".parse().unwrap();
        assert_eq!([(); 4].map(|()| picked(&upstream, &[two])), [1; 4]);
    }

    #[test]
    fn another_address_of_a_server_that_was_tried_comes_after_another_server() {
        let upstream = upstream(&["backend:80", "127.0.0.1:2"]);
        let addresses = ["127.0.0.1:80", "127.0.0.2:80"].map(|a| a.parse().unwrap());
        upstream.servers[0].addresses.store(Arc::new(addresses.to_vec()));
        for _ in 0..4 {
            assert_eq!(picked(&upstream, &addresses[..1]), 2);
        }
    }

    #[test]
    fn who_is_turned_away_is_told_when_the_first_server_may_be_back() {
        let mut upstream = upstream(&["127.0.0.1:1", "127.0.0.1:2"]);
        let health = settings::Health { interval: Duration::from_secs(5), ..HEALTH };
        upstream.settings.health = Some(health.clone());
        for server in &upstream.servers {
            let _ = (server.checked(false, &health), server.checked(false, &health));
        }
        assert_eq!(upstream.back_in(), Duration::from_secs(10), "two good answers");
        let _ = upstream.servers[1].checked(true, &health);
        assert_eq!(upstream.back_in(), Duration::from_secs(5), "one more");
    }
}
