//! Which attempts started lately, for all limits but an endpoint's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_common::time::Tick;
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};

/// As long as the longest window of these limits.
const KEPT: Duration = Duration::from_secs(60);

/// The start of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) at: Tick,
    pub(crate) delivery: DeliveryId,
    pub(crate) hook: WebhookId,
    pub(crate) ws: Arc<str>,
    pub(crate) host: String,
    /// Whether any process must know of it: it is in flight, or has a record.
    pub(crate) counts: bool,
}

/// The starts of the last minute, in order.
#[derive(Debug, Default)]
pub(crate) struct Starts(VecDeque<Start>);

impl Starts {
    pub(crate) fn add(&mut self, start: Start) {
        while self.0.front().is_some_and(|first| start.at.since(first.at) >= KEPT) {
            self.0.pop_front();
        }
        self.0.push_back(start);
    }

    /// Those of the window that ends at `now`.
    pub(crate) fn within(&self, window: Duration, now: Tick) -> impl Iterator<Item = &Start> {
        self.0.iter().filter(move |start| now.since(start.at) < window)
    }

    /// Records that a later process may not know of some.
    pub(crate) fn forget(&mut self, which: impl Fn(&Start) -> bool) {
        self.0.iter_mut().filter(|start| which(start)).for_each(|start| start.counts = false);
    }
}
