//! How many attempts may be under way at a URL.

use weir_common::time::Tick;

/// Attempts that may be under way at one URL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightSlots {
    pub(crate) room: usize,
    /// So many there are at most: it may be remembered for longer than it must be.
    pub(crate) most: usize,
    /// Whether its last attempt is known to have been answered without delay.
    pub(crate) answers: bool,
    pub(crate) used: Tick,
    /// Until then it is left alone, for so many times in a row: its name finds no answer.
    pub(crate) backs_off_until: Tick,
    /// When that was said.
    pub(crate) backed_off_at: Tick,
    pub(crate) backoffs: usize,
}

impl InFlightSlots {
    /// So many, of an endpoint that nothing else is known of.
    pub(crate) fn fresh(room: usize, most: usize, used: Tick) -> Self {
        let (backs_off_until, backed_off_at) = (Tick(0), Tick(0));
        Self { room, most, answers: false, used, backs_off_until, backed_off_at, backoffs: 0 }
    }
}
