//! What webhooks with deliveries wait for, and which have the most: for operators. (core)
//!
//! Invariant: a survey takes a few milliseconds at most, however many webhooks have work.
//!
//! Not here: deliveries of a webhook beyond those in memory, which the store counts.

use std::sync::Arc;

use weir_common::time::Tick;

use crate::domain::id::WebhookId;
use crate::scheduler::Scheduler;
use crate::scheduler::backlog::{Backlog, Readiness};
use crate::scheduler::webhooks::Flow;

/// Webhooks of which the reason is determined, about a microsecond each; the others are taken to
/// wait for the same reasons.
const EXAMINED_MAX: usize = 5_000;

/// The longest queues of a survey: twice as many as a screen shows, because their order is not
/// exact.
const LONGEST: usize = 20;

/// Of so many queues the longest are chosen at a time.
const KEPT_MAX: usize = 512;

/// What the next delivery of a webhook waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The end of attempts in flight.
    InFlight,
    /// Its turn, or to be read: a moment.
    Turn,
    /// A free slot.
    Slot,
    /// A rate limit.
    Pace,
    /// The time of its next attempt, or of a lookup.
    Later,
    /// Its webhook, which is paused or disabled.
    Webhook,
}

impl WaitsFor {
    /// All of them, in the order of charts.
    pub const ALL: [Self; 6] =
        [Self::InFlight, Self::Turn, Self::Slot, Self::Pace, Self::Later, Self::Webhook];

    /// Its name for operators.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in flight",
            Self::Turn => "due now",
            Self::Slot => "free slot",
            Self::Pace => "rate limit",
            Self::Later => "next attempt",
            Self::Webhook => "paused, disabled",
        }
    }
}

/// The queue of one webhook.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "plain data: the names of fields say what they are")]
pub struct QueueReport {
    pub webhook: WebhookId,
    pub workspace: Arc<str>,
    pub waits_for: WaitsFor,
}

/// What waits, and for what.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Webhooks with deliveries, by what they wait for, in the order of [`WaitsFor::ALL`].
    pub waiting: [usize; WaitsFor::ALL.len()],
    /// The webhooks that probably have the most deliveries.
    pub longest: Vec<QueueReport>,
}

impl Scheduler {
    /// What waits, and for what.
    #[must_use]
    pub fn survey(&self, now: Tick) -> Survey {
        let mut survey = Survey::default();
        let mut examined = 0;
        for (webhook, backlog) in self.backlogs.iter().take(EXAMINED_MAX) {
            examined += 1;
            if let Some(reason) = self.waits_for(*webhook, backlog, now)
                && let Some(count) = survey.waiting.get_mut(reason as usize)
            {
                *count += 1;
            }
        }
        let all = self.backlogs.len();
        for count in survey.waiting.iter_mut().filter(|_| examined < all) {
            *count = *count * all / examined.max(1);
        }
        survey.longest = self.longest(now);
        survey
    }

    /// Those with deliveries that are not in memory come first, of these the ones whose first
    /// delivery is due for longest; then those with most in memory.
    fn longest(&self, now: Tick) -> Vec<QueueReport> {
        let order = |backlog: &Backlog| {
            let first = backlog.cached.iter().next().map_or(backlog.expected, |first| first.at);
            let waits = if backlog.complete { 0 } else { u64::MAX - first.0 };
            (!backlog.complete, waits, backlog.cached())
        };
        let has_some = |backlog: &Backlog| !backlog.complete || backlog.cached() > 0;
        let mut all = Vec::with_capacity(KEPT_MAX);
        let waiting = self.backlogs.iter().filter(|(_, own)| !own.gone && has_some(own));
        for (webhook, backlog) in waiting {
            all.push((order(backlog), *webhook, &**backlog));
            if all.len() == KEPT_MAX {
                all.select_nth_unstable_by(LONGEST, |one, other| other.0.cmp(&one.0));
                all.truncate(LONGEST);
            }
        }
        all.sort_by_key(|(order, webhook, _)| (std::cmp::Reverse(*order), *webhook));
        all.truncate(LONGEST);
        let report = |(_, webhook, backlog): (_, WebhookId, &Backlog)| {
            let waits_for = self.waits_for(webhook, backlog, now).unwrap_or(WaitsFor::Turn);
            QueueReport { webhook, workspace: backlog.workspace.clone(), waits_for }
        };
        all.into_iter().map(report).collect()
    }

    /// What a webhook waits for; `None` if it has nothing to send.
    fn waits_for(&self, webhook: WebhookId, backlog: &Backlog, now: Tick) -> Option<WaitsFor> {
        let flow = self.webhooks.flow(webhook);
        if flow == Flow::Stopped {
            let has_some = !backlog.complete || backlog.cached() > 0;
            return has_some.then_some(WaitsFor::Webhook);
        }
        match self.readiness(backlog, webhook, now) {
            Readiness::Idle if !backlog.in_flight.is_empty() => Some(WaitsFor::InFlight),
            Readiness::Idle => backlog.is_being_read(flow).then_some(WaitsFor::Turn),
            Readiness::NotBefore(_) if self.paced_until(webhook, now) > now => Some(WaitsFor::Pace),
            Readiness::NotBefore(_) => Some(WaitsFor::Later),
            Readiness::Ready | Readiness::NeedsFetch | Readiness::NeedsProbe(_) => {
                Some(self.start_waits_for(backlog, now))
            }
        }
    }

    /// What the start of a due delivery waits for.
    fn start_waits_for(&self, backlog: &Backlog, now: Tick) -> WaitsFor {
        let Some(endpoint) = self.endpoints.get(&backlog.endpoint) else { return WaitsFor::Turn };
        if endpoint.backs_off_until() > now {
            WaitsFor::Later
        } else if endpoint.starts.free_at(self.policies.limits.quota, now) > now {
            WaitsFor::Pace
        } else if endpoint.parked.is_somewhere() {
            WaitsFor::Slot
        } else if endpoint.under_way.attempts >= endpoint.limit {
            WaitsFor::InFlight
        } else {
            WaitsFor::Turn
        }
    }
}
