//! One endpoint: what is under way on it, how much may be, and whose turn is next.
//!
//! # Invariants
//!
//! 1. A receiver that lets attempts time out has fewer and fewer under way, down to one.
//! 2. One whose host's name finds no answer is left alone for a second, then twice as long each
//!    time, up to [`BACKOFF_MAX`].

use std::collections::VecDeque;
use std::time::Duration;

use weir_common::limit::rolling::Log;
use weir_common::time::Tick;

use crate::domain::id::WebhookId;
use crate::scheduler::concurrency::{Occupancy, Parked};
use crate::scheduler::load::Load;
use crate::scheduler::responsiveness::Responsiveness;

/// An endpoint is left alone no longer than this: what was out of order may be mended at any time.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// What is known of an endpoint that has work.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    pub(super) starts: Log,
    pub(super) under_way: Load,
    /// Attempts that may be under way: all, or fewer while the receiver lets them time out.
    pub(super) limit: usize,
    /// How the last attempt ended, as far as that is known.
    pub(super) last: Option<Responsiveness>,
    /// The webhooks on it: the one that has waited longest for its workspace's turn comes first.
    pub(super) turns: VecDeque<WebhookId>,
    /// Its place in the heap: others there are out of date.
    pub(super) due: Option<(Tick, u64)>,
    /// Where it waits for slots to be free again that are for others now.
    pub(super) parked: Parked,
    /// Until then it is left alone.
    backs_off_until: Tick,
    /// So often it has been, one time after another.
    backoffs: u8,
}

impl Endpoint {
    /// One with nothing under way.
    pub(super) fn new(limit: usize, starts: Log) -> Self {
        Self { limit, starts, ..Self::default() }
    }

    /// What it counts for among all.
    pub(super) fn occupancy(&self) -> Occupancy {
        (self.last, self.under_way)
    }

    /// Until when it is left alone.
    pub(super) fn backs_off_until(&self) -> Tick {
        self.backs_off_until
    }

    /// Takes the end of an attempt into account, where no more than `most` may be under way.
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

    /// Leaves it alone for a while. What had started before tells nothing new.
    fn back_off(&mut self, now: Tick) {
        if now >= self.backs_off_until {
            let wait = Duration::from_secs(1 << self.backoffs.min(6)).min(BACKOFF_MAX);
            self.backs_off_until = now.plus(wait);
            self.backoffs = self.backoffs.saturating_add(1);
        }
    }
}
