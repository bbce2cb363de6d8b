//! Runs reloads, each of which replaces the whole configuration or nothing, and reports outcomes.
//!
//! # Invariants
//!
//! 1. Reloads run one after another: the configuration of an earlier one never replaces a later's.
//! 2. A changed key that a reload cannot apply is refused with its place, not ignored.
//!
//! # Not here
//!
//! What triggers a reload (`watch`, `signals`, `admin`), what a configuration consists of (the
//! programs).

use std::sync::Arc;

use log::Level;
use prometheus::{Gauge, IntCounterVec, IntGauge};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::config::document::{Diagnostic, Document};
use crate::log::events;
use crate::time::UnixTime;

/// The outcome of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new configuration is active.
    Applied,
    /// The new configuration equals the active one.
    Unchanged,
    /// The new configuration has these errors; the earlier one stays active.
    Refused(Vec<Diagnostic>),
    /// The reload panicked; the earlier configuration stays active.
    Failed,
}

impl Reload {
    /// Its name in metrics and responses.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused(_) => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Runs a step of a reload on a blocking thread: parsing a large directory is slow. `None` if it
/// panicked.
pub async fn run_blocking<S: Send + Sync + 'static, T: Send + 'static>(
    state: &Arc<S>,
    work: impl FnOnce(&S) -> T + Send + 'static,
) -> Option<T> {
    let state = state.clone();
    tokio::task::spawn_blocking(move || work(&state)).await.ok()
}

/// The reloads of a program: one at a time, each counted and logged.
#[derive(Debug)]
pub struct Reloads {
    running: Mutex<()>,
    outcomes: IntCounterVec,
    was_successful: IntGauge,
    applied_at: Gauge,
}

impl Reloads {
    /// Counts outcomes, and shows whether the last reload succeeded and when one was applied.
    #[must_use]
    pub fn new(outcomes: &IntCounterVec, was_successful: &IntGauge, applied_at: &Gauge) -> Self {
        for outcome in ["applied", "unchanged", "refused", "failed"] {
            drop(outcomes.with_label_values(&[outcome]));
        }
        Self {
            running: Mutex::default(),
            outcomes: outcomes.clone(),
            was_successful: was_successful.clone(),
            applied_at: applied_at.clone(),
        }
    }

    /// Runs a reload after those before it. `None` means that it panicked, and left the earlier
    /// configuration active.
    pub async fn run(&self, reload: impl Future<Output = Option<Reload>>) -> Reload {
        let _running = self.running.lock().await;
        let outcome = reload.await.unwrap_or(Reload::Failed);
        self.outcomes.with_label_values(&[outcome.word()]).inc();
        let was_successful = matches!(outcome, Reload::Applied | Reload::Unchanged);
        self.was_successful.set(i64::from(was_successful));
        match &outcome {
            Reload::Applied => events::event(Level::Info, "configuration reloaded", &[]),
            Reload::Unchanged => events::event(Level::Info, "configuration unchanged", &[]),
            Reload::Refused(diagnostics) => {
                let problems: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
                let message = "configuration refused; the earlier one stays active";
                events::event(Level::Error, message, &[("problems", json!(problems))]);
            }
            Reload::Failed => {
                let message = "configuration reload failed; the earlier one stays active";
                events::event(Level::Error, message, &[]);
            }
        }
        outcome
    }

    /// Shows in the metrics that a configuration is active since `now`.
    pub fn applied(&self, now: UnixTime) {
        self.was_successful.set(1);
        self.applied_at.set((now.0 / 1_000_000) as f64);
    }
}

/// Those of `keys` whose values differ between two configurations, each given as
/// [`Parsed::effective`](crate::config::document::Parsed). A key leads into each table of an array;
/// the order of these tables, and how often one value is in them, make no difference.
#[must_use]
pub fn changed(keys: &[&'static str], old: &Value, new: &Value) -> Vec<&'static str> {
    let differs = |key: &&&'static str| values(old, key) != values(new, key);
    keys.iter().filter(differs).copied().collect()
}

fn values(settings: &Value, key: &str) -> Vec<String> {
    let (step, rest) = key.split_once('.').map_or((key, None), |(step, rest)| (step, Some(rest)));
    let found = &settings[step];
    let Some(rest) = rest else { return vec![found.to_string()] };
    let Value::Array(entries) = found else { return values(found, rest) };
    let mut all: Vec<String> = entries.iter().flat_map(|entry| values(entry, rest)).collect();
    all.sort();
    all.dedup();
    all
}

/// The errors for changed keys that a reload cannot apply, each at its place; `how` names what can.
#[must_use]
pub fn restart_needed(document: &Document, keys: &[&str], how: &str) -> Vec<Diagnostic> {
    for key in keys {
        let message = format!("`{key}` changes only with {how}, not with a reload");
        document.fault(document.place(key), message);
    }
    document.diagnostics()
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    fn reloads() -> Reloads {
        let outcomes = IntCounterVec::new(Opts::new("reloads", "-"), &["outcome"]).unwrap();
        let gauge = IntGauge::new("good", "-").unwrap();
        Reloads::new(&outcomes, &gauge, &Gauge::new("applied", "-").unwrap())
    }

    #[tokio::test]
    async fn outcomes_are_counted_and_the_last_one_is_shown() {
        let reloads = reloads();
        let refused = Reload::Refused(Vec::new());
        for (given, counted, good) in [
            (Some(Reload::Applied), "applied", 1),
            (Some(refused), "refused", 0),
            (Some(Reload::Unchanged), "unchanged", 1),
            (None, "failed", 0),
        ] {
            let outcome = reloads.run(async { given }).await;
            assert_eq!(outcome.word(), counted);
            assert_eq!(reloads.outcomes.with_label_values(&[counted]).get(), 1);
            assert_eq!(reloads.was_successful.get(), good, "{counted}");
        }
    }

    #[tokio::test]
    async fn reloads_run_one_after_another() {
        let (reloads, order) = (reloads(), std::sync::Mutex::new(Vec::new()));
        let reload = |name: &'static str| {
            let order = &order;
            reloads.run(async move {
                order.lock().unwrap().push(name);
                tokio::task::yield_now().await;
                order.lock().unwrap().push(name);
                None
            })
        };
        tokio::join!(reload("first"), reload("second"));
        assert_eq!(*order.lock().unwrap(), ["first", "first", "second", "second"]);
    }

    #[test]
    fn what_changed_is_found_by_its_key_within_entries_too() {
        let old = json!({"server": {"http": ["a", "b"], "https": [
            {"address": "x", "certificate": "1"}, {"address": "y"}, {"address": "y"},
        ]}, "store": {"path": "p"}});
        let keys = ["server.http", "server.https.address", "server.threads", "store"];
        assert!(changed(&keys, &old, &old).is_empty());
        let mut new = old.clone();
        new["server"]["https"] = json!([{"address": "y"}, {"address": "x", "certificate": "2"}]);
        assert!(changed(&keys, &old, &new).is_empty());
        new["server"]["https"][0]["address"] = json!("z");
        new["server"]["http"] = json!(["b", "a"]);
        new["server"]["threads"] = json!(3);
        new["store"]["path"] = json!("q");
        assert_eq!(changed(&keys, &old, &new), keys);
    }
}
