//! How the attempts of a webhook ended, and how long they took, by the hour. (core)
//!
//! Not here: the state of a webhook (`health`), single attempts (`attempt`).

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::compact::{Reader, Writer};
use crate::domain::outcome::{Failure, Outcome};

/// Microseconds of an hour.
const HOUR: u64 = 3_600_000_000;

/// Classes of outcomes, in the order in which charts stack them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityClass {
    /// A 2xx.
    Delivered,
    /// A status that is neither 2xx nor 5xx.
    ClientError,
    /// A 5xx.
    ServerError,
    /// No answer in time.
    Timeout,
    /// No connection: the name, the network, TLS.
    Unreachable,
    /// The URL, or its address, is not allowed.
    Blocked,
}

impl ActivityClass {
    /// Every class.
    pub const ALL: [Self; 6] = [
        Self::Delivered,
        Self::ClientError,
        Self::ServerError,
        Self::Timeout,
        Self::Unreachable,
        Self::Blocked,
    ];

    /// The class of an outcome; `None` for a fault of the dispatcher, which says nothing about the
    /// receiver.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Option<Self> {
        Some(match outcome {
            Outcome::Delivered { .. } => Self::Delivered,
            Outcome::Failed(Failure::Status(500..=599)) => Self::ServerError,
            Outcome::Failed(Failure::Status(_)) => Self::ClientError,
            Outcome::Failed(Failure::Timeout) => Self::Timeout,
            Outcome::Failed(Failure::BlockedAddress) => Self::Blocked,
            Outcome::Failed(
                Failure::Dns | Failure::Refused | Failure::Connection | Failure::Tls,
            ) => Self::Unreachable,
            Outcome::Internal(_) => return None,
        })
    }
}

/// The number of the hour of a time, counted from 1970.
#[must_use]
pub fn hour_of(time: UnixTime) -> u64 {
    time.0 / HOUR
}

/// When an hour began.
#[must_use]
pub fn start_of(hour: u64) -> UnixTime {
    UnixTime(hour.saturating_mul(HOUR))
}

/// Attempts of one webhook that ended in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// How many there were of each class.
    pub counts: [u64; ActivityClass::ALL.len()],
    /// How long those that were answered took.
    pub times: Histogram,
}

impl Activity {
    /// Counts an attempt.
    pub fn count(&mut self, class: ActivityClass, took: Duration) {
        if let Some(count) = self.counts.get_mut(class as usize) {
            *count += 1;
        }
        use ActivityClass::{ClientError, Delivered, ServerError};
        if matches!(class, Delivered | ClientError | ServerError) {
            self.times.count(took);
        }
    }

    /// Adds other attempts.
    pub fn add(&mut self, other: &Self) {
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            *mine += more;
        }
        self.times.add(&other.times);
    }

    /// All attempts.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Those of a class.
    #[must_use]
    pub fn of(&self, class: ActivityClass) -> u64 {
        self.counts.get(class as usize).copied().unwrap_or_default()
    }
}

/// Buckets of a histogram; the last one has no upper bound.
const BUCKETS: usize = 48;

/// How long attempts took: four buckets for each doubling, from a millisecond on, so that a
/// percentile is at most a fifth too high.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

/// The upper bound of a bucket, in milliseconds.
fn upper_bound(bucket: usize) -> f64 {
    2.0_f64.powf(bucket as f64 / 4.0)
}

impl Histogram {
    fn count(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1_000.0;
        // The inverse of `upper_bound`; below the first one it is negative, and becomes 0.
        let bucket = (4.0 * ms.log2()).ceil() as usize;
        if let Some(count) = self.0.get_mut(bucket.min(BUCKETS - 1)) {
            *count += 1;
        }
    }

    fn add(&mut self, other: &Self) {
        for (mine, more) in self.0.iter_mut().zip(&other.0) {
            *mine += more;
        }
    }

    /// The time that `percent` of the attempts did not exceed; `None` without attempts.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let all: u64 = self.0.iter().sum();
        let rank = (u128::from(all) * u128::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= rank {
                return Some(Duration::from_secs_f64(upper_bound(bucket) / 1_000.0));
            }
        }
        None
    }

    /// As it is stored: runs of empty buckets take two bytes.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let mut empty = 0;
        for count in self.0 {
            if count == 0 {
                empty += 1;
                continue;
            }
            writer.number(empty);
            writer.number(count);
            empty = 0;
        }
        writer.written
    }

    /// What was stored; buckets that this version does not have count in the last one.
    #[must_use]
    pub fn of_stored(bytes: &[u8]) -> Self {
        let mut histogram = Self::default();
        let (mut reader, mut at) = (Reader::new(bytes), 0_usize);
        while let (Some(empty), Some(count)) = (reader.number(), reader.number()) {
            at = at.saturating_add(usize::try_from(empty).unwrap_or(BUCKETS));
            if let Some(bucket) = histogram.0.get_mut(at.min(BUCKETS - 1)) {
                *bucket = bucket.saturating_add(count);
            }
            at = at.saturating_add(1);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_outcome_has_one_class_but_faults_of_the_dispatcher() {
        use crate::domain::outcome::Fault;
        let of = |outcome| ActivityClass::of(&outcome);
        let failed = |failure| of(Outcome::Failed(failure));
        assert_eq!(of(Outcome::Delivered { status: 204 }), Some(ActivityClass::Delivered));
        assert_eq!(failed(Failure::Status(302)), Some(ActivityClass::ClientError));
        assert_eq!(failed(Failure::Status(499)), Some(ActivityClass::ClientError));
        assert_eq!(failed(Failure::Status(599)), Some(ActivityClass::ServerError));
        assert_eq!(failed(Failure::Timeout), Some(ActivityClass::Timeout));
        assert_eq!(failed(Failure::Tls), Some(ActivityClass::Unreachable));
        assert_eq!(failed(Failure::BlockedAddress), Some(ActivityClass::Blocked));
        assert_eq!(of(Outcome::Internal(Fault::Broken)), None);
    }

    #[test]
    fn attempts_without_an_answer_have_no_answer_time() {
        let mut activity = Activity::default();
        activity.count(ActivityClass::Timeout, Duration::from_secs(30));
        assert_eq!((activity.attempts(), activity.times.percentile(50)), (1, None));
        activity.count(ActivityClass::ServerError, Duration::from_millis(100));
        assert!(activity.times.percentile(50).is_some());
    }

    proptest! {
        /// Compared with the sorted list: never lower, and at most a fifth higher.
        #[test]
        fn a_percentile_is_at_most_a_fifth_too_high(
            times in proptest::collection::vec(1_u64..3_000_000, 1..200),
            percent in 1_u64..=100,
        ) {
            let mut histogram = Histogram::default();
            let mut times = times;
            for us in &times {
                histogram.count(Duration::from_micros(*us));
            }
            times.sort_unstable();
            let rank = (times.len() as u64 * percent).div_ceil(100).max(1);
            let exact = times[usize::try_from(rank).unwrap() - 1] as f64 / 1e6;
            let found = histogram.percentile(percent).unwrap().as_secs_f64();
            prop_assert!(found >= exact * 0.999 && found <= (exact * 1.2).max(0.001));
            prop_assert_eq!(Histogram::of_stored(&histogram.stored()), histogram);
        }

        #[test]
        fn no_stored_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Histogram::of_stored(&bytes);
        }
    }
}
