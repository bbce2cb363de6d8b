//! Luck that repeats itself: the same seed gives the same world.

use std::time::Duration;

/// A generator of numbers (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of 0..`sides`.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides.max(1)
    }

    /// True `percent` times in a hundred.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.roll(of.len() as u64) as usize) }
    }

    /// Whole milliseconds of `from..to`, short ones as likely as long ones.
    pub(super) fn span(&mut self, from: Duration, to: Duration) -> Duration {
        let (low, high) = (from.as_millis().max(1) as f64, to.as_millis().max(2) as f64);
        let share = self.roll(1 << 20) as f64 / f64::from(1 << 20);
        Duration::from_millis((low * (high / low).powf(share)) as u64)
    }
}
