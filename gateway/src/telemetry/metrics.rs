//! Every metric the gateway has, declared in one list.
//!
//! Names and units follow Prometheus' conventions. No label ever names a tenant, a path or a
//! client: who is busy is told by `heavy_hitters`, on the admin listener.
//!
//! Not here: when something is counted, which is said where it happens.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use weir_common::metrics;

/// The statuses that HTTP has room for.
const STATUSES: usize = 1_000;

metrics! {
    prefix: "weir_gateway_";

    /// Requests answered, by plane and status.
    requests: IntCounterVec = "requests_total", "plane", "code";
    /// Time from a request's head to the end of its answer.
    duration: HistogramVec = "request_duration_seconds", "plane";
    /// Requests that are being answered.
    in_flight: IntGauge = "requests_in_flight";
    /// What limits decided: admit, refuse, or would_refuse where one is only observed.
    decisions: IntCounterVec = "limit_decisions_total", "limit", "outcome";
    /// Answers that the gateway gave itself, by reason.
    refusals: IntCounterVec = "refusals_total", "reason";
    /// States of limits in memory.
    keys: IntGauge = "limit_keys";
    /// States of keys that the directory does not know.
    strangers: IntGauge = "limit_keys_unknown";
    /// States of keys that the directory does not know, at most.
    strangers_max: IntGauge = "limit_keys_unknown_max";
    /// Requests that shared a state because there was no room for one of their own.
    overflowed: IntCounter = "limit_overflow_total";
    /// Questions to the directory: known, unknown, invalid, failed or unanswered.
    directory_questions: IntCounterVec = "directory_questions_total", "outcome";
    /// How long the directory took to answer.
    directory_seconds: Histogram = "directory_question_seconds";
    /// What is remembered of the directory: entries that are known, and that are unknown.
    directory_entries: IntGaugeVec = "directory_entries", "kind";
    /// Times that an entry was used beyond its time, for the directory could not be asked.
    directory_stale: IntCounter = "directory_stale_total";
    /// Times that an answer or an entry of the directory could not be used.
    directory_unusable: IntCounter = "directory_unusable_total";
    /// Bytes of batch bodies that are held back until they are counted.
    held_bytes: IntGauge = "batch_held_bytes";
    /// Connections of clients.
    connections: IntGauge = "connections";
    /// Connections closed at once because there were too many: in total, or of one address.
    connections_refused: IntCounterVec = "connections_refused_total", "reason";
    /// PROXY headers and TLS handshakes that came to nothing, by reason.
    handshake_failures: IntCounterVec = "handshake_failures_total", "reason";
    /// When the first of the certificates expires, in Unix seconds; 0 without TLS.
    certificate_expires: Gauge = "certificate_expires_timestamp_seconds";
    /// Connects to a server, and answers of it, that failed.
    upstream_failures: IntCounterVec = "upstream_failures_total", "upstream", "kind";
    /// At how many of its addresses a server gets requests.
    upstream_healthy: IntGaugeVec = "upstream_healthy", "upstream", "server";
    /// At how many of its addresses a server is ejected because it failed requests.
    upstream_resting: IntGaugeVec = "upstream_resting", "upstream", "server";
    /// How often one of a server's addresses began to rest.
    upstream_rests: IntCounterVec = "upstream_rests_total", "upstream", "server";
    /// Tokens, by what came of them: verified, remembered, or why they let in nobody.
    token_verifications: IntCounterVec = "token_verifications_total", "outcome";
    /// Tokens that are remembered by their hash.
    tokens_remembered: IntGauge = "tokens_remembered";
    /// Questions to identity servers (keys, introspection), by outcome: answered or failed.
    identity_questions: IntCounterVec = "identity_questions_total", "kind", "outcome";
    /// How long identity servers took, failures and waiting for a turn included.
    identity_duration: HistogramVec = "identity_question_duration_seconds", "kind";
    /// Keys that tokens are verified with.
    jwks_keys: IntGauge = "jwks_keys";
    /// When these keys were last fetched, in Unix seconds.
    jwks_fetched: Gauge = "jwks_fetched_timestamp_seconds";
    /// Reloads of the configuration: applied, unchanged or refused.
    reloads: IntCounterVec = "config_reloads_total", "outcome";
    /// When the active configuration was put there, in Unix seconds.
    config_applied: Gauge = "config_applied_timestamp_seconds";
    /// Whether the configuration last looked at is the active one: 1, or 0 where it was refused.
    config_ok: IntGauge = "config_last_reload_successful";
    /// Access log lines dropped because nobody read them.
    log_dropped: IntCounter = "access_log_dropped_total";
    /// The version that runs: always 1.
    build: IntGaugeVec = "build_info", "version";
}

impl Metrics {
    /// The counters of one plane, looked up once.
    #[must_use]
    pub fn plane(&self, name: &str) -> PlaneMeter {
        PlaneMeter {
            name: name.to_owned(),
            requests: self.requests.clone(),
            duration: self.duration.with_label_values(&[name]),
            by_status: (0..STATUSES).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Counts a question to an identity server.
    pub fn identity_question(&self, kind: &str, answered: bool, took: Duration) {
        let outcome = if answered { "answered" } else { "failed" };
        self.identity_questions.with_label_values(&[kind, outcome]).inc();
        self.identity_duration.with_label_values(&[kind]).observe(took.as_secs_f64());
    }

    /// The counters of one limit, looked up once.
    #[must_use]
    pub fn limit(&self, name: &str) -> LimitMeter {
        let counter = |outcome| self.decisions.with_label_values(&[name, outcome]);
        LimitMeter {
            admit: counter("admit"),
            refuse: counter("refuse"),
            would_refuse: counter("would_refuse"),
        }
    }
}

/// The counters of one plane.
pub struct PlaneMeter {
    name: String,
    requests: IntCounterVec,
    duration: Histogram,
    by_status: Box<[OnceLock<IntCounter>]>,
}

impl PlaneMeter {
    /// Counts a request that was answered with `status` after `seconds`.
    pub fn count(&self, status: u16, seconds: f64) {
        let counter =
            || self.requests.with_label_values(&[self.name.as_str(), status.to_string().as_str()]);
        if let Some(slot) = self.by_status.get(usize::from(status)) {
            slot.get_or_init(counter).inc();
        }
        self.duration.observe(seconds);
    }
}

/// The counters of one limit.
pub struct LimitMeter {
    /// Requests it admitted.
    pub admit: IntCounter,
    /// Requests it refused.
    pub refuse: IntCounter,
    /// Requests it would have refused, were it enforced.
    pub would_refuse: IntCounter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_name_of_its_own_and_counts() {
        let metrics = Metrics::new();
        metrics.plane("control").count(429, 0.001);
        metrics.limit("workspace").would_refuse.inc();
        let text = String::from_utf8(metrics.text()).unwrap();
        assert!(
            text.contains("weir_gateway_requests_total{code=\"429\",plane=\"control\"} 1"),
            "{text}"
        );
        assert!(text.contains(
            "weir_gateway_limit_decisions_total{limit=\"workspace\",outcome=\"would_refuse\"} 1"
        ));
        assert!(text.contains("# HELP weir_gateway_connections Connections of clients."));
    }

    #[test]
    fn no_label_names_a_tenant() {
        let allowed = [
            "plane", "code", "limit", "outcome", "reason", "upstream", "server", "kind", "version",
        ];
        for (name, labels, _) in Metrics::table() {
            assert!(labels.iter().all(|label| allowed.contains(label)), "{name}");
        }
    }
}
