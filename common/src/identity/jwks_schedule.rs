//! Decides when keys are fetched: at start, at intervals, and soon after one is missing. (core)
//!
//! # Invariants
//!
//! 1. Two fetches start at least [`AGAIN_AFTER`] apart, whatever unauthenticated clients send.
//! 2. While fetches fail no request waits for one, and their interval doubles up to [`AGAIN_MAX`]
//!    unless a request needs one.
//!
//! # Not here
//!
//! Fetching them (`jwks`).

use std::time::Duration;

use crate::time::Tick;

/// Least time between two fetches, however many requests need one. Short enough that a token
/// signed with a new key is verified within the shipped `timeout`; a few KiB a second are no load
/// for a server.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Most time between two failed fetches.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The state of the fetches so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    /// When the last one started.
    started_at: Option<Tick>,
    /// How many have started.
    count: u64,
    /// How many have failed in a row.
    failures: u32,
    /// Whether a request has needed one since then.
    wanted: bool,
}

/// What a request that needs a missing key can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// Wait for a fetch to end.
    Wait,
    /// Nothing: the last fetch failed.
    Failing,
}

/// What a fetch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchChange {
    /// Nothing: it succeeded or failed like the one before.
    Same,
    /// It is the first to fail.
    Failed,
    /// It is the first to succeed after failures.
    Recovered,
}

impl Schedule {
    /// When the next fetch is due: `every` after a success, sooner after a failure.
    pub(super) fn due(&self, every: Duration) -> Tick {
        let Some(started_at) = self.started_at else { return Tick(0) };
        let calm = match self.failures {
            0 => every,
            failures => {
                let doubled = AGAIN_AFTER.saturating_mul(1 << (failures - 1).min(16));
                doubled.min(AGAIN_MAX).min(every)
            }
        };
        started_at.plus(if self.wanted { calm.min(AGAIN_AFTER) } else { calm }.max(AGAIN_AFTER))
    }

    /// Records that a request needs a missing key.
    pub(super) fn want(&mut self) -> Outlook {
        self.wanted = true;
        if self.failures == 0 { Outlook::Wait } else { Outlook::Failing }
    }

    /// Whether the last fetch failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// How many fetches have started.
    pub(super) fn started(&self) -> u64 {
        self.count
    }

    /// Records that a fetch starts, and returns its number. A request from now on may need a key
    /// that this fetch does not return yet.
    pub(super) fn begin(&mut self, now: Tick) -> u64 {
        self.started_at = Some(now);
        self.wanted = false;
        self.count += 1;
        self.count
    }

    /// Records that the fetch has ended.
    pub(super) fn end(&mut self, good: bool) -> FetchChange {
        let before = self.failures;
        self.failures = if good { 0 } else { before.saturating_add(1) };
        match (before, good) {
            (0, false) => FetchChange::Failed,
            (1.., true) => FetchChange::Recovered,
            _ => FetchChange::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(600);

    /// Seconds from the start of the last fetch until the next is due.
    fn pause(schedule: &Schedule) -> u64 {
        schedule.due(EVERY).since(schedule.started_at.unwrap_or_default()).as_secs()
    }

    #[test]
    fn keys_are_fetched_at_once_then_now_and_then_and_soon_where_one_is_missing() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.due(EVERY), Tick(0));
        assert_eq!(schedule.begin(Tick(5_000_000)), 1);
        assert_eq!(schedule.end(true), FetchChange::Same);
        assert_eq!(pause(&schedule), 600);
        assert_eq!(schedule.want(), Outlook::Wait);
        assert_eq!(pause(&schedule), 1);
        let _ = schedule.begin(Tick(6_000_000));
        let _ = schedule.end(true);
        assert_eq!(pause(&schedule), 600, "a want is over with the fetch that it led to");
    }

    #[test]
    fn fetches_from_a_server_that_is_down_become_rare_until_a_request_needs_one() {
        let mut schedule = Schedule::default();
        let mut pauses = Vec::new();
        let mut turns = Vec::new();
        for _ in 0..9 {
            let _ = schedule.begin(Tick(1));
            turns.push(schedule.end(false));
            pauses.push(pause(&schedule));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(turns.iter().filter(|turn| **turn != FetchChange::Same).count(), 1);
        assert_eq!(schedule.want(), Outlook::Failing);
        assert_eq!(pause(&schedule), 1);
        let _ = schedule.begin(Tick(2));
        assert_eq!(schedule.end(true), FetchChange::Recovered);
        assert_eq!(schedule.want(), Outlook::Wait);
    }

    #[test]
    fn a_short_refresh_is_no_shorter_than_what_unknown_clients_can_bring_about() {
        let mut schedule = Schedule::default();
        let _ = schedule.begin(Tick(0));
        assert_eq!(schedule.due(Duration::from_millis(1)), Tick(0).plus(AGAIN_AFTER));
        let _ = (schedule.end(false), schedule.want());
        assert_eq!(schedule.due(Duration::from_millis(1)), Tick(0).plus(AGAIN_AFTER));
    }

    #[test]
    fn two_fetches_start_at_least_a_second_apart() {
        let mut schedule = Schedule::default();
        let mut started_at = Vec::new();
        for millis in (0..20_000_u64).step_by(7) {
            let now = Tick(millis * 1_000);
            let _ = schedule.want();
            if now >= schedule.due(EVERY) {
                let _ = schedule.begin(now);
                let _ = schedule.end(!millis.is_multiple_of(3));
                started_at.push(now);
            }
        }
        assert!((19..=20).contains(&started_at.len()), "{}", started_at.len());
        assert!(started_at.windows(2).all(|two| two[1].since(two[0]) >= AGAIN_AFTER));
    }
}
