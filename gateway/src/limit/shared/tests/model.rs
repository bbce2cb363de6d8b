//! The simplest correct version of the script: remember every charge, and count.

use weir_common::limit::calendar::{CalendarQuota, Count};
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::rolling::RollingQuota;
use weir_common::limit::token_bucket::Bucket;
use weir_common::time::{Moment, Tick};

use super::*;

/// What one key has used.
#[derive(Clone, Debug)]
pub(super) struct Model {
    form: Form,
    /// The newest charge.
    charged: u64,
}

#[derive(Clone, Debug)]
enum Form {
    Fresh,
    /// Its entries, and the stamp from which on they counted when the newest was charged.
    Window {
        unit: u64,
        entries: Vec<(u64, u32)>,
        since: u64,
    },
    Bucket(Bucket),
    /// What was used in the period of the newest charge, and in an earlier one.
    Count(Count, Count),
}

fn grain(quota: RollingQuota) -> u64 {
    if quota.requests > EXACT_MAX { micros(slots::grain(quota.window)) } else { 0 }
}

/// The unit of a window's stamps, and how long its charges matter.
fn unit(quota: RollingQuota, horizon: u64) -> (u64, u64) {
    let of = |long| (0..32).map(|power| 1 << power).find(|unit| long <= unit << 30).unwrap();
    let own = micros(quota.window) + grain(quota);
    let unit = of(own).max(of(horizon).min(32));
    (unit, horizon.max(own).min(unit * AGE_MAX))
}

/// A horizon has at most so many units.
const AGE_MAX: u64 = 7 << 29;

/// When an entry for a charge at `at` is stamped.
fn stamp(at: u64, grain: u64, unit: u64) -> u64 {
    let end = at.checked_div(grain).map_or(at, |slot| (slot + 1) * grain);
    end.next_multiple_of(unit)
}

fn tokens(bucket: &Bucket) -> (Tick, u32) {
    (bucket.at(), bucket.tokens_spent())
}

impl Model {
    pub(super) fn new() -> Self {
        Self { form: Form::Fresh, charged: 0 }
    }

    /// The charges that matter, and whether they are a calendar's.
    fn charges(&self, horizon: u64, now: u64) -> (Vec<(u64, u32)>, bool) {
        match &self.form {
            Form::Fresh => (Vec::new(), false),
            Form::Window { entries, since, .. } => {
                let live =
                    |(at, _): &&(u64, u32)| at >= since || at + horizon > now.max(self.charged);
                (entries.iter().filter(live).copied().collect(), false)
            }
            Form::Bucket(bucket) => (vec![(bucket.at().0, bucket.tokens_spent())], false),
            Form::Count(count, _) => (vec![(count.at().0, count.used())], true),
        }
    }

    fn fit(&mut self, check: &SharedCheck, now: u64) {
        let horizon = check.horizon.window;
        match (&self.form, check.quota) {
            (Form::Bucket(_), Quota::Bucket(_)) | (Form::Count(..), Quota::Calendar(_)) => {}
            (form, Quota::Rolling(quota)) => {
                let is_window = matches!(form, Form::Window { .. } | Form::Fresh);
                let grain = if is_window { 0 } else { grain(quota) };
                let (unit, horizon) = unit(quota, horizon);
                if let Form::Window { unit: own, entries, .. } = form {
                    let matters = entries.last().is_some_and(|(at, _)| at + horizon > now);
                    let fits = *own > unit || horizon <= own * AGE_MAX;
                    if *own == unit || matters && fits {
                        return;
                    }
                }
                let mut entries: Vec<(u64, u32)> = Vec::new();
                for (at, count) in self.charges(horizon, now).0 {
                    let at = stamp(at, grain, unit);
                    match entries.last_mut().filter(|last| last.0 == at) {
                        Some(last) => last.1 += count,
                        None if count > 0 && at + horizon > now => entries.push((at, count)),
                        None => {}
                    }
                }
                if !is_window {
                    self.charged = match &self.form {
                        Form::Bucket(bucket) => bucket.at().0,
                        Form::Count(count, _) => count.at().0,
                        _ => 0,
                    };
                }
                if entries.is_empty() {
                    self.charged = 0;
                }
                self.form = Form::Window { unit, entries, since: 0 };
            }
            (_, Quota::Bucket(quota)) => {
                let (charges, capped) = self.charges(horizon, now);
                let mut bucket = Bucket::default();
                for (at, count) in charges {
                    let at =
                        if capped { at } else { at.min(self.charged.max(tokens(&bucket).0.0)) };
                    let count = if capped { count.min(quota.burst) } else { count };
                    bucket.owe(quota.rate, count, Tick(at));
                }
                self.form = Form::Bucket(bucket);
            }
            (form, Quota::Calendar(quota)) => {
                let starts = quota.period.starts;
                let newest = match form {
                    Form::Window { .. } => self.charged,
                    _ => u64::MAX,
                };
                let charges = self.charges(horizon, now).0;
                let within = || charges.iter().filter(|(at, _)| *at >= starts.0);
                let used = within().map(|(_, count)| count).sum();
                let count = match within().next_back() {
                    Some((at, _)) if used > 0 => Count::of(used, starts, Tick(*at.min(&newest))),
                    _ => Count::default(),
                };
                self.form = Form::Count(count, Count::default());
            }
            (_, Quota::Concurrency(_)) => {}
        }
    }

