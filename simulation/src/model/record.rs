//! A webhook's record of attempts, and the warnings and pauses that must follow: it keeps all of
//! them, and counts anew each time.
//!
//! Entries are in the order of time: once the wall clock was set, their results are not checked.

use std::time::Duration;

use weir_common::time::{UnixTime, micros};
use weir_dispatcher::domain::health::{Observation, Policy};
use weir_dispatcher::domain::id::DeliveryId;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: UnixTime,
    delivery: DeliveryId,
    sign: Observation,
    written: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    entries: Vec<Entry>,
    /// The index of the first failure since the last 2xx.
    down_from: usize,
    /// When the window was calm, and how many entries there were then.
    calms: Vec<(UnixTime, usize)>,
    /// The number of entries that `calms` covers.
    checked: usize,
    /// Some attempts are not known here: what follows from the record is not checked.
    pub(crate) vague: bool,
    pub(crate) warned: Option<UnixTime>,
}

/// The most entries: enough for a day of retries, and for a window of traffic.
const ENTRIES_MAX: usize = 4_000;

/// The step in which a period is searched, in microseconds.
const STEP: usize = 250_000;

/// The buckets of a window, apart from the current one.
const BUCKETS: u64 = 30;

impl Record {
    pub(crate) fn add(&mut self, sign: Observation, delivery: DeliveryId, at: UnixTime) {
        if self.entries.len() > ENTRIES_MAX {
            // Entries before the last 2xx and before the window no longer matter.
            let well =
                self.entries.iter().rposition(|one| one.sign != Observation::Failed).unwrap_or(0);
            self.entries.drain(..well.min(ENTRIES_MAX / 2));
            self.changed_from(0);
        }
        self.entries.push(Entry { at, delivery, sign, written: false });
        if sign != Observation::Failed {
            self.down_from = self.entries.len();
        }
    }

    /// An attempt is on disk. Attempts that ended at one instant are written in the order in which
    /// the worker learned of them.
    pub(crate) fn written(&mut self, delivery: DeliveryId) {
        let found = self.entries.iter().rposition(|one| !one.written && one.delivery == delivery);
        let Some(place) = found else { return };
        let entry = Entry { written: true, ..self.entries[place] };
        let same = self.entries[..place].iter().rev().take_while(|one| one.at == entry.at);
        let first = same.clone().position(|one| one.written).unwrap_or(same.count());
        let first = place - first;
        self.entries.remove(place);
        self.entries.insert(first, entry);
        if first < place {
            self.changed_from(first);
        }
    }

    pub(crate) fn forget_unwritten(&mut self) {
        self.entries.retain(|one| one.written);
        self.changed_from(0);
    }

    /// Entries from `place` on have changed.
    fn changed_from(&mut self, place: usize) {
        let well = self.entries.iter().rposition(|one| one.sign != Observation::Failed);
        self.down_from = well.map_or(0, |at| at + 1);
        self.checked = self.checked.min(place);
        self.calms.retain(|(_, count)| *count < place);
    }

    fn down(&self) -> &[Entry] {
        &self.entries[self.down_from..]
    }

    /// When deliveries had to pause, as known at `then`. Of attempts that ended at that instant the
    /// worker may know any number: the answer is for the smallest that leads to a pause.
    pub(crate) fn paused_at(&self, policy: &Policy, then: UnixTime) -> Option<UnixTime> {
        let known = self.entries.iter().filter(|one| one.at <= then).copied();
        let known: Vec<Entry> = known.collect();
        let before = known.partition_point(|one| one.at < then);
        (before..=known.len()).find_map(|count| {
            let mut heard = Self { entries: known[..count].to_vec(), ..Self::default() };
            heard.changed_from(0);
            heard.pauses_at(policy).filter(|right| *right <= then)
        })
    }

    /// When deliveries must pause, if nothing else happens.
    pub(crate) fn pauses_at(&self, policy: &Policy) -> Option<UnixTime> {
        let down = self.down();
        let (first, rest) = (down.first()?.at, down.get(2..)?);
        let enough = rest.partition_point(|one| one.at.since(first) < policy.pause_after / 2);
        Some(first.plus(policy.pause_after).max(rest.get(enough)?.at))
    }

    /// How many of the first `count` entries succeeded, and failed, since the bucket `since` began.
    fn counted(&self, count: usize, since: u64, width: u64) -> (u64, u64) {
        let within = self.entries[..count].iter().rev();
        let mut counted = (0, 0);
        for one in within.take_while(|one| one.at.0 / width >= since) {
            counted.0 += u64::from(one.sign == Observation::Succeeded);
            counted.1 += u64::from(one.sign == Observation::Failed);
        }
        counted
    }

    /// How many entries there were at `then`.
    fn known(&self, then: UnixTime) -> usize {
        self.entries.partition_point(|one| one.at <= then)
    }

    fn calm(&self, policy: &Policy, count: usize, at: UnixTime) -> bool {
        let width = micros(policy.warn_for) / BUCKETS;
        let since = (at.0 / width).saturating_sub(BUCKETS);
        let (well, ill) = self.counted(count, since, width);
        ill == 0 || ill as f64 <= (well + ill) as f64 * policy.warn_share / 2.0
    }

