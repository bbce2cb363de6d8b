//! How an attempt ended, as far as its endpoint is concerned.

use std::time::Duration;

use crate::domain::outcome::{Failure, Fault, Outcome};

/// An attempt that takes more than one part in so many of the deadline is slow. At the default pace
/// and deadline, an endpoint that is quicker has four attempts under way on average.
const SLOW: u32 = 4;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Responsiveness {
    /// The receiver answered, or said that it would not, without delay.
    Prompt,
    /// It did so after a good part of the deadline.
    Slow,
    /// It kept the connection until the deadline.
    TimedOut,
    /// It was not reached: nothing answered for its host's name.
    Unresolved,
}

impl Responsiveness {
    /// As the outcome has it, of an attempt that took so long of what it might have.
    #[must_use]
    pub(super) fn of(outcome: &Outcome, took: Duration, deadline: Duration) -> Self {
        match outcome {
            Outcome::Failed(Failure::Timeout) => Self::TimedOut,
            Outcome::Internal(Fault::Resolver) => Self::Unresolved,
            _ if took > deadline / SLOW => Self::Slow,
            _ => Self::Prompt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_good_part_of_the_deadline_is_slow_however_well_it_ends() {
        let by = |outcome, ms| {
            let (took, deadline) = (Duration::from_millis(ms), Duration::from_secs(10));
            Responsiveness::of(&outcome, took, deadline)
        };
        let well = || Outcome::of_status(200);
        assert_eq!(by(well(), 2_500), Responsiveness::Prompt);
        assert_eq!(by(well(), 2_501), Responsiveness::Slow);
        assert_eq!(by(well(), 9_900), Responsiveness::Slow);
        assert_eq!(by(Outcome::of_status(500), 9_900), Responsiveness::Slow);
        assert_eq!(by(Outcome::Failed(Failure::Timeout), 10_000), Responsiveness::TimedOut);
        assert_eq!(by(Outcome::Internal(Fault::Resolver), 2_000), Responsiveness::Unresolved);
        assert_eq!(by(Outcome::Internal(Fault::Resources), 0), Responsiveness::Prompt);
    }
}
