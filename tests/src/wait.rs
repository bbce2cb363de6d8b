//! Waits until a condition holds, and fails with a sentence that names the condition.
//!
//! The only file of the harness that reads a clock or sleeps.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longer than any healthy operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// The interval between two checks of a condition that cannot wake the waiter.
const POLL: Duration = Duration::from_millis(5);

/// An instant at which a wait times out.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// The deadline after `patience` from now.
    pub fn after(patience: Duration) -> Self {
        Self { at: now() + patience }
    }

    /// The remaining time; `None` once the deadline has passed.
    pub fn left(self) -> Option<Duration> {
        self.at.checked_duration_since(now()).filter(|left| !left.is_zero())
    }
}

/// Polls `look` until it returns a value; panics after [`PATIENCE`].
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, look).unwrap_or_else(|| panic!("timed out after {PATIENCE:?}: {what}"))
}

/// Polls `look` until it returns a value; `None` after `patience`.
pub fn within<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Deadline::after(patience);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        deadline.left()?;
        thread::park_timeout(POLL);
    }
}

/// Lets real time pass, for tests about the passing of time.
pub fn pass(time: Duration) {
    let deadline = Deadline::after(time);
    while let Some(left) = deadline.left() {
        thread::park_timeout(left);
    }
}

/// The monotonic clock, for measuring how long something took.
#[allow(clippy::disallowed_methods, reason = "the harness lives in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock in whole seconds since 1970, as `X-RateLimit-Reset` counts them.
pub fn unix_seconds() -> u64 {
    unix_millis() / 1_000
}

/// The wall clock in milliseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "the harness lives in real time")]
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
