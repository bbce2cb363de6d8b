//! Chooses which server a request goes to, and says when another is tried.
//!
//! The well servers of an upstream take turns. One that does not let us connect has been sent
//! nothing, so another is tried whatever the method.
//!
//! # Invariants
//!
//! 1. Every wait on a server has a deadline.
//! 2. No request waits for a name: names are resolved in the background (`watch`).
//!
//! # Not here
//!
//! Asking servers whether they are well (`watch`), what a failure is answered with (`proxy`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use pingora_core::upstreams::peer::HttpPeer;

use crate::settings;

/// Servers that answer for one another.
pub struct Upstream {
    /// Its name in the settings.
    pub name: String,
    /// As they were read.
    pub settings: settings::Upstream,
    /// In the order of the settings.
    pub servers: Vec<Arc<Server>>,
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
    turn: AtomicUsize,
}

impl Server {
    fn new(name: &str) -> Self {
        let literal: Vec<SocketAddr> = name.parse().into_iter().collect();
        Self {
            name: name.to_owned(),
            addresses: ArcSwap::from_pointee(literal),
            is_well: AtomicBool::new(true),
            against: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether the name has to be resolved.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.name.parse::<SocketAddr>().is_err()
    }

    /// Whether it gets requests.
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
}

impl Upstream {
    /// An upstream of these settings. Servers that `earlier` has too go on as they are.
    #[must_use]
    pub fn new(name: &str, settings: &settings::Upstream, earlier: Option<&Self>) -> Self {
        let known =
            |name: &str| earlier?.servers.iter().find(|server| server.name == name).cloned();
        let server = |name: &str| known(name).unwrap_or_else(|| Arc::new(Server::new(name)));
        Self {
            name: name.to_owned(),
            settings: settings.clone(),
            servers: settings.servers.iter().map(|name| server(&name.value)).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    /// The next server in turn that is well and not among the `tried`, and where it is. When all
    /// have been tried, they are tried again.
    #[must_use]
    pub fn pick(&self, tried: &[SocketAddr]) -> Option<(&Server, SocketAddr)> {
        let from = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = || self.servers.iter().cycle().skip(from % self.servers.len().max(1));
        let well = || {
            let well = in_turn().take(self.servers.len()).filter(|server| server.is_well());
            well.filter_map(|server| server.address().map(|address| (&**server, address)))
        };
        well().find(|(_, address)| !tried.contains(address)).or_else(|| well().next())
    }

    /// What Pingora is told of a server.
    #[must_use]
    pub fn peer(&self, address: SocketAddr) -> Box<HttpPeer> {
        let mut peer = Box::new(HttpPeer::new(address, false, String::new()));
        let options = &mut peer.options;
        options.connection_timeout = Some(self.settings.connect_timeout);
        options.total_connection_timeout = Some(self.settings.connect_timeout);
        options.read_timeout = Some(self.settings.read_timeout);
        options.write_timeout = Some(self.settings.write_timeout);
        options.idle_timeout = Some(self.settings.idle_timeout);
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
            speaks: settings::Speaks::Http1,
            tls: None,
            ejection: settings::Ejection { failures: 0, pause: second, pause_max: second },
            connect_timeout: second,
            read_timeout: second,
            write_timeout: second,
            idle_timeout: second,
            tries: 3,
            health: None,
        };
        Upstream::new("test", &settings, None)
    }

    fn picked(upstream: &Upstream, tried: &[SocketAddr]) -> u16 {
        upstream.pick(tried).map_or(0, |(_, address)| address.port())
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
        assert!(upstream.pick(&[]).is_none());
        upstream.servers[0].addresses.store(Arc::new(vec!["127.0.0.1:80".parse().unwrap()]));
        assert_eq!(picked(&upstream, &[]), 80);
    }

    #[test]
    fn a_reload_keeps_what_is_known_of_a_server() {
        let earlier = upstream(&["127.0.0.1:1"]);
        let _ = earlier.servers[0].checked(false, &HEALTH);
        assert!(earlier.servers[0].checked(false, &HEALTH));
        let later = Upstream::new("test", &earlier.settings, Some(&earlier));
        assert!(later.pick(&[]).is_none());
    }
}
