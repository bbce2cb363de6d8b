//! One try at a delivery.

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::outcome::Outcome;

/// One try.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// When it started, which is what the pace counts.
    pub started_at: UnixTime,
    /// From its start to its outcome.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
}
