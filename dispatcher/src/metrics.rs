//! Every metric of the dispatcher, declared in one list.
//!
//! `past_due_oldest_seconds` is the one to alert on: it rises while due deliveries are not sent,
//! for any reason, and stays at zero while deliveries only wait for their due time or a rate limit.
//!
//! Invariant: no label names a tenant, a webhook or a URL; the API shows which webhooks fail.

use std::time::Duration;

use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use weir_common::config::reload::Reloads;
use weir_common::directory;
use weir_common::identity::identity_server::{self, IdentityMetrics};
use weir_common::metrics;

use crate::domain::outcome::{Fault, Outcome, OutcomeClass};
use crate::store::StoreError;

metrics! {
    prefix: "weir_dispatcher_";

    /// Time since the oldest unsent delivery became due and allowed to start, or since outcomes
    /// cannot be written.
    past_due_oldest: Gauge = "past_due_oldest_seconds";
    /// Time from when a delivery could start to its start.
    start_lag: Histogram = "start_lag_seconds";
    /// Attempts that ended, by outcome: status_2xx to status_5xx, timeout, dns, …
    attempts: IntCounterVec = "attempts_total", "outcome";
    /// Time from the start of an attempt to its outcome.
    attempt_duration: Histogram = "attempt_duration_seconds";
    /// Attempts in flight.
    in_flight: IntGauge = "attempts_in_flight";
    /// Deliveries that ended: delivered or failed_permanent.
    deliveries_ended: IntCounterVec = "deliveries_ended_total", "state";
    /// Waiting deliveries, for any reason.
    waiting: IntGauge = "deliveries_waiting";
    /// Registered webhooks.
    webhooks: IntGauge = "webhooks";
    /// Endpoints with waiting deliveries.
    endpoints: IntGauge = "endpoints_active";
    /// Events by outcome: accepted, repeated; and refused calls: refused, conflict, busy.
    events: IntCounterVec = "events_total", "outcome";
    /// Deliveries created for accepted events, one for each subscribed webhook.
    deliveries_created: IntCounter = "deliveries_created_total";
    /// Pauses of webhooks without a 2xx for health.pause_after.
    pauses: IntCounter = "pauses_total";
    /// Warnings to owners of failing webhooks.
    warnings: IntCounter = "warnings_total";
    /// Mails by outcome: sent, failed (retried later), dropped.
    mails: IntCounterVec = "mails_total", "outcome";
    /// Requests to the directory, by outcome: known, unknown, invalid, failed or unanswered.
    directory_requests: IntCounterVec = "directory_requests_total", "outcome";
    /// Response time of the directory.
    directory_seconds: Histogram = "directory_request_duration_seconds";
    /// Events for operators by outcome: sent, failed (retried later), dropped.
    operator_events: IntCounterVec = "operator_events_total", "outcome";
    /// Transactions committed since the start.
    store_commits: IntGauge = "store_commits";
    /// Time of a commit, until it is on disk.
    store_commit_duration: Histogram = "store_commit_duration_seconds";
    /// Size of the store's files in bytes.
    store_bytes: IntGauge = "store_bytes";
    /// Size of the store's write-ahead log in bytes.
    store_wal_bytes: IntGauge = "store_wal_bytes";
    /// Store calls that failed.
    store_failures: IntCounter = "store_failures_total";
    /// Outcomes not yet on disk; a crash would repeat these attempts.
    unrecorded: IntGauge = "outcomes_unrecorded";
    /// Attempt log lines dropped because standard output was not read, or took no more.
    log_dropped: IntCounter = "attempt_log_dropped_total";
    /// Open connections to the API and ingest listeners.
    connections: IntGauge = "connections";
    /// Access tokens by outcome: verified, cached, or the reason for a rejection.
    token_verifications: IntCounterVec = "token_verifications_total", "outcome";
    /// Requests to identity servers, by kind (keys, introspection) and outcome (answered, failed).
    identity_requests: IntCounterVec = "identity_requests_total", "kind", "outcome";
    /// Duration of requests to identity servers, failures included.
    identity_duration: HistogramVec = "identity_request_duration_seconds", "kind";
    /// Keys in the JWKS.
    jwks_keys: IntGauge = "jwks_keys";
    /// Unix time of the last JWKS fetch that succeeded.
    jwks_fetched: Gauge = "jwks_fetched_timestamp_seconds";
    /// Configuration reloads by outcome: applied, unchanged, refused, failed.
    reloads: IntCounterVec = "config_reloads_total", "outcome";
    /// When the active configuration was applied, in Unix seconds.
    config_applied: Gauge = "config_applied_timestamp_seconds";
    /// 1 if the last reload succeeded, 0 if it was refused.
    config_ok: IntGauge = "config_last_reload_successful";
    /// Always 1; the label has the version.
    build: IntGaugeVec = "build_info", "version";
}

