//! What a program counted and measured in each of its last minutes, in bounded memory. (core)
//!
//! A background task adds a [`Sample`] every few seconds, so that a request does nothing for it.
//!
//! # Invariants
//!
//! 1. There are as many slots as were asked for, and few names: older slots, and names beyond
//!    [`NAMES_MAX`], are dropped.
//! 2. A slot without a sample is empty, not zero.
//! 3. Slots follow the monotonic clock: a wall clock that is set moves their labels, and no value.
//!
//! Not here: what is sampled (each program), how it is drawn (`plot`).

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::metrics::DURATION_BUCKETS;
use crate::time::{Moment, Tick, UnixTime, micros};

/// Counters in a sample: three for each of eighty limits, and some more. A slot has a number for
/// each, so that sixty of them need less than two megabytes.
pub const NAMES_MAX: usize = 256;

/// How often a sample is taken: a minute has twelve.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// What has been counted since the start of the program, and what is measured now.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    counts: BTreeMap<Cow<'static, str>, u64>,
    levels: BTreeMap<&'static str, f64>,
    times: BTreeMap<&'static str, Vec<u64>>,
}

impl Sample {
    /// Adds to a counter, which only rises while the program runs.
    pub fn count(&mut self, name: impl Into<Cow<'static, str>>, value: u64) {
        let name = name.into();
        if self.counts.len() < NAMES_MAX || self.counts.contains_key(&name) {
            *self.counts.entry(name).or_default() += value;
        }
    }

    /// Sets what is measured now.
    pub fn level(&mut self, name: &'static str, value: f64) {
        self.levels.insert(name, value);
    }

    /// Adds durations: how many were at most as long as each of the buckets of metrics, and how
    /// many there were, as `metrics::buckets` counts them.
    pub fn times(&mut self, name: &'static str, cumulative: &[u64]) {
        let all = self.times.entry(name).or_insert_with(|| vec![0; cumulative.len()]);
        all.iter_mut().zip(cumulative).for_each(|(all, count)| *all += count);
    }
}

/// What happened in one slot.
#[derive(Clone, Debug, Default)]
pub struct HistorySlot {
    counts: BTreeMap<Cow<'static, str>, u64>,
    levels: BTreeMap<&'static str, f64>,
    times: BTreeMap<&'static str, Vec<u64>>,
    /// The time that its counts are of.
    covered: Duration,
}

impl HistorySlot {
    fn add(&mut self, sample: &Sample, last: Option<(Tick, &Sample)>, now: Tick) {
        for (name, level) in &sample.levels {
            let highest = self.levels.entry(name).or_insert(*level);
            *highest = highest.max(*level);
        }
        let Some((at, last)) = last else { return };
        self.covered += now.since(at);
        for (name, count) in &sample.counts {
            let before = last.counts.get(name).copied().unwrap_or(0);
            *self.counts.entry(name.clone()).or_default() += count.saturating_sub(before);
        }
        for (name, cumulative) in &sample.times {
            let before = last.times.get(name);
            let of = |nth: usize| before.and_then(|all| all.get(nth)).copied().unwrap_or(0);
            let all = self.times.entry(name).or_insert_with(|| vec![0; cumulative.len()]);
            for (nth, (all, count)) in all.iter_mut().zip(cumulative).enumerate() {
                *all += count.saturating_sub(of(nth));
            }
        }
    }

    /// How much was counted; `None` if nothing was compared yet.
    #[must_use]
    pub fn counted(&self, name: &str) -> Option<u64> {
        (!self.covered.is_zero()).then(|| self.counts.get(name).copied().unwrap_or(0))
    }

    /// How much was counted per second.
    #[must_use]
    pub fn rate(&self, name: &str) -> Option<f64> {
        Some(self.counted(name)? as f64 / self.covered.as_secs_f64())
    }

    /// The highest value that was measured.
    #[must_use]
    pub fn level(&self, name: &str) -> Option<f64> {
        self.levels.get(name).copied()
    }

    /// The milliseconds within which this share of the durations was; `None` if there were none.
    #[must_use]
    pub fn quantile_ms(&self, name: &str, share: f64) -> Option<f64> {
        quantile(self.times.get(name)?, share).map(|seconds| seconds * 1_000.0)
    }
}

/// The seconds within which this share of durations was: within a bucket they are taken as evenly
/// spread, and beyond the last one as just as long as that.
fn quantile(cumulative: &[u64], share: f64) -> Option<f64> {
    let all = cumulative.last().copied().filter(|all| *all > 0)?;
    let wanted = all as f64 * share;
    let (mut before, mut from) = (0, 0.0);
    for (count, bound) in cumulative.iter().zip(DURATION_BUCKETS) {
        if *count as f64 >= wanted && *count > before {
            let part = (wanted - before as f64) / (count - before) as f64;
            return Some(from + (bound - from) * part.clamp(0.0, 1.0));
        }
        (before, from) = (*count, bound);
    }
    Some(from)
}

/// The last slots of a program.
#[derive(Debug)]
pub struct History {
    each: Duration,
    kept: usize,
    /// Each with its number since the origin of the clock, oldest first.
    slots: VecDeque<(u64, HistorySlot)>,
    last: Option<(Tick, Sample)>,
}

impl History {
    /// An empty history of `kept` slots that are `each` long.
    #[must_use]
    pub fn new(each: Duration, kept: usize) -> Self {
        Self { each, kept, slots: VecDeque::new(), last: None }
    }

