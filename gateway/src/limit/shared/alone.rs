//! Decides without the store: by this gateway's share of each allowance, and by what it was given
//! itself.
//!
//! Not here: when the store counts as away (`shared::availability`).

use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::quota::Quota;
use weir_common::time::{Moment, Tick, UnixTime, micros};

use super::super::memory::Store;
use super::super::{CheckResult, LimitCheck, StoreFailure, Verdict};
use super::call::unit_of;
use super::share::Place;
use super::store_time::StoreTime;
use super::{Checks, SharedStore, StoreAway, is_in_flight, local};

/// When a client whose gateway has no share should come back, in microseconds: the store may be
/// back then.
const RETRY_AFTER: u64 = 1_000_000;

/// How many gateways can have stamps of their own.
const STAMP_CLASSES: u64 = 1_024;

impl SharedStore {
    /// Decides by shares; an error where an enforced limit refuses instead.
    pub(super) fn alone(
        &self,
        (store, time): (&Store, &StoreTime),
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, StoreAway> {
        let refuses = |check: &LimitCheck| {
            check.enforced && check.on_failure == StoreFailure::Refuse && !is_in_flight(check)
        };
        if checks.iter().any(refuses) {
            return Err(StoreAway);
        }
        self.by_share((store, time), checks, charge)
    }

    /// A time from `now` on that no other gateway gives to what it admits alone: a stamp names its
    /// admission in the store, so two gateways must not give the same.
    fn own_stamp(&self, checks: &[LimitCheck], now: Tick) -> Tick {
        let unit = checks.iter().map(|check| match check.quota {
            Quota::Rolling(quota) => unit_of(check.horizon.window.max(micros(quota.window))),
            _ => 1,
        });
        let unit = unit.max().unwrap_or(1);
        let (step, own) = (unit * STAMP_CLASSES, unit * (self.id_bits % STAMP_CLASSES));
        let at = now.0 - now.0 % step + own;
        Tick(if at < now.0 { at + step } else { at })
    }

    /// Decides by this gateway's shares, at the latest time that the keys' server can have.
    pub(super) fn by_share(
        &self,
        (store, time): (&Store, &StoreTime),
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, StoreAway> {
        let [_, now] = time.range(self.clock.now().tick);
        let place = self.place();
        let shares: Checks = checks.iter().filter_map(|check| share(check, place, now)).collect();
        let has_none = |check: &LimitCheck| {
            check.enforced && is_shared_out(check) && share(check, place, now).is_none()
        };
        let lacks = checks.iter().any(has_none);
        let decide = |at, charge| store.decide(&shares, at, charge).map_err(|_moved| StoreAway);
        let mut verdict = decide(now, false)?;
        if charge && !lacks && verdict.is_admitted() {
            verdict = decide(self.own_stamp(&shares, now), true)?;
            let charged = verdict.answers().zip(&shares);
            let charged = charged.filter(|(answer, _)| answer.decision == Decision::Admit);
            for (answer, share) in charged {
                match is_in_flight(share) {
                    true => self.slots.note(store, share, now),
                    false => self.standings.owe(share, answer.usage, now),
                }
            }
        }
        let mut found = verdict.answers().zip(&shares).peekable();
        let answers = checks.iter().map(|check| {
            let limit = check.quota.limit();
            let answer = match found.next_if(|(_, share)| share.key == check.key) {
                Some((answer, _)) => {
                    CheckResult { usage: Usage { limit, ..answer.usage }, ..*answer }
                }
                None if has_none(check) => {
                    let retry_at = Tick(now.0 + RETRY_AFTER);
                    let usage = Usage { limit, remaining: 0, full_at: retry_at };
                    CheckResult { decision: Decision::Refuse { retry_at }, usage }
                }
                None => self.unasked(check, now),
            };
            local(time, answer)
        });
        Ok(Verdict::new(answers.collect(), verdict.is_admitted() && !lacks))
    }
}

/// Whether this gateway decides a check by its share.
fn is_shared_out(check: &LimitCheck) -> bool {
    is_in_flight(check) || check.on_failure == StoreFailure::LocalShare
}

/// The check of a gateway's share of an allowance; none where it gets nothing, or does not check.
fn share(check: &LimitCheck, place: Place, now: Tick) -> Option<LimitCheck> {
    let moment = Moment { tick: now, unix: UnixTime(now.0) };
    let quota = place.share(check.quota.at(moment)).filter(|_| is_shared_out(check))?;
    Some(LimitCheck { quota, lasting: quota, ..*check })
}
