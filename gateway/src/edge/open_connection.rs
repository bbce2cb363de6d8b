//! Counts an open connection, and requests in progress on it that cost as much as another.
//!
//! Each request may need a connection to a server, and with it a file descriptor. Of HTTP/1.1 a
//! connection has one in progress; of HTTP/2 each beyond the first counts as a connection.
//!
//! Invariant: connections and such requests together are at most `connections_max`, and those of an
//! address at most `connections_per_address_max`.
//!
//! # Not here
//!
//! Which connections are one address's (`per_address`), which request of a connection waits
//! (`request_permits`).

pub mod per_address;
pub(in crate::edge) mod request_permits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::IntGauge;

use crate::edge::open_connection::per_address::ConnectionPermit;

/// The connections of all listeners, which share one cap.
#[derive(Debug)]
pub struct ConnectionTotal {
    open: AtomicU64,
    most: u64,
}

impl ConnectionTotal {
    /// None are open of at most so many.
    #[must_use]
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { open: AtomicU64::new(0), most })
    }

    /// A permit for one more, where there are fewer than the maximum.
    pub(in crate::edge) fn enter(self: &Arc<Self>) -> Option<TotalPermit> {
        let more = |open| (open < self.most).then(|| open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(TotalPermit(self.clone()))
    }
}

/// Counts one in total until dropped.
#[derive(Debug)]
pub(in crate::edge) struct TotalPermit(Arc<ConnectionTotal>);

impl Drop for TotalPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a connection in total, at its worker and at its address, until dropped.
#[derive(Debug)]
pub struct OpenConnection {
    total: TotalPermit,
    of_worker: Arc<AtomicU64>,
    /// The metric of open connections.
    gauge: IntGauge,
    /// Its permit among those of its address, where that is limited and known.
    of_address: Option<ConnectionPermit>,
}

impl OpenConnection {
    pub(in crate::edge) fn new(
        total: TotalPermit,
        of_address: Option<ConnectionPermit>,
        of_worker: &Arc<AtomicU64>,
        gauge: &IntGauge,
    ) -> Self {
        of_worker.fetch_add(1, Ordering::Relaxed);
        gauge.inc();
        Self { total, of_worker: of_worker.clone(), gauge: gauge.clone(), of_address }
    }

    /// Counts it at the address that its PROXY header has named.
    pub(in crate::edge) fn counted_at(mut self, of_address: Option<ConnectionPermit>) -> Self {
        self.of_address = of_address;
        self
    }

    /// A permit for a request in progress beyond the first, where there are fewer connections than
    /// the maxima.
    fn enter_additional(&self, of_address_max: u64) -> Option<AdditionalPermit> {
        let of_address = match &self.of_address {
            Some(own) => Some(own.another(of_address_max)?),
            None => None,
        };
        Some(AdditionalPermit { _total: self.total.0.enter()?, _of_address: of_address })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.of_worker.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

/// Counts a request as a connection until dropped.
#[derive(Debug)]
struct AdditionalPermit {
    _total: TotalPermit,
    _of_address: Option<ConnectionPermit>,
}

#[cfg(test)]
mod tests {
    use super::per_address::ConnectionCounts;
    use super::*;

    #[test]
    fn connections_and_requests_beyond_their_first_have_one_maximum() {
        let total = ConnectionTotal::new(4);
        let (counts, address) = (Arc::new(ConnectionCounts::default()), [192, 0, 2, 1].into());
        let gauge = IntGauge::new("open", "open").unwrap();
        let open = |of_address| {
            Some(OpenConnection::new(total.enter()?, of_address, &Arc::default(), &gauge))
        };
        let own = open(counts.enter(address, 3)).unwrap();
        let requests: Vec<_> = (0..5).filter_map(|_| own.enter_additional(3)).collect();
        assert_eq!(requests.len(), 2, "three of its address");
        assert!(counts.enter(address, 3).is_none());
        let of_proxy = open(None).unwrap();
        assert!(open(None).is_none() && of_proxy.enter_additional(3).is_none(), "four in total");
        drop(requests);
        assert!(open(None).is_some() && of_proxy.enter_additional(3).is_some());
        drop((own, of_proxy));
        assert_eq!((total.open.load(Ordering::Relaxed), gauge.get()), (0, 0));
    }
}
