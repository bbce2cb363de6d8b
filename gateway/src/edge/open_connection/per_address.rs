//! Counts the connections of each address, so that one address cannot use up all connections.
//!
//! # Invariants
//!
//! 1. No address exceeds its maximum of connections; an IPv6 /64 is one address.
//! 2. Memory grows with open connections only: an address without any is removed.
//!
//! # Not here
//!
//! The client's address behind a proxy (`handshake`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::request::client_address::network_of;

/// Open connections of each address.
#[derive(Debug, Default)]
pub struct ConnectionCounts(Mutex<HashMap<IpAddr, u64>>);

/// Counts one connection at its address until dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    counts: Arc<ConnectionCounts>,
    owner: IpAddr,
}

impl ConnectionCounts {
    /// A permit for one more connection of `address`, where it has fewer than `most`.
    pub fn enter(self: &Arc<Self>, address: IpAddr, most: u64) -> Option<ConnectionPermit> {
        self.enter_network(network_of(address), most)
    }

    fn enter_network(self: &Arc<Self>, owner: IpAddr, most: u64) -> Option<ConnectionPermit> {
        let mut counts = self.counts();
        let count = counts.get(&owner).copied().unwrap_or_default();
        if count >= most {
            return None;
        }
        counts.insert(owner, count + 1);
        Some(ConnectionPermit { counts: self.clone(), owner })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// A permit for one more of the same address, where it has fewer than `most`.
    pub(super) fn another(&self, most: u64) -> Option<Self> {
        self.counts.enter_network(self.owner, most)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.counts();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_so_many_connections_and_others_have_theirs() {
        let counts = Arc::new(ConnectionCounts::default());
        let permits: Vec<_> = (0..3).filter_map(|_| counts.enter(ip("192.0.2.1"), 2)).collect();
        assert_eq!(permits.len(), 2);
        assert!(counts.enter(ip("::ffff:192.0.2.1"), 2).is_none(), "the same in another spelling");
        assert!(counts.enter(ip("192.0.2.2"), 2).is_some());
        drop(permits);
        assert!(counts.enter(ip("192.0.2.1"), 2).is_some());
    }

    #[test]
    fn a_64_is_one_address() {
        let counts = Arc::new(ConnectionCounts::default());
        let _permit = counts.enter(ip("2001:db8::1"), 1);
        assert!(counts.enter(ip("2001:db8::ffff:0:0:2"), 1).is_none());
        assert!(counts.enter(ip("2001:db8:0:1::1"), 1).is_some());
    }

    #[test]
    fn an_address_without_connections_uses_no_memory() {
        let counts = Arc::new(ConnectionCounts::default());
        let enter = |nth: u32| counts.enter(std::net::Ipv4Addr::from_bits(nth).into(), 1);
        let permits: Vec<_> = (0..1_000).filter_map(enter).collect();
        assert_eq!(counts.counts().len(), 1_000);
        drop(permits);
        assert!(counts.counts().is_empty());
    }
}
