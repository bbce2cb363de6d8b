//! Says when keys are fetched: at first, now and then, and soon where one was missing. (core)
//!
//! # Invariants
//!
//! 1. Whatever strangers send, two fetches begin [`AGAIN_AFTER`] apart at least.
//! 2. While the server is down nobody waits for it, and it is asked less and less often until
//!    somebody needs it.
//!
//! # Not here
//!
//! Fetching them (`caller::keyring`).

use std::time::Duration;

use weir_common::time::Tick;

/// Between two fetches, whoever asks for one. A token that is signed with a key of a moment ago
/// is then verified within the shipped `timeout`, and a few KiB a second is no load for a server.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Between two fetches that failed, at most, where nobody needs one.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// What is known of the fetches so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refresh {
    /// When the last one began.
    began: Option<Tick>,
    /// How many have begun.
    count: u64,
    /// How many have failed in a row.
    failures: u32,
    /// Whether somebody needs one since then.
    wanted: bool,
}

/// What somebody who needs a key that we do not have can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hope {
    /// Wait for the fetch that comes.
    Wait,
    /// Nothing: the last one failed.
    Lost,
}

/// What has changed with a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It goes on as it did.
    Same,
    /// The first that failed.
    Failed,
    /// The first that did not.
    Recovered,
}

impl Refresh {
    /// When the next fetch is due, where all is well every `every`.
    pub(super) fn due(&self, every: Duration) -> Tick {
        let Some(began) = self.began else { return Tick(0) };
        let calm = match self.failures {
            0 => every,
            failures => {
                let doubled = AGAIN_AFTER.saturating_mul(1 << (failures - 1).min(16));
                doubled.min(AGAIN_MAX).min(every)
            }
        };
        began.plus(if self.wanted { calm.min(AGAIN_AFTER) } else { calm }.max(AGAIN_AFTER))
    }

    /// Somebody needs a key that we do not have.
    pub(super) fn want(&mut self) -> Hope {
        self.wanted = true;
        if self.failures == 0 { Hope::Wait } else { Hope::Lost }
    }

    /// Whether the last fetch was good.
    pub(super) fn is_well(&self) -> bool {
        self.failures == 0
    }

    /// How many fetches have begun.
    pub(super) fn begun(&self) -> u64 {
        self.count
    }

    /// A fetch begins, and this is its number. Who comes from now on may have come for what it
    /// does not bring yet.
    pub(super) fn begin(&mut self, now: Tick) -> u64 {
        self.began = Some(now);
        self.wanted = false;
        self.count += 1;
        self.count
    }

    /// It is over.
    pub(super) fn end(&mut self, good: bool) -> Turn {
        let before = self.failures;
        self.failures = if good { 0 } else { before.saturating_add(1) };
        match (before, good) {
            (0, false) => Turn::Failed,
            (1.., true) => Turn::Recovered,
            _ => Turn::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(600);

    /// Seconds after the last fetch began at which the next is due.
    fn pause(refresh: &Refresh) -> u64 {
        refresh.due(EVERY).since(refresh.began.unwrap_or_default()).as_secs()
    }

    #[test]
    fn keys_are_fetched_at_once_then_now_and_then_and_soon_where_one_is_missing() {
        let mut refresh = Refresh::default();
        assert_eq!(refresh.due(EVERY), Tick(0));
        assert_eq!(refresh.begin(Tick(5_000_000)), 1);
        assert_eq!(refresh.end(true), Turn::Same);
        assert_eq!(pause(&refresh), 600);
        assert_eq!(refresh.want(), Hope::Wait);
        assert_eq!(pause(&refresh), 1);
        let _ = refresh.begin(Tick(6_000_000));
        let _ = refresh.end(true);
        assert_eq!(pause(&refresh), 600, "a want is over with the fetch that it led to");
    }

    #[test]
    fn a_server_that_is_down_is_asked_less_and_less_until_somebody_needs_it() {
        let mut refresh = Refresh::default();
        let mut pauses = Vec::new();
        let mut turns = Vec::new();
        for _ in 0..9 {
            let _ = refresh.begin(Tick(1));
            turns.push(refresh.end(false));
            pauses.push(pause(&refresh));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(turns.iter().filter(|turn| **turn != Turn::Same).count(), 1);
        assert_eq!(refresh.want(), Hope::Lost);
        assert_eq!(pause(&refresh), 1);
        let _ = refresh.begin(Tick(2));
        assert_eq!(refresh.end(true), Turn::Recovered);
        assert_eq!(refresh.want(), Hope::Wait);
    }

    #[test]
    fn a_short_refresh_is_no_shorter_than_what_strangers_can_bring_about() {
        let mut refresh = Refresh::default();
        let _ = refresh.begin(Tick(0));
        assert_eq!(refresh.due(Duration::from_millis(1)), Tick(0).plus(AGAIN_AFTER));
        let _ = (refresh.end(false), refresh.want());
        assert_eq!(refresh.due(Duration::from_millis(1)), Tick(0).plus(AGAIN_AFTER));
    }

    #[test]
    fn whatever_is_wanted_two_fetches_begin_a_second_apart() {
        let mut refresh = Refresh::default();
        let mut began = Vec::new();
        for millis in (0..20_000_u64).step_by(7) {
            let now = Tick(millis * 1_000);
            let _ = refresh.want();
            if now >= refresh.due(EVERY) {
                let _ = refresh.begin(now);
                let _ = refresh.end(!millis.is_multiple_of(3));
                began.push(now);
            }
        }
        assert!((19..=20).contains(&began.len()), "{}", began.len());
        assert!(began.windows(2).all(|two| two[1].since(two[0]) >= AGAIN_AFTER));
    }
}
