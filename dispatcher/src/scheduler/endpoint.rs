//! One endpoint: its attempts in flight, their limit, and the order of its webhooks. (core)
//!
//! # Invariants
//!
//! 1. Each timeout lowers the limit of attempts in flight, down to one.
//! 2. After a lookup without a reply the endpoint backs off for a second, then twice as long each
//!    time, up to [`BACKOFF_MAX`].

use std::collections::VecDeque;
use std::time::Duration;

use weir_common::time::Tick;

use crate::domain::id::WebhookId;
use crate::scheduler::concurrency::{Occupancy, Parked};
use crate::scheduler::load::Load;
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::starts::Starts;

/// The longest backoff: the cause may be corrected at any time.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// An endpoint with work.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) starts: Starts,
    pub(super) under_way: Load,
    /// The limit of attempts in flight; lower while attempts time out.
    pub(super) limit: usize,
    /// How the last attempt ended, if known.
    pub(super) last: Option<Responsiveness>,
    /// Its webhooks: the one that waited longest for its workspace's turn comes first.
    pub(super) turns: VecDeque<WebhookId>,
    /// Its valid entry in the heap; others are stale.
    pub(super) due: Option<(Tick, u64)>,
    /// The queues in which it waits for slots.
    pub(super) parked: Parked,
    /// The end of its backoff.
    backs_off_until: Tick,
    /// The number of consecutive backoffs.
    backoffs: u8,
}

impl Endpoint {
    /// An endpoint without attempts in flight.
    pub(super) fn new(limit: usize, starts: Starts) -> Self {
        Self { limit, starts, ..Self::default() }
    }

    /// Its part of the totals.
    pub(super) fn occupancy(&self) -> Occupancy {
        (self.last, self.under_way)
    }

    /// Its limit of attempts in flight, if timeouts lowered it and it is reached.
    pub(super) fn used_up(&self) -> Option<usize> {
        let is_reached = self.under_way.attempts >= self.limit;
        (is_reached && self.last == Some(Responsiveness::TimedOut)).then_some(self.limit)
    }

    /// The end of its backoff.
    pub(super) fn backs_off_until(&self) -> Tick {
        self.backs_off_until
    }

    /// Counts the end of an attempt; at most `most` may be in flight.
    pub(super) fn ended(
        &mut self,
        bytes: usize,
        responsiveness: Responsiveness,
        most: usize,
        now: Tick,
    ) {
        self.under_way = self.under_way.minus(bytes);
        match responsiveness {
            Responsiveness::Unresolved => return self.back_off(now),
            Responsiveness::Prompt | Responsiveness::Slow => {
                self.limit = (self.limit * 2).clamp(1, most)
            }
            Responsiveness::TimedOut => self.limit = (self.limit / 2).max(1),
        }
        self.last = Some(responsiveness);
        self.backoffs = 0;
    }

    /// Starts a backoff, unless one is running: attempts that started before it show nothing new.
    fn back_off(&mut self, now: Tick) {
        if now >= self.backs_off_until {
            let wait = Duration::from_secs(1 << self.backoffs.min(6)).min(BACKOFF_MAX);
            self.backs_off_until = now.plus(wait);
            self.backoffs = self.backoffs.saturating_add(1);
        }
    }
}
