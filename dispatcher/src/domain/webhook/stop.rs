//! A time in which a webhook was sent nothing. (core)

use weir_common::time::UnixTime;

/// From when until when a webhook was paused or disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Its begin.
    pub from: UnixTime,
    /// Its end.
    pub until: UnixTime,
}
