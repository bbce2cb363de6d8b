//! One address of a server, with its health and its record of failures.
//!
//! A name may resolve to several addresses, and one of them may fail alone: health checks and
//! ejection apply to each address, never to all addresses of a name together.
//!
//! # Not here
//!
//! Which address is picked (`upstream`), when one is ejected (`ejection`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_common::time::Tick;

use crate::upstream::ejection::{Change, Permission, Record};

/// One address of a server.
pub struct Address {
    /// The address and port.
    pub socket: SocketAddr,
    is_healthy: AtomicBool,
    /// Whether the last attempt to connect failed.
    is_unreachable: AtomicBool,
    /// Consecutive results of health checks that contradict `is_healthy`.
    against: AtomicU32,
    record: Mutex<Record>,
    /// Whether the record differs from a fresh one; read first, without the lock.
    has_failures: AtomicBool,
}

impl Address {
    /// An address without failures.
    #[must_use]
    pub fn new(socket: SocketAddr) -> Self {
        Self {
            socket,
            is_healthy: AtomicBool::new(true),
            is_unreachable: AtomicBool::new(false),
            against: AtomicU32::new(0),
            record: Mutex::default(),
            has_failures: AtomicBool::new(false),
        }
    }

    /// Whether it is healthy by health checks.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Whether the last attempt to connect failed.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Relaxed)
    }

    /// Records whether a connection was established.
    pub(super) fn connected(&self, connected: bool) {
        self.is_unreachable.store(!connected, Ordering::Relaxed);
    }

    /// Records the result of a health check. Returns whether `is_healthy` changed.
    pub fn checked(&self, healthy: bool, health: &crate::settings::upstream::Health) -> bool {
        if healthy {
            self.connected(true);
        }
        if healthy == self.is_healthy() {
            self.against.store(0, Ordering::Relaxed);
            return false;
        }
        let against = self.against.fetch_add(1, Ordering::Relaxed) + 1;
        let needed = if healthy { health.healthy_after } else { health.unhealthy_after };
        if against < needed {
            return false;
        }
        self.against.store(0, Ordering::Relaxed);
        self.is_healthy.store(healthy, Ordering::Relaxed);
        true
    }

    /// The shortest time until health checks can make it healthy again.
    pub(super) fn healthy_in(&self, health: &crate::settings::upstream::Health) -> Duration {
        let against = self.against.load(Ordering::Relaxed);
        health.interval.saturating_mul(health.healthy_after.saturating_sub(against).max(1))
    }

    /// Whether it is ejected.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        self.has_failures() && !matches!(*self.record(), Record::Fine { .. })
    }

    fn has_failures(&self) -> bool {
        self.has_failures.load(Ordering::Relaxed)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, mut kept: MutexGuard<'_, Record>, record: Record) {
        *kept = record;
        self.has_failures.store(record != Record::default(), Ordering::Relaxed);
    }

    /// Whether it may get the next request; records a probe as sent.
    pub(super) fn admits(&self, policy: &crate::settings::upstream::Ejection, now: Tick) -> bool {
        if !self.has_failures() {
            return true;
        }
        let record = self.record();
        match record.permission(policy, now) {
            Permission::Send => true,
            Permission::Probe(probing) => {
                self.keep(record, probing);
                true
            }
            Permission::Ejected => false,
        }
    }

    /// Records a failed request. `may_eject` is false if no other address can take over.
    pub(super) fn failed(
        &self,
        policy: &crate::settings::upstream::Ejection,
        may_eject: bool,
        now: Tick,
    ) -> Option<Change> {
        let record = self.record();
        let (next, change) = record.failed(policy, may_eject, now);
        self.keep(record, next);
        change
    }

    /// Records a success.
    pub(super) fn succeeded(&self) -> Option<Change> {
        if !self.has_failures() {
            return None;
        }
        let record = self.record();
        let (next, change) = record.succeeded();
        self.keep(record, next);
        change
    }
}
