//! Decides when a failed delivery is tried again.

use std::time::Duration;

use weir_common::time::UnixTime;

/// When attempts follow each other (DESIGN §1, 11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What the delays count from.
    pub mode: Mode,
    /// One for each failure; the last one is repeated. Not empty.
    pub delays: Vec<Duration>,
    /// From the first attempt to the last.
    pub give_up_after: Duration,
}

/// What delays count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The previous failure.
    Delay,
    /// The first attempt of the schedule.
    Offset,
}

/// An attempt that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Failures since the schedule began, without this one.
    pub step: u32,
    /// When the first attempt since the schedule began started.
    pub since: UnixTime,
    /// When the delivery is given up, as seen now.
    pub deadline: UnixTime,
    /// How long the receiver asked us to wait (`Retry-After`).
    pub hint: Option<Duration>,
}

/// When to try next, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Then.
    At(UnixTime),
    /// This was the last attempt.
    GiveUp,
}

impl Schedule {
    /// When to try again after this failure.
    #[must_use]
    pub fn next(&self, failed: Failed, now: UnixTime) -> Next {
        let _ = (failed, now);
        unimplemented!()
    }
}
