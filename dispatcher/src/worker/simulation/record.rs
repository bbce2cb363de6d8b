//! A webhook's record of attempts, and what must follow from it: everything is remembered, and
//! counted anew each time.

use std::time::Duration;

use weir_common::time::{UnixTime, micros};

use crate::health::{Policy, Sign};

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: UnixTime,
    started: UnixTime,
    sign: Sign,
    written: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    entries: Vec<Entry>,
    /// Not all of it is known here.
    pub(super) vague: bool,
    pub(super) warned: Option<UnixTime>,
}

/// So many entries are enough for a day of retries, and for a window of traffic.
const ENTRIES_MAX: usize = 4_000;

impl Record {
    pub(super) fn add(&mut self, sign: Sign, started: UnixTime, at: UnixTime) {
        if self.entries.len() > ENTRIES_MAX {
            // What came before the last 2xx and the window has no say any more.
            let well = self.entries.iter().rposition(|one| one.sign != Sign::Ill).unwrap_or(0);
            self.entries.drain(..well.min(ENTRIES_MAX / 2));
        }
        self.entries.push(Entry { at, started, sign, written: false });
    }

    pub(super) fn written(&mut self, started: UnixTime) {
        let found = self.entries.iter_mut().find(|one| !one.written && one.started == started);
        if let Some(entry) = found {
            entry.written = true;
        }
    }

    pub(super) fn forget_unwritten(&mut self) {
        self.entries.retain(|one| one.written);
    }

    fn down(&self) -> &[Entry] {
        let well = self.entries.iter().rposition(|one| one.sign != Sign::Ill);
        &self.entries[well.map_or(0, |at| at + 1)..]
    }

    /// When deliveries had to pause, as it was known then.
    pub(super) fn paused_at(&self, policy: &Policy, then: UnixTime) -> Option<UnixTime> {
        let known = self.entries.iter().filter(|one| one.at <= then).copied();
        Self { entries: known.collect(), ..Self::default() }.pauses_at(policy)
    }

    /// When deliveries must pause, if nothing else happens.
    pub(super) fn pauses_at(&self, policy: &Policy) -> Option<UnixTime> {
        let down = self.down();
        let first = down.first()?.at;
        let mut enough = down.iter().skip(2);
        let enough = enough.find(|one| one.at.since(first) >= policy.pause_after / 2)?.at;
        Some(first.plus(policy.pause_after).max(enough))
    }

    fn counted(&self, from: u64, to: UnixTime, width: u64) -> (u64, u64) {
        let within = self.entries.iter().filter(|one| one.at.0 / width >= from && one.at <= to);
        let of = |sign: Sign| within.clone().filter(|one| one.sign == sign).count() as u64;
        (of(Sign::Well), of(Sign::Ill))
    }

    fn calm(&self, policy: &Policy, at: UnixTime) -> bool {
        let width = micros(policy.warn_for) / 30;
        let (well, ill) = self.counted((at.0 / width).saturating_sub(30), at, width);
        ill == 0 || ill as f64 <= (well + ill) as f64 * policy.warn_share / 2.0
    }

    /// Whether the window was calm at any moment of a stretch.
    fn was_calm(&self, policy: &Policy, from: UnixTime, to: UnixTime) -> bool {
        let width = micros(policy.warn_for) / 30;
        let drops = |at: UnixTime| UnixTime((at.0 / width + 31) * width);
        let times = self.entries.iter().flat_map(|one| [one.at, drops(one.at)]);
        let mut times = times.filter(|at| *at > from && *at <= to);
        times.any(|at| self.calm(policy, at))
    }

    /// Why a warning now would be wrong.
    pub(super) fn warns_wrongly(&self, policy: &Policy, now: UnixTime) -> Option<&'static str> {
        let width = micros(policy.warn_for) / 30;
        let (well, ill) = self.counted((now.0 / width).saturating_sub(30), now, width);
        if ill < 3 {
            return Some("of fewer than three failures");
        }
        if ill as f64 <= (well + ill) as f64 * policy.warn_share {
            return Some("of no more failures than are allowed");
        }
        let early = UnixTime(now.0.saturating_sub(micros(policy.warn_for)));
        if self.entries.iter().all(|one| one.sign != Sign::Ill || one.at > early) {
            return Some("too early");
        }
        if self.warned.is_some_and(|warned| !self.was_calm(policy, warned, now)) {
            return Some("a second time in one episode");
        }
        None
    }

    /// Whether a warning must have been given: nothing but failures for longer than it takes.
    pub(super) fn must_have_warned(&self, policy: &Policy, now: UnixTime) -> bool {
        let width = micros(policy.warn_for) / 30;
        let slack = Duration::from_secs(1);
        let before = |by: Duration| UnixTime(now.0.saturating_sub(micros(by)));
        let down = self.down();
        let Some(first) = down.first().map(|first| first.at) else { return false };
        let long_ago = first <= before(policy.warn_for + slack);
        let since = (now.0 / width).saturating_sub(29);
        let within = down.iter().filter(|one| one.at.0 / width >= since);
        let all_ill = self.counted((now.0 / width).saturating_sub(31), now, width).0 == 0;
        let three = within.clone().count() >= 3;
        // It had three already, and for long enough, a moment ago.
        let steady = within.take(3).all(|one| one.at <= before(slack));
        let told = self.warned.is_some_and(|warned| !self.was_calm(policy, warned, now));
        long_ago && all_ill && three && steady && !told && !self.was_calm(policy, first, now)
    }
}
