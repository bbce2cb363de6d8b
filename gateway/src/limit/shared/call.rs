//! Packs the arguments of the script that decides in the shared store. (core)
//!
//! Invariant: the script has every number of a check with each call: the store has no
//! configuration.
//!
//! Not here: the decision (`decide.lua`), its reply (`shared::reply`), connections to the store,
//! what a gateway remembers of its own admissions.

use weir_common::limit::calendar::CalendarQuota;
use weir_common::limit::quota::{Horizon, Quota};
use weir_common::limit::rolling::{EXACT_MAX, RollingQuota};
use weir_common::limit::slots;
use weir_common::time::{UnixTime, micros};

/// The script: one call decides all checks of a request.
pub const SCRIPT: &str = include_str!("decide.lua");

/// A stamp has 32 bits of units, and a window at most this many: a quarter of them.
const UNITS_MAX: u64 = 1 << 30;

/// The unit of stamps for the sake of longer windows of other plans, in microseconds, at most: a
/// store gives no two requests of a key stamps that are nearer, and a key has 30,000 in a second.
const OTHERS_UNIT_MAX: u64 = 32;

/// The units that a horizon has at most: the script's `HORIZON_MAX`.
const HORIZON_UNITS_MAX: u64 = 7 << 29;

/// The most admissions that one call replays: the store does nothing else meanwhile.
pub const REPLAY_MAX: usize = 1_024;

/// What a call does with the states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMode {
    /// Decides, and charges nothing.
    Preview,
    /// Decides, and charges if every enforced check admits.
    Charge,
}

/// One check of a call.
#[derive(Clone, Debug)]
pub struct SharedCheck {
    /// The key in the store. The keys of one call differ.
    pub key: Vec<u8>,
    /// How much the key may use.
    pub quota: Quota,
    /// How long a charge can matter under every quota that the limit may have.
    pub horizon: Horizon,
    /// What the request costs.
    pub cost: u32,
    /// Whether the limit refuses, or only reports what it would have refused.
    pub enforced: bool,
    /// What the store must have counted for this gateway.
    pub claim: Option<WitnessClaim>,
    /// What the store must count from now on, in any order: at most [`REPLAY_MAX`] of them.
    pub replayed: Vec<ReplayedAdmission>,
    /// Of a bucket: the lease that the gateway returns, and the one that it wants.
    pub lease: Option<LeaseRequest>,
    /// Of requests in flight: the slots that the gateway uses, and those that it wants.
    pub slots: Option<SlotRequest>,
}

/// What a gateway has and wants of a key's slots. A check that costs nothing admits no request, and
/// replaces the slots that the gateway has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// Names the gateway.
    pub gateway: u64,
    /// Numbers the calls of the gateway: an older one takes back nothing that a newer one got.
    pub sequence: u64,
    /// How many slots requests use that were admitted. The store counts them, whatever the quota.
    pub in_use: u32,
    /// How many the gateway needs so that the request of this call is admitted.
    pub needed: u32,
    /// How many it wants in all; it may get fewer.
    pub wanted: u32,
}

/// What a gateway returns and wants of a bucket's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Names the gateway: it has one lease of a key at most.
    pub gateway: u64,
    /// The lease that it returns. A store that does not have it ignores that.
    pub returned: Option<ReturnedLease>,
    /// How many tokens it wants; it may get fewer, or none.
    pub wanted: u32,
}

/// A lease that ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedLease {
    /// When it would have ended: this names it.
    pub ends: UnixTime,
    /// The tokens that were not spent.
    pub unspent: u32,
}

/// What a gateway knows that the store has counted for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WitnessClaim {
    /// Of a window: the newest admission. Where the store does not have it, the call is forgotten.
    Admission {
        /// Its number when it was charged.
        sequence: u64,
        /// Its stamp.
        stamp: UnixTime,
        /// What this gateway charged with that stamp.
        count: u32,
    },
    /// Of a bucket: what this gateway alone has spent. The store takes the larger debt.
    Debt {
        /// Whole tokens.
        tokens: u32,
        /// The rest of a token, in the units of [`Rate::token_units`].
        ///
        /// [`Rate::token_units`]: weir_common::limit::token_bucket::Rate::token_units
        units: u64,
        /// When so much was spent and not yet refilled.
        at: UnixTime,
    },
    /// Of a calendar: what this gateway alone has used. The store takes the larger count.
    Used {
        /// When the period started.
        starts: UnixTime,
        /// How much was used in it.
        count: u32,
    },
}

/// An admission of a window that a gateway was given, and what it charged with that stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedAdmission {
    /// Its stamp.
    pub stamp: UnixTime,
    /// What was charged.
    pub count: u32,
}

/// The arguments of a call: first those that the script receives as `ARGV`, without the keys. A
/// call that the store receives after `not_after` charges nothing.
#[must_use]
pub fn encode(checks: &[SharedCheck], mode: CallMode, not_after: Option<UnixTime>) -> Vec<Vec<u8>> {
    let mut arguments = Vec::with_capacity(1 + checks.len());
    let mut first = Packed::with_capacity(9);
    first.byte(u8::from(mode == CallMode::Charge));
    first.number(not_after.map_or(0, |at| at.0));
    arguments.push(first.0);
    arguments.extend(checks.iter().map(pack));
    arguments
}

/// The bytes of a check without what it replays.
const CHECK_BYTES: usize = 2 + 3 * 4 + 7 * 8 + 6;

/// The bytes of what a check says of leases.
const LEASE_BYTES: usize = 8 + 8 + 4 + 4;

/// The bytes of one replayed admission.
const REPLAYED_BYTES: usize = 8 + 4;

