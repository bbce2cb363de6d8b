//! How many attempts may be in flight at a URL.

use weir_common::time::Tick;

/// The in-flight slots of one URL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightSlots {
    pub(crate) room: usize,
    /// The most slots there can be: an endpoint may be remembered for longer than it must be.
    pub(crate) most: usize,
    /// Whether its last attempt is known to have been answered promptly.
    pub(crate) answers: bool,
    pub(crate) used: Tick,
    /// No attempt starts before then: its name did not resolve, `backoffs` times in a row.
    pub(crate) backs_off_until: Tick,
    /// When that was decided.
    pub(crate) backed_off_at: Tick,
    pub(crate) backoffs: usize,
}

impl InFlightSlots {
    /// The slots of an endpoint of which nothing else is known.
    pub(crate) fn fresh(room: usize, most: usize, used: Tick) -> Self {
        let (backs_off_until, backed_off_at) = (Tick(0), Tick(0));
        Self { room, most, answers: false, used, backs_off_until, backed_off_at, backoffs: 0 }
    }

    pub(crate) fn end_backoff(&mut self, now: Tick) {
        self.backs_off_until = self.backs_off_until.min(now);
    }
}
