//! What the operators' screen shows of the last hour: counters that exist already, sampled every
//! few seconds, so that a request does nothing for it.
//!
//! Invariant: names of boosted keys are as many as there are boosts.
//!
//! Not here: how it is shown (`admin::screen`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_common::metrics::{buckets, by_label};
use weir_common::pages::history::{History, SAMPLE_EVERY, Sample};
use weir_common::time::{Moment, Tick};

use crate::config::shared::Shared;
use crate::limit::key::Key;

/// Classes of responses in charts: the name of each, and its codes.
pub(super) const ANSWERS: [&str; 4] = ["2xx, 3xx", "4xx", "429", "5xx"];

/// What limits decide.
pub(super) const DECISIONS: [&str; 3] = ["admitted", "would refuse", "refused"];

/// How requests fail at upstreams: by their label in metrics.
pub(super) const FAILURES: [&str; 2] = ["connect", "answer"];

/// The limit and the name of a key.
pub(super) type Boosted = (Arc<str>, Arc<str>);

/// The memory of the operators' screen.
pub struct Watch {
    /// When the process started.
    pub(super) started: Tick,
    hour: Mutex<History>,
    /// The names of keys that were boosted here: boosts have only a hash.
    boosted: Mutex<HashMap<Key, Boosted>>,
}

impl Watch {
    /// Nothing sampled yet.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        let hour = Mutex::new(History::of_an_hour());
        Self { started: now.tick, hour, boosted: Mutex::default() }
    }

    pub(super) fn hour(&self) -> MutexGuard<'_, History> {
        self.hour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the name of a key that was boosted; those whose boost has ended are forgotten.
    pub(super) fn name_boosted(&self, key: Key, boosted: Boosted, shared: &Shared) {
        let now = shared.clock.now().tick;
        let mut names = self.boosted.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|key, _| shared.limiter.boosts.of(*key, now).is_some());
        names.insert(key, boosted);
    }

    /// The name of a boosted key, if it was boosted here or is a busy one.
    pub(super) fn boosted(&self, key: Key, shared: &Shared) -> Option<Boosted> {
        let names = self.boosted.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&key).cloned().or_else(|| shared.top.label(key))
    }

    /// Takes a sample every few seconds.
    pub async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        loop {
            let now = shared.clock.now().tick;
            self.hour().add(sample(&shared), now);
            tokio::time::sleep(SAMPLE_EVERY).await;
        }
    }
}

/// The class of a response by its status.
fn answer(status: &str) -> &'static str {
    match (status, status.as_bytes().first()) {
        ("429", _) => "429",
        (_, Some(b'4')) => "4xx",
        (_, Some(b'5')) => "5xx",
        _ => "2xx, 3xx",
    }
}

fn sample(shared: &Shared) -> Sample {
    let metrics = &shared.metrics;
    let mut sample = Sample::default();
    for (code, count) in by_label(&metrics.requests, "code") {
        sample.count(answer(&code), count);
    }
    for (kind, count) in by_label(&metrics.upstream_failures, "kind") {
        sample.count(format!("upstream {kind}"), count);
    }
    let active = shared.active.load();
    for (limit, meter) in active.rules.limits.iter().zip(&active.limits) {
        let counts = [meter.admit.get(), meter.would_refuse.get(), meter.refuse.get()];
        for (decision, count) in DECISIONS.into_iter().zip(counts) {
            sample.count(decision, count);
            sample.count(format!("{decision} by {}", limit.name), count);
        }
    }
    sample.level("in flight", metrics.in_flight.get() as f64);
    sample.level("connections", metrics.connections.get() as f64);
    sample.times("response", &buckets(&metrics.duration));
    let servers = || active.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let addresses = servers().map(|server| server.addresses().len());
    let healthy: usize = servers().map(|server| server.healthy()).sum();
    sample.level("healthy", healthy as f64);
    sample.level("not healthy", addresses.sum::<usize>().saturating_sub(healthy) as f64);
    sample.level("ejected", servers().map(|server| server.ejected()).sum::<usize>() as f64);
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_in_one_class() {
        let found = ["101", "200", "304", "400", "429", "499", "500", "504"].map(answer);
        let [fine, refused, limited, failed] = ANSWERS;
        assert_eq!(found, [fine, fine, fine, refused, limited, refused, failed, failed]);
    }
}
