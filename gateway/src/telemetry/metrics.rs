//! Every metric the gateway has, declared in one list.
//!
//! Names and units follow Prometheus' conventions. No label ever names a tenant, a path or a
//! client: `GET /top` of the admin listener lists the busiest keys.
//!
//! Not here: when something is counted; the code where it happens does that.

use std::sync::OnceLock;

use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};
use weir_common::directory;
use weir_common::identity::identity_server::{self, IdentityMetrics};
use weir_common::metrics;

/// HTTP statuses have three digits.
const STATUSES: usize = 1_000;

metrics! {
    prefix: "weir_gateway_";

    /// Requests answered, by plane and status.
    requests: IntCounterVec = "requests_total", "plane", "code";
    /// Time from a request's head to the end of its response.
    duration: HistogramVec = "request_duration_seconds", "plane";
    /// Requests in progress.
    in_flight: IntGauge = "requests_in_flight";
    /// Decisions of limits: admit, refuse, or would_refuse where a limit only observes.
    decisions: IntCounterVec = "limit_decisions_total", "limit", "outcome";
    /// Requests that a limit which only observes would have refused, by the tenant's plan, if any.
    would_refuse: IntCounterVec = "limit_would_refuse_total", "limit", "plan";
    /// Keys that have used as much of a limit as its warn_at says, once per window at most.
    warnings: IntCounterVec = "limit_warnings_total", "limit";
    /// Warnings of limits that were dropped, or whose call of warnings.url failed.
    warnings_lost: IntCounter = "limit_warnings_lost_total";
    /// Requests refused by the gateway itself, by reason.
    refusals: IntCounterVec = "refusals_total", "reason";
    /// Entries of limits in memory, one per limit and key.
    keys: IntGauge = "limit_keys";
    /// Entries of keys that the directory does not know.
    unknown_keys: IntGauge = "limit_keys_unknown";
    /// Most entries that unknown keys may have.
    unknown_keys_max: IntGauge = "limit_keys_unknown_max";
    /// Requests of unknown keys charged to a shared entry because the store was full.
    overflowed: IntCounter = "limit_overflow_total";
    /// Whether all limits are counted in the shared store now; 1 where there is none.
    store_up: IntGauge = "store_up";
    /// Servers of the shared store that have counters.
    store_servers: IntGauge = "store_servers";
    /// Those of them that requests ask now.
    store_servers_up: IntGauge = "store_servers_up";
    /// Gateways that share the store, as this one last heard.
    store_gateways: IntGauge = "store_gateways";
    /// Calls of the shared store, by outcome: answered, failed, forgotten where it had lost what
    /// this gateway was given, or moving where their keys were between two servers of a Cluster.
    store_calls: IntCounterVec = "store_calls_total", "outcome";
    /// Tokens of buckets in the shared store that this gateway may spend without a call: others
    /// find them spent.
    store_leased: IntGauge = "store_leased_tokens";
    /// Decisions on requests, by kind: call, together (by the call of another request with the same
    /// limits), leased (by tokens that the gateway held), remembered (a refusal that still holds),
    /// or alone (by this gateway's share, because the shared store was away).
    store_decisions: IntCounterVec = "store_decisions_total", "kind";
    /// Times at which the shared store's clock was seen to be set by more than a second, ahead or
    /// back.
    store_clock_jumps: IntCounter = "store_clock_jumps_total";
    /// Requests to the directory, by outcome: known, unknown, invalid, failed or unanswered.
    directory_requests: IntCounterVec = "directory_requests_total", "outcome";
    /// Response time of the directory.
    directory_seconds: Histogram = "directory_request_duration_seconds";
    /// Cached directory entries, by kind: known, unknown to the directory, or failed (no lookup was
    /// answered).
    directory_entries: IntGaugeVec = "directory_entries", "kind";
    /// Requests served from an expired entry because the directory was unavailable.
    directory_stale: IntCounter = "directory_stale_total";
    /// Invalid responses and entries of the directory, and requests for an instance whose own
    /// limits its plan does not allow.
    directory_unusable: IntCounter = "directory_unusable_total";
    /// Bytes of batch bodies buffered until their items are counted.
    buffered_bytes: IntGauge = "batch_buffered_bytes";
    /// Open client connections.
    connections: IntGauge = "connections";
    /// Requests over HTTP/2 that wait because connections, and those requests that count as one,
    /// are at their maximum.
    requests_waiting: IntGauge = "requests_waiting";
    /// Connections closed on arrival, by reason: too many in total, or from one address.
    connections_refused: IntCounterVec = "connections_refused_total", "reason";
    /// Failed PROXY headers and TLS handshakes, by reason.
    handshake_failures: IntCounterVec = "handshake_failures_total", "reason";
    /// Unix time at which the first certificate expires; 0 without TLS.
    certificate_expires: Gauge = "certificate_expires_timestamp_seconds";
    /// Failed connects to an upstream, and failed responses from it.
    upstream_failures: IntCounterVec = "upstream_failures_total", "upstream", "kind";
    /// Addresses of a server that get requests.
    upstream_healthy: IntGaugeVec = "upstream_healthy", "upstream", "server";
    /// Addresses of a server that are ejected because they failed requests.
    upstream_ejected: IntGaugeVec = "upstream_ejected", "upstream", "server";
    /// Ejections of a server's addresses.
    upstream_ejections: IntCounterVec = "upstream_ejections_total", "upstream", "server";
    /// Token checks, by outcome: verified, cached, or the reason for a rejection.
    token_verifications: IntCounterVec = "token_verifications_total", "outcome";
    /// Cached tokens, each stored as a hash.
    token_cache_entries: IntGauge = "token_cache_entries";
    /// Requests to identity servers, by kind (keys, introspection) and outcome (answered, failed).
    identity_requests: IntCounterVec = "identity_requests_total", "kind", "outcome";
    /// Duration of requests to identity servers, failures and queueing included.
    identity_duration: HistogramVec = "identity_request_duration_seconds", "kind";
    /// Keys in the JWKS.
    jwks_keys: IntGauge = "jwks_keys";
    /// Unix time of the last JWKS fetch that succeeded.
    jwks_fetched: Gauge = "jwks_fetched_timestamp_seconds";
    /// Configuration reloads, by outcome: applied, unchanged, refused or failed.
    reloads: IntCounterVec = "config_reloads_total", "outcome";
    /// Unix time at which the active configuration was applied.
    config_applied: Gauge = "config_applied_timestamp_seconds";
    /// 1 if the last reload succeeded, 0 if it was refused.
    config_ok: IntGauge = "config_last_reload_successful";
    /// Access log lines dropped because standard output was not read, or took no more.
    log_dropped: IntCounter = "access_log_dropped_total";
    /// Always 1; the label has the version.
    build: IntGaugeVec = "build_info", "version";
}

