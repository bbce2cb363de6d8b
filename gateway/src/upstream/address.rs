//! One address of a server, and how it fares.
//!
//! A name may lead to several addresses, and one of them may fail alone: health checks and
//! ejection are about an address, never about all that a name leads to.
//!
//! # Not here
//!
//! Which address is taken (`upstream`), when one is ejected (`ejection`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_common::time::Tick;

use crate::upstream::ejection::{Change, Permission, Record};

/// One address of a server.
pub struct Address {
    /// Where it is.
    pub socket: SocketAddr,
    is_healthy: AtomicBool,
    /// Whether the last connection that was tried was not made.
    is_unreachable: AtomicBool,
    /// Answers in a row that were not as `is_well` has it.
    against: AtomicU32,
    record: Mutex<Record>,
    /// Whether the record is other than a fresh one: what is asked first, without the lock.
    is_unhealthy: AtomicBool,
}

impl Address {
    /// An address of which nothing bad is known.
    #[must_use]
    pub fn new(socket: SocketAddr) -> Self {
        Self {
            socket,
            is_healthy: AtomicBool::new(true),
            is_unreachable: AtomicBool::new(false),
            against: AtomicU32::new(0),
            record: Mutex::default(),
            is_unhealthy: AtomicBool::new(false),
        }
    }

    /// Whether health checks let it have requests.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Whether the last connection that was tried was not made.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Relaxed)
    }

    /// Records whether a connection was made.
    pub(super) fn connected(&self, connected: bool) {
        self.is_unreachable.store(!connected, Ordering::Relaxed);
    }

    /// Records the result of a health check. True where `is_healthy` changed.
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

    /// How long at least until health checks find it healthy, should it be so now.
    pub(super) fn healthy_in(&self, health: &crate::settings::upstream::Health) -> Duration {
        let against = self.against.load(Ordering::Relaxed);
        health.interval.saturating_mul(health.healthy_after.saturating_sub(against).max(1))
    }

    /// Whether it is ejected, for having failed requests.
    #[must_use]
    pub fn is_ejected(&self) -> bool {
        self.is_unhealthy() && !matches!(*self.record(), Record::Fine { .. })
    }

    fn is_unhealthy(&self) -> bool {
        self.is_unhealthy.load(Ordering::Relaxed)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, mut kept: MutexGuard<'_, Record>, record: Record) {
        *kept = record;
        self.is_unhealthy.store(record != Record::default(), Ordering::Relaxed);
    }

    /// Whether it may get the next request; records a probe as sent.
    pub(super) fn admits(&self, policy: &crate::settings::upstream::Ejection, now: Tick) -> bool {
        if !self.is_unhealthy() {
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

    /// Takes note that it failed a request. `may_eject` is false where no other could take over.
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
        if !self.is_unhealthy() {
            return None;
        }
        let record = self.record();
        let (next, change) = record.succeeded();
        self.keep(record, next);
        change
    }
}
