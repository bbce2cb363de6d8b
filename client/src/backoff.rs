//! Decides how long a refused call waits before it is repeated. (core)
//!
//! # Invariants
//!
//! 1. A wait is never shorter than the response's `Retry-After`.
//! 2. Without one, wait *n* is 2ⁿ seconds, 30 at most, times 0.8 to 1.2.
//! 3. A wait that does not fit the budget is not begun.
//!
//! Not here: which responses are refusals that may be repeated (`call`), the waiting (`client`).

use std::time::{Duration, UNIX_EPOCH};

use weir_common::time::{Moment, Tick};

/// The longest exponential wait, before jitter: the contract's.
const BASE_MAX: Duration = Duration::from_secs(30);

/// Tries of one call: the waits between them add up to about a minute.
pub const TRIES_MAX: u32 = 6;

/// The longest `Retry-After` that is understood; a longer one exceeds every budget.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// What a refused call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waits until then, and is repeated.
    Again(Tick),
    /// Ends: the call would have to wait so long, which its budget does not allow.
    GiveUp(Duration),
}

/// What a refused call does. `attempt` counts from 0, `dice` is any random number, `until` is
/// where the call's budget ends.
#[must_use]
pub fn next(attempt: u32, retry_after: Option<&str>, dice: u64, now: Moment, until: Tick) -> Next {
    let asked = retry_after.and_then(|text| seconds(text, now)).unwrap_or_default();
    let wait = asked.max(jittered(attempt, dice));
    let at = now.tick.plus(wait);
    if attempt + 1 >= TRIES_MAX || at > until { Next::GiveUp(wait) } else { Next::Again(at) }
}

/// 2ⁿ seconds, 30 at most, times 0.8 to 1.2.
fn jittered(attempt: u32, dice: u64) -> Duration {
    let base = Duration::from_secs(1 << attempt.min(5)).min(BASE_MAX);
    let share = (dice % 4_001) as u32;
    base * (8_000 + share) / 10_000
}

/// The value of `Retry-After`: seconds, or a date.
fn seconds(text: &str, now: Moment) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than a number holds are a wait beyond every budget.
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let since = date.duration_since(UNIX_EPOCH).ok()?;
    let now = Duration::from_micros(now.unix.0);
    Some(since.saturating_sub(now).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_common::time::UnixTime;

    use super::*;

    const NOON: u64 = 1_795_608_000_000_000;

    fn moment(tick: u64) -> Moment {
        Moment { tick: Tick(tick), unix: UnixTime(NOON) }
    }

    fn wait(attempt: u32, retry_after: Option<&str>, dice: u64) -> Duration {
        match next(attempt, retry_after, dice, moment(0), Tick(u64::MAX)) {
            Next::Again(at) => at.since(Tick(0)),
            Next::GiveUp(wait) => wait,
        }
    }

    #[test]
    fn waits_double_to_thirty_seconds() {
        let middle = |attempt| wait(attempt, None, 2_000).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 99].map(middle), [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn the_jitter_reaches_both_ends_and_no_further() {
        assert_eq!(wait(0, None, 0), Duration::from_millis(800));
        assert_eq!(wait(0, None, 4_000), Duration::from_millis(1_200));
        assert_eq!(wait(0, None, 4_001), Duration::from_millis(800));
    }

    #[test]
    fn retry_after_may_be_seconds_or_a_date() {
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_micros(NOON + 45_000_000));
        assert_eq!(wait(0, Some(&date), 0), Duration::from_secs(45));
        assert_eq!(wait(0, Some(" 45 "), 0), Duration::from_secs(45));
        for nothing in ["", "soon", "-5", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(wait(0, Some(nothing), 0), Duration::from_millis(800), "{nothing}");
        }
        assert_eq!(wait(0, Some(&"9".repeat(40)), 0), RETRY_AFTER_MAX);
    }

    #[test]
    fn the_last_try_and_a_wait_beyond_the_budget_give_up() {
        let until = Tick(50_000_000);
        let second = Duration::from_secs(1);
        let last = next(TRIES_MAX - 1, Some("1"), 0, moment(0), until);
        assert!(matches!(last, Next::GiveUp(wait) if wait > second));
        let fits = next(0, Some("50"), 0, moment(0), until);
        assert_eq!(fits, Next::Again(until));
        let exceeds = next(0, Some("51"), 0, moment(0), until);
        assert_eq!(exceeds, Next::GiveUp(51 * second));
        assert!(matches!(next(0, Some("50"), 0, moment(1), until), Next::GiveUp(_)));
    }

    proptest! {
        #[test]
        fn a_wait_obeys_both_rules(attempt in 0..200_u32, asked in 0..100_000_u64, dice: u64) {
            let waited = wait(attempt, Some(&asked.to_string()), dice);
            let base = Duration::from_secs(2_u64.saturating_pow(attempt)).min(BASE_MAX);
            prop_assert!(waited >= Duration::from_secs(asked));
            prop_assert!(waited >= base * 8 / 10);
            prop_assert!(waited <= Duration::from_secs(asked).max(base * 12 / 10));
        }

        #[test]
        fn no_wait_ends_after_the_budget(
            attempt in 0..20_u32, asked in 0..200_u64, dice: u64, now in 0..90_000_000_u64,
        ) {
            let until = Tick(60_000_000);
            if let Next::Again(at) =
                next(attempt, Some(&asked.to_string()), dice, moment(now), until)
            {
                prop_assert!(at <= until && at > Tick(now));
            }
        }

        #[test]
        fn no_text_of_a_server_panics(text in ".{0,60}", dice: u64) {
            prop_assert!(wait(0, Some(&text), dice) >= Duration::from_millis(800));
        }
    }
}