impl Metrics {
    /// Every metric, with a series at zero for each outcome that is known beforehand: a query for
    /// an increase finds nothing in a series that begins with its first event.
    #[must_use]
    pub fn from_zero() -> Self {
        let metrics = Self::new();
        for reason in ["total", "address"] {
            drop(metrics.connections_refused.with_label_values(&[reason]));
        }
        for outcome in directory::server::OUTCOMES {
            drop(metrics.directory_requests.with_label_values(&[outcome]));
        }
        for query in identity_server::QUERIES {
            drop(metrics.identity_requests.with_label_values(&query));
        }
        metrics
    }

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

/// The counters of one plane.
#[derive(Clone)]
pub struct PlaneMeter {
    name: String,
    requests: IntCounterVec,
    duration: Histogram,
    by_status: Box<[OnceLock<IntCounter>]>,
}

impl PlaneMeter {
    /// Counts a response with `status` after `seconds`.
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
#[derive(Clone)]
pub struct LimitMeter {
    /// Requests it admitted.
    pub admit: IntCounter,
    /// Requests it refused.
    pub refuse: IntCounter,
    /// Requests it would have refused if it were enforced.
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
        assert!(text.contains("# HELP weir_gateway_connections Open client connections."));
    }

    #[test]
    fn outcomes_that_are_known_beforehand_start_at_zero() {
        let text = String::from_utf8(Metrics::from_zero().text()).unwrap();
        for series in [
            "connections_refused_total{reason=\"address\"}",
            "directory_requests_total{outcome=\"unanswered\"}",
            "identity_requests_total{kind=\"keys\",outcome=\"failed\"}",
        ] {
            let line = format!("weir_gateway_{series} 0");
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn no_label_names_a_tenant() {
        let allowed = [
            "plane", "code", "limit", "plan", "outcome", "reason", "upstream", "server", "kind",
            "version",
        ];
        for (name, labels, _) in Metrics::table() {
            assert!(labels.iter().all(|label| allowed.contains(label)), "{name}");
        }
    }
}
