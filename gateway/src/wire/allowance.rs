//! How long a connection may take over what.

use std::time::Duration;

/// What a connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// A whole request head.
    pub head_timeout: Duration,
    /// Bytes of a request head.
    pub head_bytes_max: u64,
    /// Without a request.
    pub idle_timeout: Duration,
    /// Between two writes that the client takes anything of.
    pub write_timeout: Duration,
}
