//! What a webhook's attempts have come to: fine, failing, down.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_common::time::UnixTime;

/// When owners are warned, and when deliveries pause (DESIGN §1, 15 and 16).
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// More than this share of failures, from 0 to 1, warns.
    pub warn_share: f64,
    /// For so long; 30 buckets of it are kept.
    pub warn_for: Duration,
    /// No 2xx for so long pauses.
    pub pause_after: Duration,
}

/// What an attempt says of its webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A 2xx.
    Well,
    /// A 2xx to a ping: counts in no share, and ends being down.
    PingWell,
    /// A failure of the receiver's.
    Ill,
}

/// What follows for the owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Too many deliveries fail.
    Warn,
    /// Deliveries pause.
    Pause,
}

/// What a webhook's attempts have come to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {}

impl Health {
    /// Whether its owners were warned and it has not recovered since.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        false
    }

    /// Takes an attempt's end into account.
    #[must_use]
    pub fn after(&self, policy: &Policy, sign: Sign, now: UnixTime) -> (Self, Option<Notice>) {
        let _ = (policy, sign, now);
        unimplemented!()
    }

    /// Takes the passing of time into account.
    #[must_use]
    pub fn look(&self, policy: &Policy, now: UnixTime) -> (Self, Option<Notice>) {
        let _ = (policy, now);
        unimplemented!()
    }

    /// When time alone may bring a notice; later than `now`.
    #[must_use]
    pub fn look_at(&self, policy: &Policy, now: UnixTime) -> Option<UnixTime> {
        let _ = (policy, now);
        unimplemented!()
    }

    /// When the last 2xx was.
    #[must_use]
    pub fn last_well(&self) -> Option<UnixTime> {
        None
    }

    /// When the first failure after it was.
    #[must_use]
    pub fn down_since(&self) -> Option<UnixTime> {
        None
    }
}
