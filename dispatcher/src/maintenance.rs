//! Background work: redelivery jobs, retention, the operator's webhook.
//!
//! Invariant: each is a loop of short steps, so that other calls of the store wait briefly.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::json;
use tokio::sync::Notify;
use weir_common::log::events;
use weir_common::time::{Clock, Moment};

use crate::config::settings::OperatorEndpoint;
use crate::live_config::ActiveConfig;
use crate::mailbox::Mailbox;
use crate::store::Upkeep;

/// Deliveries that a job requeues per step: a commit of some milliseconds.
const JOB_STEP: usize = 500;

/// The pause between two steps of a job, in which other writes go first.
const JOB_PAUSE: Duration = Duration::from_millis(20);

/// The wait after a failed step.
const JOB_RETRY: Duration = Duration::from_secs(1);

/// The interval between checks of `[operator]`, and the wait after an error.
const OPERATOR_EVERY: Duration = Duration::from_secs(1);

/// Deliveries dropped per step.
const SWEEP_STEP: usize = 500;

/// The shortest pause between two steps of retention. A pause is as long as the step before it, so
/// that other calls have half of the store's time.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(5);

/// The interval between checks for deliveries to drop.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// A clock that is slewed, not stepped, drifts less than this between two checks.
const CLOCK_DRIFT_MAX: Duration = Duration::from_secs(60);

/// Runs redelivery jobs.
pub async fn jobs(store: Arc<dyn Upkeep>, clock: Clock, mailbox: Mailbox, more: Arc<Notify>) {
    loop {
        match store.step_job(JOB_STEP, clock.now().unix).await {
            Ok(step) => {
                for webhook in step.webhooks {
                    mailbox.changed(webhook);
                }
                if step.more {
                    tokio::time::sleep(JOB_PAUSE).await;
                } else {
                    more.notified().await;
                }
            }
            Err(error) => {
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Error, "job delayed", &fields);
                tokio::time::sleep(JOB_RETRY).await;
            }
        }
    }
}

/// Applies changes of `[operator]` to the store; `applied` is what it has.
pub async fn operator(
    store: Arc<dyn Upkeep>,
    clock: Clock,
    active: Arc<ArcSwap<ActiveConfig>>,
    mailbox: Mailbox,
    mut applied: Option<OperatorEndpoint>,
) {
    loop {
        tokio::time::sleep(OPERATOR_EVERY).await;
        let wanted = active.load().settings.operator_endpoint().cloned();
        if wanted == applied {
            continue;
        }
        match store.set_operator(wanted.clone(), clock.now().unix).await {
            Ok(changed) => {
                applied = wanted;
                changed.into_iter().for_each(|webhook| mailbox.changed(webhook));
            }
            Err(error) => {
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Error, "operator URL not applied yet", &fields);
            }
        }
    }
}

/// Drops deliveries after their retention.
pub async fn retention(store: Arc<dyn Upkeep>, clock: Clock, active: Arc<ArcSwap<ActiveConfig>>) {
    let mut last = clock.now();
    loop {
        let began = clock.now();
        if let Some(seconds) = clock_set(std::mem::replace(&mut last, began), began) {
            let fields = [
                ("seconds", json!(seconds)),
                ("advice", json!("retention counts elapsed time, so nothing is dropped early")),
            ];
            events::event(Level::Warn, "wall clock stepped", &fields);
        }
        let retention = active.load().settings.retention;
        match store.sweep(&retention, began.unix, SWEEP_STEP).await {
            Ok(true) => {
                let took = clock.now().tick.since(began.tick);
                tokio::time::sleep(took.max(SWEEP_PAUSE_MIN)).await;
            }
            Ok(false) => tokio::time::sleep(SWEEP_EVERY).await,
            Err(error) => {
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Warn, "retention delayed", &fields);
                tokio::time::sleep(SWEEP_EVERY).await;
            }
        }
    }
}

/// By how many seconds the wall clock stepped between two moments, if it did.
fn clock_set(before: Moment, now: Moment) -> Option<i64> {
    let passed = now.tick.since(before.tick);
    let expected = before.unix.plus(passed);
    let ahead = now.unix.since(expected).as_secs().cast_signed();
    let seconds = ahead - expected.since(now.unix).as_secs().cast_signed();
    (seconds.unsigned_abs() >= CLOCK_DRIFT_MAX.as_secs()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;

    #[test]
    fn a_stepped_clock_is_noticed_once_and_an_adjusted_one_is_not() {
        let start = UnixTime(1_790_000_000_000_000);
        let clock = Clock::manual(start);
        let mut last = clock.now();
        let mut look =
            |clock: &Clock| clock_set(std::mem::replace(&mut last, clock.now()), clock.now());
        clock.advance(Duration::from_secs(30));
        assert_eq!(look(&clock), None);
        let ahead = Duration::from_secs(40 * 86_400);
        clock.set(clock.now().unix.plus(ahead));
        assert_eq!(look(&clock), Some(3_456_000));
        clock.advance(Duration::from_secs(30));
        assert_eq!(look(&clock), None);
        clock.set(start);
        assert_eq!(look(&clock), Some(-3_456_060));
        clock.set(start.plus(Duration::from_secs(59)));
        assert_eq!(look(&clock), None);
    }
}
