//! Every metric the gateway has, declared in one list.
//!
//! Names and units follow Prometheus' conventions. No label ever names a tenant, a path or a
//! client: who is busy is told by `top`, on the admin listener.

use std::sync::OnceLock;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// From a request that a cache answers to one that a person gives up on, in seconds.
const DURATION_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// The statuses that HTTP has room for.
const STATUSES: usize = 1_000;

macro_rules! metrics {
    ($($(#[doc = $help:literal])+
       $field:ident: $type:ident = $name:literal $(, $label:literal)*;)+) => {
        /// Every metric.
        pub struct Metrics {
            registry: Registry,
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Metrics {
            /// All at zero.
            ///
            /// # Panics
            ///
            /// Where the list above names two metrics alike, which its test would find.
            #[must_use]
            pub fn new() -> Self {
                let registry = Registry::new();
                $(let $field = <$type as Metric>::made(
                    concat!("weir_gateway_", $name), concat!($($help),+).trim(), &[$($label),*]);
                let added = registry.register(Box::new($field.clone()));
                added.expect("each metric has a name of its own");)+
                Self { registry, $($field),+ }
            }

            /// Name, labels and meaning of each, for the documentation.
            #[must_use]
            pub fn table() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
                vec![$((
                    concat!("weir_gateway_", $name),
                    vec![$($label),*],
                    concat!($($help),+).trim(),
                )),+]
            }
        }
    };
}

metrics! {
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
    /// Bytes of batch bodies that are held back until they are counted.
    held_bytes: IntGauge = "batch_held_bytes";
    /// Connections of clients.
    connections: IntGauge = "connections";
    /// Connections closed at once because there were too many.
    connections_refused: IntCounter = "connections_refused_total";
    /// Connects to a server, and answers of it, that failed.
    upstream_failures: IntCounterVec = "upstream_failures_total", "upstream", "kind";
    /// Whether a server gets requests: 1 or 0.
    upstream_healthy: IntGaugeVec = "upstream_healthy", "upstream", "server";
    /// Reloads of the configuration: applied, unchanged or refused.
    reloads: IntCounterVec = "config_reloads_total", "outcome";
    /// When the configuration in force was put there, in Unix seconds.
    config_applied: Gauge = "config_applied_timestamp_seconds";
    /// Whether the configuration last looked at is the one in force: 1, or 0 where it was refused.
    config_ok: IntGauge = "config_last_reload_successful";
    /// Access log lines dropped because nobody read them.
    log_dropped: IntCounter = "access_log_dropped_total";
    /// The version that runs: always 1.
    build: IntGaugeVec = "build_info", "version";
}

impl Metrics {
    /// All of them, in Prometheus' text format.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Writing to memory fails only for a metric without a name, and all have one.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        text
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
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
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

/// How each type of metric is made.
trait Metric: prometheus::core::Collector + Clone {
    fn made(name: &str, help: &str, labels: &[&str]) -> Self;
}

const WELL_NAMED: &str = "the list above has valid names";

impl Metric for IntCounter {
    fn made(name: &str, help: &str, _labels: &[&str]) -> Self {
        Self::new(name, help).expect(WELL_NAMED)
    }
}

impl Metric for IntGauge {
    fn made(name: &str, help: &str, _labels: &[&str]) -> Self {
        Self::new(name, help).expect(WELL_NAMED)
    }
}

impl Metric for Gauge {
    fn made(name: &str, help: &str, _labels: &[&str]) -> Self {
        Self::new(name, help).expect(WELL_NAMED)
    }
}

impl Metric for IntCounterVec {
    fn made(name: &str, help: &str, labels: &[&str]) -> Self {
        Self::new(Opts::new(name, help), labels).expect(WELL_NAMED)
    }
}

impl Metric for IntGaugeVec {
    fn made(name: &str, help: &str, labels: &[&str]) -> Self {
        Self::new(Opts::new(name, help), labels).expect(WELL_NAMED)
    }
}

impl Metric for HistogramVec {
    fn made(name: &str, help: &str, labels: &[&str]) -> Self {
        let options = HistogramOpts::new(name, help).buckets(DURATION_BUCKETS.to_vec());
        Self::new(options, labels).expect(WELL_NAMED)
    }
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
