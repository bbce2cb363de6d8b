//! What the operators' screen shows of the last hour and day: sampled every few seconds.
//!
//! # Invariants
//!
//! 1. A sample asks the store for one page of webhooks, and the worker for one survey.
//! 2. What cannot be read in time is missing in the chart; nothing waits for it.
//!
//! Not here: how it is shown (`admin::screen`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::Level;
use weir_common::log::events;
use weir_common::metrics::{buckets, by_label};
use weir_common::pages::history::{History, SAMPLE_EVERY, Sample};
use weir_common::time::{Moment, Tick};

use crate::domain::id::WebhookId;
use crate::domain::outcome::{Fault, Outcome};
use crate::domain::webhook::filter::WebhookFilter;
use crate::domain::webhook::{Webhook, WebhookState};
use crate::scheduler::survey::{Survey, WaitsFor};
use crate::state::State;
use crate::store::StoreError;

/// How long the worker has for a survey, which takes it milliseconds.
const SURVEY_WAIT: Duration = Duration::from_secs(2);

/// How often the counts of failed attempts are halved.
const FADE_EVERY: Duration = Duration::from_secs(600);

/// Webhooks that do not deliver, as many as the screen lists.
const LISTED: usize = 20;

/// Classes of outcomes in charts: the name of each and its labels in metrics.
pub(super) const OUTCOMES: [(&str, &[&str]); 6] = [
    ("2xx", &["status_2xx"]),
    ("other status", &["status_1xx", "status_3xx", "status_4xx", "status_other"]),
    ("5xx", &["status_5xx"]),
    ("timeout", &["timeout"]),
    ("no connection", &["dns", "refused", "connection", "tls"]),
    ("not allowed", &["blocked_address"]),
];

/// Attempts that failed through the dispatcher itself.
pub(super) const OWN_FAULTS: &str = "own faults";

/// Attempts that were not made since the proxy cannot be used.
pub(super) const PROXY_FAULTS: &str = "proxy faults";

/// Deliveries that were given up.
pub(super) const GIVEN_UP: &str = "given up";

/// Webhooks that do not deliver, counted page by page.
#[derive(Clone, Debug, Default)]
pub(super) struct Census {
    pub(super) paused: usize,
    pub(super) failing: usize,
    pub(super) disabled: usize,
    /// The oldest of them.
    pub(super) listed: Vec<Webhook>,
}

impl Census {
    fn add(&mut self, webhooks: Vec<Webhook>) {
        for webhook in webhooks {
            match webhook.state() {
                WebhookState::Paused => self.paused += 1,
                WebhookState::Failing => self.failing += 1,
                WebhookState::Disabled => self.disabled += 1,
                WebhookState::Delivering => continue,
            }
            if self.listed.len() < LISTED {
                self.listed.push(webhook);
            }
        }
    }
}

/// What was sampled.
pub(super) struct Seen {
    pub(super) hour: History,
    pub(super) day: History,
    pub(super) survey: Survey,
    /// The last complete count.
    pub(super) census: Census,
    counting: Census,
    after: Option<WebhookId>,
    faded: Tick,
}

/// The memory of the operators' screen.
pub struct Watch {
    /// When the program started.
    pub(super) started: Tick,
    seen: Mutex<Seen>,
}

impl Watch {
    /// Nothing sampled yet.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        let day = History::new(Duration::from_secs(3_600), 24);
        let seen = Seen {
            hour: History::of_an_hour(),
            day,
            survey: Survey::default(),
            census: Census::default(),
            counting: Census::default(),
            after: None,
            faded: now.tick,
        };
        Self { started: now.tick, seen: Mutex::new(seen) }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample every few seconds.
    pub async fn run(self: Arc<Self>, state: Arc<State>) {
        loop {
            self.sample(&state).await;
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }

    async fn sample(&self, state: &State) {
        let mut sample = counted(state);
        let survey = tokio::time::timeout(SURVEY_WAIT, state.mailbox.survey()).await.ok().flatten();
        for (reason, count) in WaitsFor::ALL.into_iter().zip(survey.iter().flat_map(|s| s.waiting))
        {
            sample.level(reason.name(), count as f64);
        }
        match state.store.figures().await {
            Ok(figures) => {
                sample.level("waiting", figures.waiting as f64);
                sample.level("WAL", figures.wal_bytes as f64);
            }
            Err(error) => missed(&error),
        }
        let after = self.seen().after;
        let page = state.store.find_webhooks(&WebhookFilter::default(), after, usize::MAX).await;
        let now = state.clock.now().tick;
        let mut seen = self.seen();
        match page {
            Ok(page) => {
                seen.counting.add(page.items);
                seen.after = page.next;
                if page.next.is_none() {
                    seen.census = std::mem::take(&mut seen.counting);
                }
            }
            Err(error) => missed(&error),
        }
        seen.survey = survey.unwrap_or_default();
        let mut of_day = Sample::default();
        of_day.count(GIVEN_UP, given_up(state));
        seen.day.add(of_day, now);
        seen.hour.add(sample, now);
        if now.since(seen.faded) >= FADE_EVERY {
            seen.faded = now;
            state.most_failed.fade();
        }
    }
}

/// What the metrics have counted and measured.
fn counted(state: &State) -> Sample {
    let metrics = &state.metrics;
    let mut sample = Sample::default();
    let outcomes = by_label(&metrics.attempts, "outcome");
    for (name, labels) in OUTCOMES {
        let count = labels.iter().filter_map(|label| outcomes.get(*label)).sum();
        sample.count(name, count);
    }
    let proxy = Outcome::Internal(Fault::Proxy).class();
    sample.count(PROXY_FAULTS, outcomes.get(proxy).copied().unwrap_or_default());
    let own = outcomes.iter();
    let own = own.filter(|(name, _)| name.starts_with("internal_") && name.as_str() != proxy);
    sample.count(OWN_FAULTS, own.map(|(_, count)| count).sum());
    let some = |(_, count): &(String, u64)| *count > 0;
    for (outcome, count) in by_label(&metrics.events, "outcome").into_iter().filter(some) {
        sample.count(format!("events {outcome}"), count);
    }
    for (outcome, count) in by_label(&metrics.mails, "outcome").into_iter().filter(some) {
        sample.count(format!("mails {outcome}"), count);
    }
    sample.count("store failures", metrics.store_failures.get());
    sample.level("past due", metrics.past_due_oldest.get());
    sample.level("in flight", metrics.in_flight.get() as f64);
    sample.times("answer", &buckets(&metrics.attempt_duration));
    sample.times("lag", &buckets(&metrics.start_lag));
    sample.times("commit", &buckets(&metrics.store_commit_duration));
    sample
}

fn given_up(state: &State) -> u64 {
    by_label(&state.metrics.deliveries_ended, "state").get("failed_permanent").copied().unwrap_or(0)
}

fn missed(error: &StoreError) {
    let fields = [("error", error.to_string().into())];
    events::event(Level::Debug, "sample for operators incomplete", &fields);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::OutcomeClass;

    #[test]
    fn every_outcome_of_a_receiver_is_in_one_class_of_the_chart() {
        for class in OutcomeClass::ALL {
            let classes = OUTCOMES.iter().filter(|(_, labels)| labels.contains(&class.name()));
            assert_eq!(classes.count(), 1, "{}", class.name());
        }
        let labels: usize = OUTCOMES.iter().map(|(_, labels)| labels.len()).sum();
        assert_eq!(labels, OutcomeClass::ALL.len());
    }
}
