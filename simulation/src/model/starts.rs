//! Which attempts started lately, for all limits but an endpoint's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weir_common::time::Tick;
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};

/// Longer than the longest window of these limits, and an attempt before it.
const KEPT: Duration = Duration::from_secs(180);

/// The start of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) at: Tick,
    pub(crate) url: usize,
    /// The end of the attempt: its request may have been sent then.
    pub(crate) ended: Option<Tick>,
    pub(crate) delivery: DeliveryId,
    pub(crate) hook: WebhookId,
    pub(crate) ws: Arc<str>,
    pub(crate) host: String,
    /// Whether any process must know of it: it is in flight, or has a record.
    pub(crate) counts: bool,
}

/// The starts of the last minutes, in order.
#[derive(Debug, Default)]
pub(crate) struct Starts(VecDeque<Start>);

impl Starts {
    pub(crate) fn add(&mut self, start: Start) {
        let is_old = |one: &Start| one.ended.is_some_and(|end| start.at.since(end) >= KEPT);
        while self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
        self.0.push_back(start);
    }

    /// Those of the window that ends at `now`.
    pub(crate) fn within(&self, window: Duration, now: Tick) -> impl Iterator<Item = &Start> {
        self.0.iter().filter(move |start| now.since(start.at) < window)
    }

    /// Those that may still count in a limit with this window.
    pub(crate) fn counted(&self, window: Duration, now: Tick) -> impl Iterator<Item = &Start> {
        let counts = move |one: &&Start| one.ended.is_none_or(|end| now.since(end) < window);
        self.0.iter().filter(counts)
    }

    /// Records the end of an attempt.
    pub(crate) fn end(&mut self, delivery: DeliveryId, at: Tick) {
        let flying = |one: &&mut Start| one.delivery == delivery && one.ended.is_none();
        self.0.iter_mut().filter(flying).for_each(|one| one.ended = Some(at));
    }

    /// Records that a later process may not know of some.
    pub(crate) fn forget(&mut self, which: impl Fn(&Start) -> bool) {
        self.0.iter_mut().filter(|start| which(start)).for_each(|start| start.counts = false);
    }

    /// Records that the process has ended, and with it the attempts in flight.
    pub(crate) fn end_all(&mut self) {
        self.0.iter_mut().for_each(|start| start.ended = start.ended.or(Some(start.at)));
    }
}
