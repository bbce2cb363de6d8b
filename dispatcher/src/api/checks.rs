//! Limits the tests that a workspace sends: each is a request that it has us make at once.
//!
//! Invariant: memory grows with the workspaces that sent a test within the last minute, not with
//! all that ever did.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::{Log, RollingQuota};
use weir_common::time::Tick;

const WINDOW: Duration = Duration::from_secs(60);

/// Fewer workspaces than this are not worth looking through.
const KEPT_MIN: usize = 1_024;

/// The tests of each workspace.
#[derive(Debug, Default)]
pub(super) struct Checks(Mutex<Sent>);

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
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn idle_workspaces_are_dropped() {
        let checks = Checks::default();
        for nth in 0..10 * KEPT_MIN {
            let now = at(nth as u64);
            assert_eq!(checks.charge(&format!("ws_{nth}"), 1, now), Ok(()));
        }
        assert!(checks.0.lock().unwrap().by_workspace.len() <= KEPT_MIN);
    }
}
