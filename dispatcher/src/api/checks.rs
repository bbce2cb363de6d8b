//! Limits the tests that a workspace sends: each is a request that it has us make at once.
//!
//! # Invariants
//!
//! 1. Memory grows with the workspaces that sent a test within the last minute, not with all that
//!    ever did.
//! 2. At most [`AT_ONCE_MAX`] calls wait for receivers, of all workspaces together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::{Log, RollingQuota};
use weir_common::time::Tick;

use crate::api::ApiRequest;

const WINDOW: Duration = Duration::from_secs(60);

/// Fewer workspaces than this are not worth looking through.
const KEPT_MIN: usize = 1_024;

/// Calls of URLs that wait for their receivers at one time, beside deliveries: each takes a
/// connection for ten seconds at most, and a workspace sends few.
const AT_ONCE_MAX: usize = 128;

/// The tests of each workspace, and the calls that wait.
#[derive(Debug)]
pub(super) struct Checks {
    sent: Mutex<Sent>,
    free: Semaphore,
}

impl Default for Checks {
    fn default() -> Self {
        Self { sent: Mutex::default(), free: Semaphore::new(AT_ONCE_MAX) }
    }
}

#[derive(Debug, Default)]
struct Sent {
    by_workspace: HashMap<String, Log>,
    /// How many workspaces remained when idle ones were last dropped.
    kept: usize,
}

impl Checks {
    /// Counts a test, or returns the time until the workspace may send one.
    pub(super) fn charge(&self, workspace: &str, most: u32, now: Tick) -> Result<(), Duration> {
        let quota = RollingQuota { requests: most, window: WINDOW };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.drop_idle(quota, now);
        let log = sent.by_workspace.entry(workspace.to_owned()).or_default();
        match log.decide(quota, 1, now) {
            Decision::Admit => {
                let _ = log.charge(quota, 1, now);
                Ok(())
            }
            Decision::Refuse { retry_at } => Err(retry_at.since(now)),
            Decision::TooLarge => Err(WINDOW),
        }
    }

    /// Admits a call for as long as the permit is held, or refuses it.
    pub(super) fn permit(&self) -> Result<SemaphorePermit<'_>, Reply> {
        self.free.try_acquire().map_err(|_| problems::busy("Too many checks wait for receivers."))
    }
}

/// Counts a test of the request's workspace, or refuses it.
pub(super) fn charged(request: &ApiRequest<'_>) -> Result<(), Reply> {
    let most = request.active.settings.webhooks.checks_per_minute;
    let charged = request.checks.charge(request.workspace, most, request.state.clock.now().tick);
    charged.map_err(|wait| {
        let seconds = seconds(wait);
        let detail =
            format!("A workspace sends at most {most} tests a minute; try again in {seconds} s.");
        problems::refusal(429, "too-many-tests", "Too many tests", detail)
            .with("retry-after", seconds.to_string())
    })
}

/// Refuses a test that the rate limits of its receiver do not admit for so long.
pub(super) fn paced(wait: Duration) -> Reply {
    let seconds = seconds(wait);
    let detail = format!(
        "This URL, or its host, is called as often as it may be; try again in {seconds} s."
    );
    problems::refusal(429, "paced", "The receiver is called often enough", detail)
        .with("retry-after", seconds.to_string())
}

fn seconds(wait: Duration) -> u128 {
    wait.as_micros().div_ceil(1_000_000)
}

impl Sent {
    /// Drops workspaces without a test in the window, whenever there are twice as many as before.
    fn drop_idle(&mut self, quota: RollingQuota, now: Tick) {
        if self.by_workspace.len() >= KEPT_MIN.max(2 * self.kept) {
            self.by_workspace.retain(|_, log| log.usage(quota, now).remaining < quota.requests);
            self.kept = self.by_workspace.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick(seconds * 1_000_000)
    }

    #[test]
    fn a_workspace_sends_so_many_a_minute_and_no_other_pays_for_it() {
        let checks = Checks::default();
        let charge = |workspace, seconds| checks.charge(workspace, 2, at(seconds));
        assert_eq!((charge("ws_a", 0), charge("ws_a", 10)), (Ok(()), Ok(())));
        assert_eq!(charge("ws_a", 11), Err(Duration::from_secs(49)));
        assert_eq!(charge("ws_b", 11), Ok(()));
        assert_eq!(charge("ws_a", 60), Ok(()), "what was refused does not count");
        assert_eq!(charge("ws_a", 61), Err(Duration::from_secs(9)));
        // A reload may change the limit.
        assert_eq!(checks.charge("ws_a", 3, at(61)), Ok(()));
    }

    #[test]
    fn few_calls_wait_at_one_time() {
        let checks = Checks::default();
        let mut held: Vec<_> = (0..AT_ONCE_MAX).map(|_| checks.permit().ok()).collect();
        assert!(held.iter().all(Option::is_some) && checks.permit().is_err());
        held.pop();
        assert!(checks.permit().is_ok());
    }

    #[test]
    fn idle_workspaces_are_dropped() {
        let checks = Checks::default();
        for nth in 0..10 * KEPT_MIN {
            let now = at(nth as u64);
            assert_eq!(checks.charge(&format!("ws_{nth}"), 1, now), Ok(()));
        }
        assert!(checks.sent.lock().unwrap().by_workspace.len() <= KEPT_MIN);
    }
}
