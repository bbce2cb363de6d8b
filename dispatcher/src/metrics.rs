//! Every metric the dispatcher has, declared in one list.
//!
//! The first of them is the one to wake somebody for: it rises when deliveries that could be sent
//! are not, whatever the reason, and stays at zero when they merely wait for their time.
//!
//! No label ever names a tenant, a webhook or a URL: who fares badly is told by the API.

use std::borrow::Cow;
use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use weir_common::metrics;

use crate::domain::outcome::{Failure, Outcome};
use crate::store::StoreError;

metrics! {
    prefix: "weir_dispatcher_";

    /// Age of the oldest delivery that could be sent now and has not been.
    past_due_oldest: Gauge = "past_due_oldest_seconds";
    /// From when a delivery could start to its start.
    start_lag: Histogram = "start_lag_seconds";
    /// Attempts that ended, by what came of them: status_2xx to status_5xx, timeout, dns, …
    attempts: IntCounterVec = "attempts_total", "outcome";
    /// From the start of an attempt to its outcome.
    attempt_duration: Histogram = "attempt_duration_seconds";
    /// Attempts that are under way.
    in_flight: IntGauge = "attempts_in_flight";
    /// Deliveries that ended: delivered or failed_permanent.
    deliveries_ended: IntCounterVec = "deliveries_ended_total", "state";
    /// Deliveries that wait, for whatever reason.
    waiting: IntGauge = "deliveries_waiting";
    /// Webhooks that are registered.
    webhooks: IntGauge = "webhooks";
    /// Receiving endpoints with deliveries that wait.
    endpoints: IntGauge = "endpoints_active";
    /// Events that were accepted or repeated; calls with events that were refused, in conflict or
    /// busy.
    events: IntCounterVec = "events_total", "outcome";
    /// Deliveries made of the events that were accepted, one for each webhook.
    deliveries_created: IntCounter = "deliveries_created_total";
    /// Webhooks paused because nothing arrived for too long.
    pauses: IntCounter = "pauses_total";
    /// Webhooks whose owners were warned.
    warnings: IntCounter = "warnings_total";
    /// Mails: sent, failed or dropped.
    mails: IntCounterVec = "mails_total", "outcome";
    /// Transactions that the store has committed since the start.
    store_commits: IntGauge = "store_commits";
    /// Bytes of the store's files.
    store_bytes: IntGauge = "store_bytes";
    /// Calls of the store that failed.
    store_failures: IntCounter = "store_failures_total";
    /// Outcomes of attempts that are not yet on disk: a crash would send those again.
    unrecorded: IntGauge = "outcomes_unrecorded";
    /// Lines of attempts dropped because nobody read them.
    log_dropped: IntCounter = "attempt_log_dropped_total";
    /// Connections to the API's listener and to that of events.
    connections: IntGauge = "connections";
    /// Reloads of the configuration: applied, unchanged or refused.
    reloads: IntCounterVec = "config_reloads_total", "outcome";
    /// When the configuration in force was put there, in Unix seconds.
    config_applied: Gauge = "config_applied_timestamp_seconds";
    /// Whether the configuration last looked at is the one in force: 1, or 0 where it was refused.
    config_ok: IntGauge = "config_last_reload_successful";
    /// The version that runs: always 1.
    build: IntGaugeVec = "build_info", "version";
}

impl Metrics {
    /// Counts an attempt that ended.
    pub fn attempt(&self, outcome: &Outcome, took: Duration) {
        self.attempts.with_label_values(&[class(outcome)]).inc();
        self.attempt_duration.observe(took.as_secs_f64());
    }

    /// Counts a call of the store that failed; one for which there was no room was none.
    pub fn store_failed(&self, error: &StoreError) {
        if !matches!(error, StoreError::Busy) {
            self.store_failures.inc();
        }
    }
}

/// An outcome's name with its status as hundreds: a receiver must not invent series.
fn class(outcome: &Outcome) -> Cow<'static, str> {
    Cow::Borrowed(match outcome {
        Outcome::Delivered { .. } => "status_2xx",
        Outcome::Failed(Failure::Status(status)) => match status / 100 {
            1 => "status_1xx",
            3 => "status_3xx",
            4 => "status_4xx",
            5 => "status_5xx",
            _ => "status_other",
        },
        Outcome::Failed(_) | Outcome::Internal(_) => return Cow::Owned(outcome.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Fault;

    #[test]
    fn every_metric_has_a_name_of_its_own_and_counts() {
        let metrics = Metrics::new();
        metrics.past_due_oldest.set(1.5);
        metrics.deliveries_ended.with_label_values(&["delivered"]).inc();
        let text = String::from_utf8(metrics.text()).unwrap();
        for line in [
            "weir_dispatcher_past_due_oldest_seconds 1.5",
            "weir_dispatcher_deliveries_ended_total{state=\"delivered\"} 1",
            "# HELP weir_dispatcher_warnings_total Webhooks whose owners were warned.",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert_eq!(Metrics::table()[0].0, "weir_dispatcher_past_due_oldest_seconds");
    }

    #[test]
    fn attempts_are_counted_by_class() {
        let metrics = Metrics::new();
        let outcomes = [
            (Outcome::of_status(204), "status_2xx"),
            (Outcome::of_status(302), "status_3xx"),
            (Outcome::of_status(410), "status_4xx"),
            (Outcome::of_status(599), "status_5xx"),
            (Outcome::of_status(999), "status_other"),
            (Outcome::Failed(Failure::Timeout), "timeout"),
            (Outcome::Internal(Fault::Resources), "internal_resources"),
        ];
        for (outcome, name) in &outcomes {
            metrics.attempt(outcome, Duration::from_millis(3));
            assert_eq!(metrics.attempts.with_label_values(&[*name]).get(), 1, "{name}");
        }
        assert_eq!(metrics.attempt_duration.get_sample_count(), 7);
    }

    #[test]
    fn no_label_names_a_tenant() {
        for (name, labels, _) in Metrics::table() {
            let allowed = ["outcome", "state", "version"];
            assert!(labels.iter().all(|label| allowed.contains(label)), "{name}");
        }
    }
}
