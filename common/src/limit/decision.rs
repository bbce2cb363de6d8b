//! A limit's decision, whichever algorithm it uses. (core)
//!
//! An algorithm *decides* without changing its state; only an admission is then *charged*, and
//! only once every other limit of the request has admitted it too.

use crate::time::Tick;

/// One limit's decision on one request.
#[must_use = "an unused decision lets the request through"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It fits: charge the state, then let the request pass.
    Admit,
    /// It does not fit now. The state stays as it is.
    Refuse {
        /// The first tick at which the same request would fit, if nothing else is charged.
        retry_at: Tick,
    },
    /// It costs more than the whole quota; waiting will not help.
    TooLarge,
}

/// One key's usage of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The allowance: requests per window, or the burst of a bucket.
    pub limit: u32,
    /// What is left of it now, rounded down.
    pub remaining: u32,
    /// When the whole allowance is back if nothing more is charged.
    pub full_at: Tick,
}
