//! Limits the tests that a workspace sends: each is a request that it has us make at once.
//!
//! # Invariants
//!
//! 1. Memory grows with the workspaces that sent a test within the last minute, not with all that
//!    ever did.
//! 2. At most [`AT_ONCE_MAX`] calls wait for receivers, of all workspaces together, and at most
//!    [`OF_WORKSPACE_MAX`] of each. The last [`RESERVED`] are for workspaces without one: those
//!    with silent receivers leave room for the first call of others.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::{Log, RollingQuota};
use weir_common::time::Tick;

use crate::api::ApiRequest;

const WINDOW: Duration = Duration::from_secs(60);

/// Fewer workspaces than this are not worth looking through.
const KEPT_MIN: usize = 1_024;

/// Calls of URLs that wait for their receivers at one time, not counting deliveries: each takes a
/// connection for ten seconds at most, and a workspace sends few.
const AT_ONCE_MAX: usize = 128;

/// As many as a person tries out at one time, in two or three windows.
const OF_WORKSPACE_MAX: usize = 4;

/// A quarter: 24 workspaces that use all of theirs take the others.
const RESERVED: usize = 32;

/// The tests of each workspace, and the calls that wait.
#[derive(Debug, Default)]
pub(super) struct TestLimit {
    sent: Mutex<Sent>,
    in_flight: Mutex<TestsInFlight>,
}

/// The calls that wait for receivers.
#[derive(Debug, Default)]
struct TestsInFlight {
    all: usize,
    by_workspace: HashMap<String, usize>,
}

/// A call that may wait for its receiver.
#[derive(Debug)]
pub(super) struct TestPermit<'c> {
    in_flight: &'c Mutex<TestsInFlight>,
    workspace: &'c str,
}

#[derive(Debug, Default)]
struct Sent {
    by_workspace: HashMap<String, Log>,
    /// How many workspaces remained when idle ones were last dropped.
    kept: usize,
}

impl TestLimit {
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

    /// Admits a call of a workspace for as long as the permit is held, or refuses it.
    pub(super) fn permit<'c>(&'c self, workspace: &'c str) -> Result<TestPermit<'c>, Reply> {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let own = in_flight.by_workspace.get(workspace).copied().unwrap_or(0);
        if own >= OF_WORKSPACE_MAX {
            return Err(too_many_in_flight());
        }
        if in_flight.all >= AT_ONCE_MAX || (own > 0 && in_flight.all >= AT_ONCE_MAX - RESERVED) {
            return Err(problems::busy("Too many tests wait for their receivers."));
        }
        in_flight.all += 1;
        in_flight.by_workspace.insert(workspace.to_owned(), own + 1);
        Ok(TestPermit { in_flight: &self.in_flight, workspace })
    }
}

impl Drop for TestPermit<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.all -= 1;
        if let Some(own) = in_flight.by_workspace.get_mut(self.workspace) {
            *own -= 1;
            if *own == 0 {
                in_flight.by_workspace.remove(self.workspace);
            }
        }
    }
}

fn too_many_in_flight() -> Reply {
    let detail = format!(
        "{OF_WORKSPACE_MAX} tests of this workspace wait for their receivers; try again when one \
         has ended."
    );
    problems::refusal(429, "too-many-tests", "Too many tests", detail).with("retry-after", "1")
}

/// Counts a test of the request's workspace, or refuses it.
pub(super) fn charged(request: &ApiRequest<'_>) -> Result<(), Reply> {
    let most = request.active.settings.webhooks.checks_per_minute;
    let charged =
        request.test_limit.charge(request.workspace, most, request.state.clock.now().tick);
    charged.map_err(|wait| {
        let seconds = seconds(wait);
        let detail =
            format!("A workspace sends at most {most} tests a minute; try again in {seconds} s.");
        problems::refusal(429, "too-many-tests", "Too many tests", detail)
            .with("retry-after", seconds.to_string())
    })
}

/// Refuses a test that the rate limits of its receiver do not admit for so long.
pub(super) fn receiver_limited(wait: Duration) -> Reply {
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
        let limit = TestLimit::default();
        let charge = |workspace, seconds| limit.charge(workspace, 2, at(seconds));
        assert_eq!((charge("ws_a", 0), charge("ws_a", 10)), (Ok(()), Ok(())));
        assert_eq!(charge("ws_a", 11), Err(Duration::from_secs(49)));
        assert_eq!(charge("ws_b", 11), Ok(()));
        assert_eq!(charge("ws_a", 60), Ok(()), "what was refused does not count");
        assert_eq!(charge("ws_a", 61), Err(Duration::from_secs(9)));
        // A reload may change the limit.
        assert_eq!(limit.charge("ws_a", 3, at(61)), Ok(()));
    }

    #[test]
    fn a_workspace_has_few_calls_that_wait_and_others_have_room() {
        let limit = TestLimit::default();
        let names: Vec<String> = (0..AT_ONCE_MAX).map(|nth| format!("ws_{nth}")).collect();
        // The worst: each workspace has as many silent receivers as it is admitted.
        let mut held = Vec::new();
        for name in &names {
            held.extend((0..AT_ONCE_MAX).map_while(|_| limit.permit(name).ok()));
        }
        let of = |name: &str, held: &[TestPermit<'_>]| {
            held.iter().filter(|permit| permit.workspace == name).count()
        };
        assert_eq!((held.len(), of("ws_0", &held)), (AT_ONCE_MAX, OF_WORKSPACE_MAX));
        let full = (AT_ONCE_MAX - RESERVED) / OF_WORKSPACE_MAX;
        assert_eq!(of(&names[full - 1], &held), OF_WORKSPACE_MAX);
        assert_eq!([of(&names[full], &held), of(&names[full + RESERVED - 1], &held)], [1, 1]);
        let status = |name| limit.permit(name).map(drop).map_err(|reply| reply.status);
        assert_eq!(status("ws_0"), Err(429));
        assert_eq!(status("ws_late"), Err(503));
        held.retain(|permit| permit.workspace != "ws_0");
        assert_eq!([status("ws_late"), status("ws_0")], [Ok(()), Ok(())]);
        drop(held);
        let in_flight = limit.in_flight.lock().unwrap();
        assert_eq!(
            (in_flight.all, in_flight.by_workspace.len()),
            (0, 0),
            "nothing is left of them"
        );
    }

    #[test]
    fn idle_workspaces_are_dropped() {
        let limit = TestLimit::default();
        for nth in 0..10 * KEPT_MIN {
            let now = at(nth as u64);
            assert_eq!(limit.charge(&format!("ws_{nth}"), 1, now), Ok(()));
        }
        assert!(limit.sent.lock().unwrap().by_workspace.len() <= KEPT_MIN);
    }
}