fn pack(check: &SharedCheck) -> Vec<u8> {
    let replayed = check.replayed.get(..REPLAY_MAX).unwrap_or(&check.replayed);
    let numbers = numbers(check);
    let bytes = CHECK_BYTES + LEASE_BYTES + replayed.len() * REPLAYED_BYTES;
    let mut to = Packed::with_capacity(bytes);
    to.byte(numbers.kind);
    to.byte(u8::from(check.enforced));
    to.word(check.cost);
    to.word(check.quota.limit());
    to.word(numbers.count);
    numbers.own.into_iter().for_each(|number| to.number(number));
    to.number(numbers.horizon);
    to.number(check.horizon.token);
    to.word(numbers.unit);
    to.0.extend_from_slice(numbers.tag);
    if let (Quota::Concurrency(_), Some(slots)) = (check.quota, check.slots) {
        to.0.extend_from_slice(&slots.gateway.to_be_bytes());
    }
    if let (Quota::Bucket(_), Some(lease)) = (check.quota, check.lease) {
        to.0.extend_from_slice(&lease.gateway.to_be_bytes());
        to.number(lease.returned.map_or(0, |own| own.ends.0));
        to.word(lease.returned.map_or(0, |own| own.unspent));
        to.word(lease.wanted);
    }
    let mut replayed = replayed.to_vec();
    replayed.sort_by_key(|one| one.stamp);
    for one in replayed {
        to.number(one.stamp.0);
        to.word(one.count);
    }
    to.0
}

/// The numbers of a check that depend on its algorithm.
#[derive(Default)]
struct Numbers {
    kind: u8,
    count: u32,
    own: [u64; 5],
    horizon: u64,
    unit: u32,
    tag: &'static [u8],
}

fn numbers(check: &SharedCheck) -> Numbers {
    let horizon = check.horizon.window;
    match check.quota {
        Quota::Rolling(quota) => {
            let window = micros(quota.window);
            let Stamping { grain, unit, horizon } = Stamping::of(quota, horizon);
            let (sequence, stamp, count) = match check.claim {
                Some(WitnessClaim::Admission { sequence, stamp, count }) => {
                    (sequence, stamp.0, count)
                }
                _ => (0, 0, 0),
            };
            Numbers {
                kind: 1,
                count,
                own: [window, grain, unit, sequence, stamp],
                horizon,
                // At most the microseconds of a month, divided by 2^30.
                unit: u32::try_from(unit).unwrap_or(u32::MAX),
                tag: b"w1",
            }
        }
        Quota::Bucket(quota) => {
            let (count, tokens, units, at) = match check.claim {
                Some(WitnessClaim::Debt { tokens, units, at }) => (1, tokens, units, at.0),
                _ => (0, 0, 0, 0),
            };
            let (token, refill) = (quota.rate.token_units(), quota.rate.refill_units());
            let own = [token, refill, tokens.into(), units, at];
            Numbers { kind: 2, count, own, horizon, unit: 0, tag: b"b1" }
        }
        Quota::Calendar(quota) => {
            let (starts, count) = match check.claim {
                Some(WitnessClaim::Used { starts, count }) => (starts.0, count),
                _ => (0, 0),
            };
            let [previous, own, next, last] = periods(quota);
            let own = [previous.0, own.0, next.0, last.0, starts];
            Numbers { kind: 3, count, own, horizon, unit: 0, tag: b"c1" }
        }
        Quota::Concurrency(_) => {
            let own = check
                .slots
                .map_or([0; 3], |own| [u64::from(own.needed), u64::from(own.wanted), own.sequence]);
            let [needed, wanted, sequence] = own;
            let own = [needed, wanted, sequence, 0, 0];
            let count = check.slots.map_or(0, |own| own.in_use);
            Numbers { kind: 4, count, own, horizon, unit: 0, tag: b"f1" }
        }
    }
}

/// How the charges of a window are stamped, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamping {
    /// How long a slot is where it counts in slots, and otherwise 0.
    grain: u64,
    /// The unit of its stamps.
    pub(super) unit: u64,
    /// How long a charge matters.
    horizon: u64,
}

impl Stamping {
    /// Of a window whose charges matter for `horizon` to windows of other plans. Where that is too
    /// long for fine stamps, what is older matters to none.
    pub(super) fn of(quota: RollingQuota, horizon: u64) -> Self {
        let unit_of = |long: u64| long.div_ceil(UNITS_MAX).next_power_of_two();
        let slotted = quota.requests > EXACT_MAX;
        let grain = if slotted { micros(slots::grain(quota.window)) } else { 0 };
        let own = micros(quota.window) + grain;
        let unit = unit_of(horizon).min(OTHERS_UNIT_MAX).max(unit_of(own));
        Self { grain, unit, horizon: horizon.clamp(own, HORIZON_UNITS_MAX * unit) }
    }
}

/// When the period before the quota's starts, its own, the next one and the one after that: the
/// store's clock may be in another period than the gateway's.
fn periods(quota: CalendarQuota) -> [UnixTime; 4] {
    let own = quota.period;
    let previous = quota.calendar.period(UnixTime(own.starts.0.saturating_sub(1)));
    let next = quota.calendar.period(own.stops);
    [previous.start, own.starts, own.stops, next.end]
}

/// Numbers as the script unpacks them: the highest byte first, and times as floating-point numbers,
/// which are exact up to 2^53.
struct Packed(Vec<u8>);

impl Packed {
    fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn word(&mut self, word: u32) {
        self.0.extend_from_slice(&word.to_be_bytes());
    }

    #[expect(clippy::cast_precision_loss, reason = "the script has no other numbers")]
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&(number as f64).to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