    /// When the window of only the first `count` entries becomes calm as it moves on.
    fn calms_between(&self, policy: &Policy, count: usize, to: UnixTime) -> Vec<UnixTime> {
        let width = micros(policy.warn_for) / BUCKETS;
        let Some(last) = count.checked_sub(1).map(|place| self.entries[place].at) else {
            return Vec::new();
        };
        let last_bucket = last.0 / width;
        let drops = last_bucket.saturating_sub(BUCKETS)..=last_bucket;
        let drops = drops.map(|bucket| UnixTime((bucket + BUCKETS + 1) * width));
        drops
            .filter(|at| *at > last && *at <= to)
            .filter(|at| self.calm(policy, count, *at))
            .collect()
    }

    /// Extends `calms` by the new entries: after each of them, and between them.
    fn check(&mut self, policy: &Policy) {
        for place in self.checked..self.entries.len() {
            let at = self.entries[place].at;
            let between = self.calms_between(policy, place, at);
            self.calms.extend(between.into_iter().map(|at| (at, place)));
            if self.calm(policy, place + 1, at) {
                self.calms.push((at, place + 1));
            }
        }
        self.checked = self.entries.len();
    }

    /// Whether the window was calm at any moment of a period.
    fn was_calm(&mut self, policy: &Policy, from: UnixTime, to: UnixTime) -> bool {
        self.had_calm(policy, (from, to), |_, _, _| true)
    }

    /// Whether the window was calm at any moment since a warning, except without attempts after a
    /// failure.
    fn recovered(&mut self, policy: &Policy, warned: UnixTime, to: UnixTime) -> bool {
        let width = micros(policy.warn_for) / BUCKETS;
        self.had_calm(policy, (warned, to), |record, at, count| {
            let since = (at.0 / width).saturating_sub(BUCKETS);
            let last = count.checked_sub(1).map(|place| record.entries[place].sign);
            last != Some(Observation::Failed) || record.counted(count, since, width) != (0, 0)
        })
    }

    /// Whether the window was calm at a moment of a period that `counts`, which gets the moment
    /// and how many entries there were.
    fn had_calm(
        &mut self,
        policy: &Policy,
        (from, to): (UnixTime, UnixTime),
        counts: impl Fn(&Self, UnixTime, usize) -> bool,
    ) -> bool {
        self.check(policy);
        let known = self.known(to);
        let within = |at: UnixTime, count| at > from && at <= to && counts(self, at, count);
        self.calms.iter().rev().any(|(at, count)| within(*at, *count))
            || self.calms_between(policy, known, to).into_iter().any(|at| within(at, known))
    }

    /// Why a warning now would be wrong; `None` if it would be right.
    pub(crate) fn warns_wrongly(&mut self, policy: &Policy, now: UnixTime) -> Option<&'static str> {
        let width = micros(policy.warn_for) / BUCKETS;
        let since = (now.0 / width).saturating_sub(BUCKETS);
        let (well, ill) = self.counted(self.known(now), since, width);
        if ill < 3 {
            return Some("there are fewer than three failures");
        }
        if ill as f64 <= (well + ill) as f64 * policy.warn_share {
            return Some("the share of failures is at most `warn_share`");
        }
        let early = UnixTime(now.0.saturating_sub(micros(policy.warn_for)));
        if self.entries.iter().all(|one| one.sign != Observation::Failed || one.at > early) {
            return Some("no failure is as old as `warn_for`");
        }
        if self.warned.is_some_and(|warned| !self.recovered(policy, warned, now)) {
            return Some("it is the second in one episode");
        }
        None
    }

    /// The first or the last time in a period at which a warning would have been right.
    pub(crate) fn warns_rightly(
        &mut self,
        policy: &Policy,
        from: UnixTime,
        to: UnixTime,
        first: bool,
    ) -> Option<UnixTime> {
        let exact = self.entries.iter().map(|one| one.at.plus(policy.warn_for));
        let exact = exact.filter(|at| *at > from && *at <= to);
        let grid = (from.0..=to.0).rev().step_by(STEP).map(UnixTime);
        let mut times: Vec<UnixTime> = exact.chain(grid).collect();
        times.sort_unstable_by_key(|at| if first { at.0 } else { u64::MAX - at.0 });
        times.dedup();
        times.into_iter().find(|at| self.warns_wrongly(policy, *at).is_none())
    }

    /// Whether a warning must have been sent: only failures, for longer than it takes.
    pub(crate) fn must_have_warned(&mut self, policy: &Policy, now: UnixTime) -> bool {
        let width = micros(policy.warn_for) / BUCKETS;
        let slack = Duration::from_secs(1);
        let before = |by: Duration| UnixTime(now.0.saturating_sub(micros(by)));
        let down = self.down();
        let Some(first) = down.first().map(|first| first.at) else { return false };
        let since = (now.0 / width).saturating_sub(BUCKETS - 1);
        let within = &down[down.partition_point(|one| one.at.0 / width < since)..];
        // A second ago there were three failures, and the first was old enough.
        let three = within.get(..3).is_some_and(|three| {
            first <= before(policy.warn_for + slack)
                && three.iter().all(|one| one.at <= before(slack))
        });
        let lately = (now.0 / width).saturating_sub(BUCKETS + 1);
        if !three || self.counted(self.entries.len(), lately, width).0 > 0 {
            return false;
        }
        let told = self.warned.is_some_and(|warned| !self.recovered(policy, warned, now));
        // One failure among many 2xx is calm still: the episode then begins with a later one.
        let before_first = UnixTime(first.0.saturating_sub(1));
        !told && !self.was_calm(policy, before_first, now)
    }
}