impl Metrics {
    /// Every metric, with a series at zero for each outcome: a query for an increase finds nothing
    /// in a series that begins with its first event.
    #[must_use]
    pub fn from_zero() -> Self {
        let metrics = Self::new();
        let start = |counter: &IntCounterVec, values: &[&str]| {
            values.iter().for_each(|value| drop(counter.with_label_values(&[*value])));
        };
        start(&metrics.attempts, &OutcomeClass::ALL.map(|class| class.name()));
        start(&metrics.attempts, &Fault::ALL.map(|fault| Outcome::Internal(fault).class()));
        start(&metrics.deliveries_ended, &["delivered", "failed_permanent"]);
        start(&metrics.events, &["accepted", "repeated", "refused", "conflict", "busy"]);
        start(&metrics.mails, &["sent", "failed", "dropped"]);
        start(&metrics.operator_events, &["sent", "failed", "dropped"]);
        start(&metrics.directory_requests, &directory::server::OUTCOMES);
        for query in identity_server::QUERIES {
            drop(metrics.identity_requests.with_label_values(&query));
        }
        metrics
    }

    /// The reload metrics, to be updated by reloads.
    #[must_use]
    pub fn of_reloads(&self) -> Reloads {
        Reloads::new(&self.reloads, &self.config_ok, &self.config_applied)
    }

    /// Counts an attempt that ended.
    pub fn attempt(&self, outcome: &Outcome, took: Duration) {
        self.attempts.with_label_values(&[outcome.class()]).inc();
        self.attempt_duration.observe(took.as_secs_f64());
    }

    /// Counts a failed store call; a full queue is no failure.
    pub fn store_failed(&self, error: &StoreError) {
        if !matches!(error, StoreError::Busy) {
            self.store_failures.inc();
        }
    }

    /// Those of requests to identity servers.
    #[must_use]
    pub fn of_identity(&self) -> IdentityMetrics {
        IdentityMetrics {
            requests: self.identity_requests.clone(),
            duration: self.identity_duration.clone(),
            keys: self.jwks_keys.clone(),
            fetched: self.jwks_fetched.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Failure;

    #[test]
    fn every_metric_is_registered_and_counts() {
        let metrics = Metrics::new();
        metrics.past_due_oldest.set(1.5);
        metrics.deliveries_ended.with_label_values(&["delivered"]).inc();
        let text = String::from_utf8(metrics.text()).unwrap();
        for line in [
            "weir_dispatcher_past_due_oldest_seconds 1.5",
            "weir_dispatcher_deliveries_ended_total{state=\"delivered\"} 1",
            "# HELP weir_dispatcher_warnings_total Warnings to owners of failing webhooks.",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert_eq!(Metrics::table()[0].0, "weir_dispatcher_past_due_oldest_seconds");
    }

    #[test]
    fn what_is_alerted_on_has_a_series_before_its_first_event() {
        let metrics = Metrics::from_zero();
        let _reloads = metrics.of_reloads();
        let text = String::from_utf8(metrics.text()).unwrap();
        for series in [
            "attempts_total{outcome=\"internal_resources\"}",
            "attempts_total{outcome=\"internal_proxy\"}",
            "attempts_total{outcome=\"timeout\"}",
            "deliveries_ended_total{state=\"failed_permanent\"}",
            "mails_total{outcome=\"dropped\"}",
            "config_reloads_total{outcome=\"refused\"}",
        ] {
            assert!(text.contains(&format!("weir_dispatcher_{series} 0\n")), "{series} in\n{text}");
        }
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
            let allowed = ["kind", "outcome", "state", "version"];
            assert!(labels.iter().all(|label| allowed.contains(label)), "{name}");
        }
    }
}
