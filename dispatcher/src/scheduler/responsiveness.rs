//! How fast a receiver responded to an attempt. (core)

use std::time::Duration;

use crate::domain::outcome::{Failure, Fault, Outcome};

/// An attempt is slow if it lasts longer than the deadline divided by this. At the default rate
/// limit and deadline, a faster endpoint has at most about four attempts in flight on average.
const SLOW: u32 = 4;

/// How fast a receiver responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Responsiveness {
    /// It responded, or refused the connection, without delay.
    Prompt,
    /// It responded, or refused the connection, after a large part of the deadline.
    Slow,
    /// It did not respond before the deadline.
    TimedOut,
    /// It was not called: the lookup of its name got no reply, or the proxy cannot be used.
    Unresolved,
}

impl Responsiveness {
    /// From an attempt's outcome, and its duration relative to the deadline.
    #[must_use]
    pub(super) fn of(outcome: &Outcome, took: Duration, deadline: Duration) -> Self {
        match outcome {
            Outcome::Failed(Failure::Timeout) => Self::TimedOut,
            Outcome::Internal(Fault::Resolver | Fault::Proxy) => Self::Unresolved,
            _ if took > deadline / SLOW => Self::Slow,
            _ => Self::Prompt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_attempt_is_slow_whatever_its_outcome() {
        let by = |outcome, ms| {
            let (took, deadline) = (Duration::from_millis(ms), Duration::from_secs(10));
            Responsiveness::of(&outcome, took, deadline)
        };
        let success = || Outcome::of_status(200);
        assert_eq!(by(success(), 2_500), Responsiveness::Prompt);
        assert_eq!(by(success(), 2_501), Responsiveness::Slow);
        assert_eq!(by(success(), 9_900), Responsiveness::Slow);
        assert_eq!(by(Outcome::of_status(500), 9_900), Responsiveness::Slow);
        assert_eq!(by(Outcome::Failed(Failure::Timeout), 10_000), Responsiveness::TimedOut);
        assert_eq!(by(Outcome::Internal(Fault::Resolver), 2_000), Responsiveness::Unresolved);
        assert_eq!(by(Outcome::Internal(Fault::Resources), 0), Responsiveness::Prompt);
    }
}
