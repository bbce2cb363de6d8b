//! Warnings that a key has nearly used an allowance, on their way from requests to the operator.
//!
//! Invariant: no request waits for a warning, and their number is bounded: what does not fit is
//! dropped.
//!
//! Not here: what becomes of a warning (`operations::warnings`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use weir_common::limit::decision::Usage;

use super::key::Key;

/// Warnings that wait to be passed on, at most.
const WAITING_MAX: usize = 1_024;

/// The whole of an allowance, in the unit of [`is_reached`].
pub const WHOLE: u32 = 1_000_000;

/// A key that has nearly used an allowance.
#[derive(Clone, Debug)]
pub struct Warning {
    /// Its state.
    pub key: Key,
    /// The limit.
    pub limit: Arc<str>,
    /// The tenant or address, as in logs.
    pub name: Arc<str>,
    /// Its usage.
    pub usage: Usage,
    /// The length of its window: there is one warning in each.
    pub window: Duration,
}

/// The warnings on their way.
#[derive(Debug)]
pub struct Warnings {
    sender: mpsc::Sender<Warning>,
    receiver: Mutex<Option<mpsc::Receiver<Warning>>>,
}

impl Default for Warnings {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Warnings {
    /// Passes a warning on; false where it is dropped.
    pub fn send(&self, warning: Warning) -> bool {
        self.sender.try_send(warning).is_ok()
    }

    /// The other end, once.
    pub fn receiver(&self) -> Option<mpsc::Receiver<Warning>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a charge of `cost` has brought a key to `share` of its allowance, in millionths.
#[must_use]
pub fn is_reached(usage: &Usage, cost: u32, share: u32) -> bool {
    let enough = (u64::from(usage.limit) * u64::from(share)).div_ceil(WHOLE.into());
    let used = u64::from(usage.limit.saturating_sub(usage.remaining));
    used >= enough && used.saturating_sub(cost.into()) < enough
}

#[cfg(test)]
mod tests {
    use weir_common::time::Tick;

    use super::*;

    #[test]
    fn the_charge_that_reaches_the_share_warns_and_no_other() {
        let warns = |limit, remaining, cost, share| {
            is_reached(&Usage { limit, remaining, full_at: Tick(0) }, cost, share)
        };
        let at: Vec<u32> = (0..=10).filter(|left| warns(10, *left, 1, 800_000)).collect();
        assert_eq!(at, [2], "the eighth of ten");
        assert!(warns(10, 0, 5, 800_000) && !warns(10, 0, 2, 800_000), "five at once");
        assert!(warns(60, 11, 1, 801_000) && !warns(60, 12, 1, 801_000), "rounded up");
        assert!(warns(10, 0, 1, WHOLE) && !warns(10, 1, 1, WHOLE));
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        let warnings = Warnings::default();
        let warning = Warning {
            key: Key::from_bits(1),
            limit: "w".into(),
            name: "ws".into(),
            usage: Usage { limit: 10, remaining: 2, full_at: Tick(0) },
            window: Duration::from_secs(60),
        };
        let sent = (0..2 * WAITING_MAX).filter(|_| warnings.send(warning.clone())).count();
        assert_eq!(sent, WAITING_MAX);
    }
}