    /// Decides a check; its quota must have the period of `now`.
    fn decide(&mut self, check: &SharedCheck, now: u64) -> (Decision, Usage) {
        self.fit(check, now);
        match (&self.form, check.quota) {
            (Form::Window { entries, .. }, Quota::Rolling(quota)) => {
                window(entries, quota, check.cost, now.max(self.charged))
            }
            (Form::Bucket(bucket), Quota::Bucket(quota)) => {
                (bucket.decide(quota, check.cost, Tick(now)), bucket.usage(quota, Tick(now)))
            }
            (Form::Count(newest, earlier), Quota::Calendar(quota)) => {
                let count = counted([*newest, *earlier], quota);
                (count.decide(quota, check.cost), count.usage(quota, Tick(now)))
            }
            other => panic!("{other:?}"),
        }
    }

    fn charge(&mut self, check: &SharedCheck, now: u64, usage: Usage) -> Usage {
        match (&mut self.form, check.quota) {
            (Form::Window { unit: own, entries, since }, Quota::Rolling(quota)) => {
                self.charged = self.charged.max(now);
                let (_, horizon) = unit(quota, check.horizon.window);
                cut(entries, horizon, *own, self.charged);
                *since = (self.charged + 1).saturating_sub(micros(quota.window));
                let (unit, grain) = (*own, grain(quota));
                let at = stamp(self.charged, grain, unit);
                match entries.last_mut() {
                    Some(last) if grain > 0 && last.0 >= at => last.1 += check.cost,
                    Some(last) if last.0 >= at => {
                        let at = last.0 + unit;
                        entries.push((at, check.cost));
                    }
                    _ => entries.push((at, check.cost)),
                }
                let full_at = Tick(entries.last().unwrap().0).plus(quota.window);
                Usage { remaining: usage.remaining - check.cost, full_at, ..usage }
            }
            (Form::Bucket(bucket), Quota::Bucket(quota)) => {
                bucket.charge(quota, check.cost, Tick(now))
            }
            (Form::Count(newest, earlier), Quota::Calendar(quota)) => {
                let mut count = counted([*newest, *earlier], quota);
                let usage = count.charge(quota, check.cost, Tick(now));
                if newest.at() >= Tick(quota.period.stops.0) {
                    *earlier = Count::of(count.used(), quota.period.starts, Tick(now));
                    let used = newest.used() + check.cost;
                    *newest = Count::of(used, newest.starts(), newest.at());
                } else {
                    if newest.at() < Tick(quota.period.starts.0) {
                        *earlier = *newest;
                    }
                    *newest = count;
                }
                usage
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What counts in the quota's period of the newest charges and of earlier ones.
fn counted([newest, earlier]: [Count; 2], quota: CalendarQuota) -> Count {
    let [starts, stops] = [quota.period.starts, quota.period.stops].map(|at| Tick(at.0));
    match newest.at() >= stops && earlier.at() >= starts && earlier.used() > newest.used() {
        true => earlier,
        false => newest,
    }
}

/// Forgets what the horizon does not have: all of it together, or once it is long enough ago.
fn cut(entries: &mut Vec<(u64, u32)>, horizon: u64, unit: u64, now: u64) {
    let all = entries.last().is_none_or(|(at, _)| at + horizon <= now);
    let long = (2 * horizon).min((unit * 15) << 28);
    if all || entries[0].0 + long <= now {
        entries.retain(|(at, _)| at + horizon > now);
    }
}

/// Counts what is in the window, and tries every time at which something leaves it.
fn window(entries: &[(u64, u32)], quota: RollingQuota, cost: u32, now: u64) -> (Decision, Usage) {
    let window = micros(quota.window);
    let used = |at: u64| -> u32 {
        entries.iter().filter(|(stamp, _)| stamp + window > at).map(|(_, count)| count).sum()
    };
    let fits = |at: u64| used(at) + cost <= quota.requests;
    let decision = if cost > quota.requests {
        Decision::TooLarge
    } else if fits(now) {
        Decision::Admit
    } else {
        let leaves = entries.iter().map(|(stamp, _)| stamp + window);
        Decision::Refuse { retry_at: Tick(leaves.filter(|at| fits(*at)).min().unwrap()) }
    };
    let full_at = entries.last().filter(|_| used(now) > 0).map_or(now, |last| last.0 + window);
    let remaining = quota.requests.saturating_sub(used(now));
    (decision, Usage { limit: quota.requests, remaining, full_at: Tick(full_at) })
}

/// Decides checks at `now`, all or none.
pub(super) fn judge(
    models: &mut [Model],
    checks: &[SharedCheck],
    now: u64,
) -> (SharedOutcome, Vec<Expected>) {
    let now_at = Moment { tick: Tick(now), unix: UnixTime(now) };
    let checks: Vec<SharedCheck> = checks
        .iter()
        .map(|check| SharedCheck { quota: check.quota.at(now_at), ..check.clone() })
        .collect();
    let decided: Vec<(Decision, Usage)> =
        models.iter_mut().zip(&checks).map(|(model, check)| model.decide(check, now)).collect();
    let admitted = checks
        .iter()
        .zip(&decided)
        .all(|(check, (decision, _))| !check.enforced || *decision == Decision::Admit);
    let results = models.iter_mut().zip(&checks).zip(decided);
    let results = results.map(|((model, check), (decision, usage))| {
        let usage = match admitted && decision == Decision::Admit {
            true => model.charge(check, now, usage),
            false => usage,
        };
        Expected::of(decision, usage)
    });
    let results = results.collect();
    (if admitted { SharedOutcome::Admitted } else { SharedOutcome::Refused }, results)
}
