//! Random numbers from a seed: the same seed gives the same numbers.
//!
//! Its functions are `#[inline]`: the simulation, which is compiled with optimisation, calls them
//! millions of times.
//!
//! Not here: other sources of nondeterminism, such as threads and disks.

use std::time::Duration;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A generator of numbers (splitmix64: Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// The numbers of a seed.
    #[inline]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ STEP)
    }

    /// One of a seed's streams: each is as independent as another seed.
    #[inline]
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self(Self(seed).next() ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it has no end: an iterator would hide that")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let once = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let twice = (once ^ (once >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        twice ^ (twice >> 31)
    }

    /// A number in 0..`end`; 0 if the range is empty.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True with a probability of `percent` in a hundred.
    #[inline]
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element of `these`, if there is one.
    #[inline]
    pub fn pick<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        if these.is_empty() { None } else { these.get(self.below(these.len() as u64) as usize) }
    }

    /// Whole milliseconds of `from..to`: every order of magnitude is as likely as another.
    #[inline]
    pub fn span(&mut self, from: Duration, to: Duration) -> Duration {
        let (low, high) = (from.as_millis().max(1) as f64, to.as_millis().max(2) as f64);
        let share = self.below(1 << 20) as f64 / f64::from(1 << 20);
        Duration::from_millis((low * (high / low).powf(share)) as u64)
    }

    /// The same, between two numbers of milliseconds.
    #[inline]
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        self.span(Duration::from_millis(from), Duration::from_millis(to))
    }
}
