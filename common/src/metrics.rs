//! Declares a program's metrics in one list, and writes them in Prometheus' text format.
//!
//! [`metrics!`](crate::metrics!) makes a struct `Metrics` from a list: help, field, type, name,
//! labels. `scripts/printed` reads the same list for the documentation, so each entry has the form
//! `field: Type = "name", "label";` on one line, below its help.
//!
//! Not here: which metrics there are.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// In seconds: from a response that a cache has to one that its client no longer waits for.
pub const DURATION_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Makes `Metrics` from a prefix and a list of metrics.
#[macro_export]
macro_rules! metrics {
    (prefix: $prefix:literal;
     $($(#[doc = $help:literal])+
       $field:ident: $type:ident = $name:literal $(, $label:literal)*;)+) => {
        /// Every metric.
        pub struct Metrics {
            registry: prometheus::Registry,
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Metrics {
            /// All at zero.
            ///
            /// # Panics
            ///
            /// If two metrics of the list have one name; a test of the list would find that.
            #[must_use]
            pub fn new() -> Self {
                let registry = prometheus::Registry::new();
                $(let $field = <$type as $crate::metrics::Metric>::made(
                    concat!($prefix, $name), concat!($($help),+).trim(), &[$($label),*]);
                let added = registry.register(Box::new($field.clone()));
                added.expect("each metric has a name of its own");)+
                Self { registry, $($field),+ }
            }

            /// Name, labels and meaning of each, for the documentation.
            #[must_use]
            pub fn table() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
                vec![$((
                    concat!($prefix, $name),
                    vec![$($label),*],
                    concat!($($help),+).trim(),
                )),+]
            }

            /// All of them, in Prometheus' text format.
            #[must_use]
            pub fn text(&self) -> Vec<u8> {
                $crate::metrics::text(&self.registry)
            }
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

/// All metrics of a registry, in Prometheus' text format.
#[must_use]
pub fn text(registry: &Registry) -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory fails only for a metric without a name, and all have one.
    let _ = TextEncoder::new().encode(&registry.gather(), &mut text);
    text
}

/// The counts of a counter by one of its labels, those of other labels added.
#[must_use]
pub fn by_label(counter: &IntCounterVec, label: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for metric in counter.collect().iter().flat_map(|family| family.get_metric()) {
        let own = metric.get_label().iter().find(|pair| pair.name() == label);
        let count = metric.get_counter().get_value();
        *counts.entry(own.map_or("", |own| own.value()).to_owned()).or_default() += count as u64;
    }
    counts
}

/// How many durations were at most as long as each of [`DURATION_BUCKETS`], and how many there
/// were; of all labels together.
#[must_use]
pub fn buckets(durations: &impl Collector) -> Vec<u64> {
    let mut counts = vec![0; DURATION_BUCKETS.len() + 1];
    for metric in durations.collect().iter().flat_map(|family| family.get_metric()) {
        let own = metric.get_histogram();
        let each = own.get_bucket().iter().map(|bucket| bucket.cumulative_count());
        let each = each.take(DURATION_BUCKETS.len()).chain([own.get_sample_count()]);
        counts.iter_mut().zip(each).for_each(|(all, count)| *all += count);
    }
    counts
}

/// Constructs each type of metric.
pub trait Metric: Collector + Clone {
    /// A metric at zero.
    fn made(name: &str, help: &str, labels: &[&str]) -> Self;
}

const WELL_NAMED: &str = "the list of metrics has valid names";

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

impl Metric for Histogram {
    fn made(name: &str, help: &str, _labels: &[&str]) -> Self {
        Self::with_opts(durations(name, help)).expect(WELL_NAMED)
    }
}

impl Metric for HistogramVec {
    fn made(name: &str, help: &str, labels: &[&str]) -> Self {
        Self::new(durations(name, help), labels).expect(WELL_NAMED)
    }
}

fn durations(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(DURATION_BUCKETS.to_vec())
}

#[cfg(test)]
mod tests {
    #![expect(unreachable_pub, reason = "a list of metrics is its program's to show")]

    use prometheus::{Histogram, IntCounterVec};

    use super::{buckets, by_label};

    crate::metrics! {
        prefix: "weir_";

        /// Things that were done, by kind.
        done: IntCounterVec = "done_total", "kind";
        /// How long each took.
        took: Histogram = "took_seconds";
    }

    #[test]
    fn a_list_of_metrics_counts_and_shows_itself() {
        let metrics = Metrics::default();
        metrics.done.with_label_values(&["good"]).inc();
        metrics.took.observe(0.002);
        let text = String::from_utf8(metrics.text()).unwrap();
        for line in [
            "# HELP weir_done_total Things that were done, by kind.",
            "# TYPE weir_done_total counter",
            "weir_done_total{kind=\"good\"} 1",
            "weir_took_seconds_bucket{le=\"0.001\"} 0",
            "weir_took_seconds_bucket{le=\"0.0025\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        metrics.took.observe(100.0);
        assert_eq!(by_label(&metrics.done, "kind"), [("good".to_owned(), 1)].into());
        let counts = buckets(&metrics.took);
        assert_eq!((counts[1], counts[2], counts[13], counts[14]), (0, 1, 1, 2));
        assert_eq!(
            Metrics::table(),
            [
                ("weir_done_total", vec!["kind"], "Things that were done, by kind."),
                ("weir_took_seconds", vec![], "How long each took."),
            ]
        );
    }
}