    /// An empty history of an hour, by the minute.
    #[must_use]
    pub fn of_an_hour() -> Self {
        Self::new(Duration::from_secs(60), 60)
    }

    /// Adds what is so at `now`.
    pub fn add(&mut self, sample: Sample, now: Tick) {
        let number = self.number(now);
        if self.slots.back().is_none_or(|(last, _)| *last < number) {
            self.slots.push_back((number, HistorySlot::default()));
        }
        while self.slots.len() > self.kept {
            self.slots.pop_front();
        }
        let last = self.last.as_ref().map(|(at, sample)| (*at, sample));
        if let Some((_, slot)) = self.slots.back_mut() {
            slot.add(&sample, last, now);
        }
        self.last = Some((now, sample));
    }

    fn number(&self, at: Tick) -> u64 {
        at.0 / micros(self.each).max(1)
    }

    /// Every slot up to the one of `now`, oldest first, with its start.
    #[must_use]
    pub fn slots(&self, now: Moment) -> Vec<(UnixTime, Option<&HistorySlot>)> {
        let newest = self.number(now.tick);
        let oldest = (newest + 1).saturating_sub(self.kept as u64);
        let slot = |number: u64| {
            let start = now.unix_of(Tick(number * micros(self.each)));
            (start, self.slots.iter().find(|(own, _)| *own == number).map(|(_, slot)| slot))
        };
        (oldest..=newest).map(slot).collect()
    }

    /// How much was counted in all slots up to the one of `now`.
    #[must_use]
    pub fn total(&self, name: &str, now: Moment) -> u64 {
        let all = self.slots(now);
        all.into_iter().filter_map(|(_, slot)| slot?.counted(name)).sum()
    }

    /// The names of counters that begin with `prefix`, in order.
    #[must_use]
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        let last = self.last.iter().flat_map(|(_, sample)| sample.counts.keys());
        last.filter_map(|name| name.strip_prefix(prefix)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: u64) -> Moment {
        Moment { tick: Tick(seconds * 1_000_000), unix: UnixTime((seconds + 1_000) * 1_000_000) }
    }

    fn history(samples: &[(u64, u64)]) -> History {
        let mut history = History::of_an_hour();
        for (at, count) in samples {
            let mut sample = Sample::default();
            sample.count("a", *count);
            sample.level("b", *count as f64);
            history.add(sample, moment(*at).tick);
        }
        history
    }

    fn rates(history: &History, now: u64) -> Vec<Option<f64>> {
        let all = history.slots(moment(now));
        all.iter().map(|(_, slot)| slot.and_then(|slot| slot.rate("a"))).collect()
    }

    #[test]
    fn a_minute_has_the_rate_of_its_samples_and_one_without_any_is_empty() {
        let history = history(&[(6_000, 7), (6_030, 37), (6_050, 57), (6_130, 217)]);
        let found = rates(&history, 6_130);
        assert_eq!(found.len(), 60);
        // Of the minute without a sample nothing is known; its requests are in the next rate.
        assert_eq!(found[57..], [Some(1.0), None, Some(2.0)]);
        assert_eq!(found[..57], [None; 57]);
        assert_eq!(history.total("a", moment(6_130)), 210);
        let levels = history.slots(moment(6_130));
        assert_eq!(levels[57].1.and_then(|slot| slot.level("b")), Some(57.0));
        assert_eq!(levels[57].0, UnixTime(7_000_000_000));
    }

    #[test]
    fn the_first_sample_is_no_rate_and_a_new_name_counts_from_zero() {
        assert_eq!(rates(&history(&[(6_000, 1_000)]), 6_000), [None; 60]);
        let mut history = history(&[(6_000, 5)]);
        let mut sample = Sample::default();
        sample.count("new", 20);
        history.add(sample, moment(6_010).tick);
        assert_eq!(history.total("new", moment(6_010)), 20);
        assert_eq!(history.names("n"), ["ew"]);
    }

    #[test]
    fn memory_is_bounded_however_long_it_runs_and_whatever_is_counted() {
        let samples: Vec<_> = (0..500).map(|nth| (nth * 60, nth)).collect();
        let history = history(&samples);
        assert_eq!(history.slots.len(), 60);
        assert_eq!(rates(&history, 499 * 60).iter().flatten().count(), 60);
        // Much later, all is forgotten.
        assert_eq!(rates(&history, 1_000_000), [None; 60]);
        let mut sample = Sample::default();
        (0..10_000).for_each(|nth| sample.count(format!("limit {nth}"), 1));
        assert_eq!(sample.counts.len(), NAMES_MAX);
    }

    #[test]
    fn quantiles_are_those_of_the_slot_alone() {
        let mut history = History::of_an_hour();
        for (at, cumulative) in [(0, [5, 5]), (10, [5, 15])] {
            let mut sample = Sample::default();
            sample.times("t", &cumulative);
            history.add(sample, moment(at).tick);
        }
        let found = history.slots(moment(10));
        let slot = found.last().unwrap().1.unwrap();
        assert_eq!(slot.quantile_ms("t", 0.5), Some(0.75));
        assert_eq!(slot.quantile_ms("none", 0.5), None);
        assert_eq!(quantile(&[0; 15], 0.5), None);
        let mut beyond = vec![0; 14];
        beyond.push(3);
        assert_eq!(quantile(&beyond, 0.5), Some(60.0), "longer than the longest bucket");
    }
}
