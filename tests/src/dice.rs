//! Luck from a seed: what a seed decides, it decides again.
//!
//! Not here: what else makes a run differ from another, such as threads and disks.

use std::time::Duration;

/// Dice (splitmix64: Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed; another stream of the same seed is as good as another seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut dice = Self(seed);
        dice.0 = dice.any() ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        dice
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let once = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let twice = (once ^ (once >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        twice ^ (twice >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// An element of `these`, which is not empty.
    pub fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len() as u64) as usize]
    }

    /// A time between the two, in milliseconds; every order of magnitude is as likely as another.
    pub fn time(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        let (from, to) = (from_ms.max(1) as f64, to_ms.max(1) as f64);
        let share = self.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        Duration::from_micros((1_000.0 * from * (to / from).powf(share)) as u64)
    }
}
