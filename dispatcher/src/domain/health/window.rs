//! Counts attempts in buckets of time: the current one and the thirty before it. (core)
//!
//! Only buckets in use are stored, in one flat list: the number of the first one, then for each
//! its distance from the previous one, its 2xx and its failures.
//!
//! Not here: what the counts mean (`health`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_common::time::{UnixTime, micros};

/// Buckets before the current one that still count.
const BUCKETS: u64 = 30;

/// The latest buckets, up to the last one in use, whose share a warning depends on as well.
const LATEST: u64 = 5;

/// Shares are compared in whole billionths, so that 29 of 100 never exceed 0.29.
const WHOLE: f64 = 1e9;

/// Recent attempts, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Kept", into = "Kept")]
pub(super) struct Window {
    /// The width of a bucket in microseconds; 0 before the first.
    width: u64,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    /// Its start: widths since 1970.
    number: u64,
    successes: u32,
    failures: u32,
}

/// A window as it is stored.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    /// The width.
    #[serde(rename = "w")]
    width: u64,
    /// The number that the first distance counts from.
    #[serde(rename = "n")]
    number: u64,
    /// Triples of distance, 2xx and failures.
    #[serde(rename = "c")]
    counts: Vec<u64>,
}

/// Counts of 2xx and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) successes: u64,
    pub(super) failures: u64,
}

impl Counted {
    /// Whether more than `share` of the attempts failed.
    pub(super) fn is_over(self, share: f64) -> bool {
        self.failed() > self.allowed(share)
    }

    /// Whether at most half of `share` failed; true without attempts.
    pub(super) fn is_calm(self, share: f64) -> bool {
        self.failed() * 2 <= self.allowed(share)
    }

    fn failed(self) -> u128 {
        u128::from(self.failures) * WHOLE as u128
    }

    fn allowed(self, share: f64) -> u128 {
        (u128::from(self.successes) + u128::from(self.failures)) * (share * WHOLE).round() as u128
    }
}

impl Window {
    /// Whether it has no attempt.
    pub(super) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Changes the length of the window.
    pub(super) fn fit(&mut self, span: Duration) {
        // Rounded up, so that an attempt that is `span` old is still in the window.
        let width = micros(span).div_ceil(BUCKETS).max(1);
        if self.width != width {
            let old = std::mem::replace(&mut self.width, width);
            self.renumber(|number| number.saturating_mul(old) / width);
        }
    }

    /// Moves attempts in the future to now, and returns whether there were any.
    pub(super) fn set_back(&mut self, now: UnixTime) -> bool {
        let current = now.0 / self.width.max(1);
        // Attempts that end together arrive in any order: one bucket ahead is no clock change.
        let ahead = self.buckets.last().is_some_and(|last| last.number > current + 1);
        if ahead {
            self.renumber(|number| number.min(current));
        }
        ahead
    }

    /// Counts an attempt; call [`Window::fit`] first.
    pub(super) fn count(&mut self, success: bool, now: UnixTime) {
        let number = now.0 / self.width.max(1);
        self.add(Bucket { number, successes: success.into(), failures: (!success).into() });
    }

    /// Drops the oldest bucket if it has left the window; returns whether it did.
    pub(super) fn drop_oldest(&mut self, now: UnixTime) -> bool {
        let gone = self.drops_at().is_some_and(|at| at <= now);
        if gone {
            self.buckets.remove(0);
        }
        gone
    }

    /// When the oldest bucket leaves the window.
    pub(super) fn drops_at(&self) -> Option<UnixTime> {
        let end = self.buckets.first()?.number.saturating_add(BUCKETS + 1);
        Some(UnixTime(end.saturating_mul(self.width)))
    }

    /// All attempts in the window.
    pub(super) fn all(&self) -> Counted {
        sum(&self.buckets)
    }

    /// The attempts of the five buckets that end with the latest one in use.
    pub(super) fn latest(&self) -> Counted {
        let last = self.buckets.last().map_or(0, |last| last.number);
        let from = self.buckets.partition_point(|one| one.number.saturating_add(LATEST) <= last);
        sum(self.buckets.get(from..).unwrap_or_default())
    }

    /// The start, the number of 2xx and of failures of each bucket in use.
    pub(super) fn counts(&self) -> impl Iterator<Item = (UnixTime, u32, u32)> {
        let start = |bucket: &Bucket| UnixTime(bucket.number.saturating_mul(self.width));
        self.buckets.iter().map(move |bucket| (start(bucket), bucket.successes, bucket.failures))
    }

    fn renumber(&mut self, new: impl Fn(u64) -> u64) {
        for bucket in std::mem::take(&mut self.buckets) {
            self.add(Bucket { number: new(bucket.number), ..bucket });
        }
    }

    /// Appends a bucket, or adds to the last one.
    fn add(&mut self, more: Bucket) {
        match self.buckets.last_mut() {
            Some(last) if last.number >= more.number => {
                last.successes = last.successes.saturating_add(more.successes);
                last.failures = last.failures.saturating_add(more.failures);
            }
            _ => self.buckets.push(more),
        }
    }
}

fn sum(buckets: &[Bucket]) -> Counted {
    let zero = Counted::default();
    buckets.iter().fold(zero, |sum, one| Counted {
        successes: sum.successes + u64::from(one.successes),
        failures: sum.failures + u64::from(one.failures),
    })
}

impl From<Window> for Kept {
    fn from(window: Window) -> Self {
        let number = window.buckets.first().map_or(0, |first| first.number);
        let mut before = number;
        let counts = window.buckets.iter().flat_map(|bucket| {
            let distance = bucket.number - std::mem::replace(&mut before, bucket.number);
            [distance, bucket.successes.into(), bucket.failures.into()]
        });
        let counts = counts.collect();
        Self { width: window.width, number, counts }
    }
}

impl From<Kept> for Window {
    /// Accepts any stored values; larger counts saturate.
    fn from(kept: Kept) -> Self {
        let mut window = Self { width: kept.width, buckets: Vec::new() };
        let mut number = kept.number;
        for counted in kept.counts.chunks_exact(3) {
            let [distance, successes, failures] = counted else { continue };
            number = number.saturating_add(*distance);
            let (successes, failures) = (small(*successes), small(*failures));
            window.add(Bucket { number, successes, failures });
        }
        window
    }
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
