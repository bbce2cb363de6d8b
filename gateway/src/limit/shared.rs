//! Checks limits in a store that several gateways share, and alone while it is away.
//!
//! A decision is one call: a script in the store checks all limits of a request, and charges all or
//! none. Each gateway keeps what it was given as a witness; where the store has forgotten it, the
//! gateway tells it again before anything is admitted. Tokens of buckets are leased, so that few
//! requests need a call.
//!
//! # Invariants
//!
//! 1. What the store confirms is recorded before the request is answered: each gateway has a copy
//!    of all that it admitted.
//! 2. A call whose fate is unknown is not repeated; it may have charged, and never charges late.
//! 3. While the store is away, gateways admit shares that add up to the allowance, and all that
//!    they admitted is in the store before they ask it again for the same key.
//! 4. Times of the memory store are the shared store's: microseconds since 1970.
//!
//! # Not here
//!
//! The script and its calls (`shared::call`, `shared::reply`), leases (`shared::leasing`), the
//! connection (`shared::connecting`), who asks (`limit::limiter`).

#[path = "shared/address.rs"]
pub mod address;
#[path = "shared/alone.rs"]
mod alone;
#[path = "shared/availability.rs"]
mod availability;
#[path = "shared/call.rs"]
pub mod call;
#[path = "shared/changes.rs"]
mod changes;
#[path = "shared/connecting.rs"]
mod connecting;
#[path = "shared/connection.rs"]
pub mod connection;
#[path = "shared/heartbeat.rs"]
mod heartbeat;
#[path = "shared/lease.rs"]
mod lease;
#[path = "shared/leasing.rs"]
mod leasing;
#[path = "shared/remote.rs"]
mod remote;
#[path = "shared/reply.rs"]
pub mod reply;
#[path = "shared/share.rs"]
pub mod share;
#[path = "shared/standing.rs"]
pub mod standing;
#[path = "shared/testimony.rs"]
mod testimony;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::{Clock, Moment, Tick, UnixTime};

use self::address::StoreAddress;
use self::availability::Availability;
pub use self::connecting::{BEAT_EVERY, Beat};
use self::connection::{Script, StoreConnection};
use self::leasing::Leases;
use self::share::Place;
use self::standing::Standings;
use super::memory::Store;
use super::{CHECKS_MAX, CheckResult, LimitCheck, Quota, Verdict};

/// The slot of the entries that unknown keys share.
const UNKNOWN_SLOT: u64 = 0;

/// The checks of a request, with the keys of the states that apply.
type Checks = ArrayVec<LimitCheck, CHECKS_MAX>;

/// How a gateway uses the store.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    /// How to reach it.
    pub address: StoreAddress,
    /// How long a request waits for it.
    pub timeout: Duration,
    /// How many gateways there are at least.
    pub gateways_min: u32,
    /// The fingerprint of the secret that keys are derived from.
    pub fingerprint: String,
    /// What names this gateway among the others.
    pub id: String,
}

/// An enforced limit refuses all requests while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreAway;

/// The store that gateways share.
pub struct SharedStore {
    config: SharedConfig,
    clock: Clock,
    decide: Script,
    heartbeat: Script,
    connection: Mutex<Option<StoreConnection>>,
    availability: Availability,
    /// This gateway among those that run: `nth`, then `of`, 32 bits each.
    place: AtomicU64,
    /// The store's time less this machine's ticks, in microseconds: at least, and at most.
    ahead: [AtomicI64; 2],
    /// The gateway's id as a number: names its leases, and its stamps where it decides alone.
    id_bits: u64,
    changes: AtomicU64,
    /// When a key that the store cannot read was logged last, in ticks.
    fault_reported: AtomicU64,
    connections: AtomicU64,
    /// Heartbeats in a row that were not answered in time.
    missed: AtomicU64,
    /// When the store began to answer again, in ticks; 0 while it does not.
    answers_since: AtomicU64,
    standings: Standings,
    leases: Leases,
    /// What has happened since the start.
    pub counts: StoreCounts,
}

/// What has happened to a shared store's calls since the start.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Calls that were answered.
    pub answered: AtomicU64,
    /// Calls that were not answered in time, or refused.
    pub failed: AtomicU64,
    /// Decisions made without the store.
    pub alone: AtomicU64,
    /// Decisions by a remembered refusal, without a call.
    pub remembered: AtomicU64,
    /// Decisions by tokens that were leased, without a call.
    pub leased: AtomicU64,
    /// Calls to which the store answered that it has forgotten.
    pub forgotten: AtomicU64,
    /// Times at which the store's clock was seen to jump ahead.
    pub jumps: AtomicU64,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SharedStore {
    /// A store that is not connected yet: [`SharedStore::beat`] connects.
    #[must_use]
    pub fn new(config: SharedConfig, clock: Clock) -> Self {
        let now = clock.now();
        let ahead = now.unix.0.cast_signed() - now.tick.0.cast_signed();
        let alone = Place { nth: config.gateways_min - 1, of: config.gateways_min };
        let id_bits = u64::from_str_radix(&config.id, 16).unwrap_or_default();
        Self {
            config,
            clock,
            id_bits,
            decide: Script::new(call::SCRIPT),
            heartbeat: Script::new(heartbeat::SCRIPT),
            connection: Mutex::default(),
            availability: Availability::default(),
            place: AtomicU64::new(packed(alone)),
            ahead: [AtomicI64::new(ahead), AtomicI64::new(ahead)],
            changes: AtomicU64::new(0),
            fault_reported: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            answers_since: AtomicU64::new(0),
            standings: Standings::default(),
            leases: Leases::default(),
            counts: StoreCounts::default(),
        }
    }

    /// Whether requests ask the store.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.availability.is_available()
    }

    /// This gateway among those that run, as far as is known.
    #[must_use]
    pub fn place(&self) -> Place {
        unpacked(self.place.load(Ordering::Relaxed))
    }

    /// A moment of this machine as the counters of this process count it: both its times are the
    /// store's.
    #[must_use]
    pub fn moment(&self, now: Moment) -> Moment {
        let tick = self.time(now.tick);
        Moment { tick, unix: UnixTime(tick.0) }
    }

    /// The latest time that the store can have at a tick of this machine.
    #[must_use]
    pub fn time(&self, now: Tick) -> Tick {
        let [_, latest] = self.times(now);
        latest
    }

    /// The earliest and the latest time that the store can have at a tick of this machine.
    fn times(&self, now: Tick) -> [Tick; 2] {
        self.ahead
            .each_ref()
            .map(|ahead| Tick(now.0.saturating_add_signed(ahead.load(Ordering::Relaxed))))
    }

    /// The latest tick of this machine at which the store can have reached a time of its own.
    fn local(&self, time: Tick) -> Tick {
        let [earliest, _] = &self.ahead;
        Tick(time.0.saturating_add_signed(-earliest.load(Ordering::Relaxed)))
    }

    /// Records the store's time in a reply to a call that was sent and answered at these ticks.
    fn learn_time(&self, time: UnixTime, (sent, answered): (Tick, Tick)) {
        let ahead = |tick: Tick| time.0.cast_signed() - tick.0.cast_signed();
        let [earliest, latest] = &self.ahead;
        let jump = ahead(answered) - latest.load(Ordering::Relaxed);
        // More than any call takes: the clock itself has changed.
        if jump > 1_000_000 {
            self.counts.jumps.fetch_add(1, Ordering::Relaxed);
        }
        earliest.store(ahead(answered), Ordering::Relaxed);
        latest.store(ahead(sent), Ordering::Relaxed);
    }

    /// The verdict on a request that a remembered refusal refuses; none where the store must be
    /// asked.
    #[must_use]
    pub fn remembered(&self, store: &Store, checks: &[LimitCheck], now: Tick) -> Option<Verdict> {
        let [earliest, latest] = self.times(now);
        let checks = effective(store, checks, latest);
        let refusal = |check: &LimitCheck| self.standings.refusal(check, latest);
        if !checks.iter().any(|check| check.enforced && refusal(check).is_some()) {
            return None;
        }
        self.counts.remembered.fetch_add(1, Ordering::Relaxed);
        let answer = |check: &LimitCheck| match refusal(check) {
            Some(refusal) => self.answer(refusal),
            None => self.answer(self.unasked(check, earliest)),
        };
        Some(Verdict::new(checks.iter().map(answer).collect(), false))
    }

    /// Whether an enforced limit is known to have nothing left, without a call.
    #[must_use]
    pub fn is_used_up(&self, checks: &[LimitCheck], now: Tick) -> bool {
        let [_, latest] = self.times(now);
        let used_up = |check: &LimitCheck| {
            let usage = self.standings.usage(check, latest);
            usage.is_some_and(|usage| usage.remaining == 0)
        };
        checks.iter().any(|check| check.enforced && used_up(check))
    }

    /// What is known of a check that the store was not asked: it does not refuse.
    fn unasked(&self, check: &LimitCheck, now: Tick) -> CheckResult {
        let limit = check.quota.limit();
        let usage = self.standings.usage(check, now);
        let usage = usage.unwrap_or(Usage { limit, remaining: limit, full_at: now });
        CheckResult { decision: Decision::Admit, usage }
    }

    /// A result in ticks of this machine, from one in the store's time.
    fn answer(&self, found: CheckResult) -> CheckResult {
        let decision = match found.decision {
            Decision::Refuse { retry_at } => Decision::Refuse { retry_at: self.local(retry_at) },
            other => other,
        };
        let usage = Usage { full_at: self.local(found.usage.full_at), ..found.usage };
        CheckResult { decision, usage }
    }

    /// Checks every limit and charges all or none; `charge` is false for a preview. What counts as
    /// in flight is charged in `store`: the caller must hold it.
    pub async fn check(
        &self,
        store: &Store,
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, StoreAway> {
        let now = self.clock.now().tick;
        let [_, latest] = self.times(now);
        let effective = effective(store, checks, latest);
        if let Some(connection) = self.connection() {
            if charge && let Some(verdict) = self.wait_for_lease(store, &effective).await {
                return Ok(verdict);
            }
            let checked = self.check_remotely(&connection, store, &effective, charge).await;
            if let Some(verdict) = checked {
                return Ok(verdict);
            }
        }
        self.counts.alone.fetch_add(1, Ordering::Relaxed);
        self.alone(store, &effective, charge)
    }
}

/// The checks with the keys of the states that apply.
fn effective(store: &Store, checks: &[LimitCheck], now: Tick) -> Checks {
    let applying = checks.iter().map(|check| match store.effective(check, now) {
        key if key == check.key => *check,
        // Unknown keys that share an entry here share it in the store, too.
        key => LimitCheck { key, slot: UNKNOWN_SLOT, known: true, ..*check },
    });
    applying.collect()
}

fn packed(place: Place) -> u64 {
    u64::from(place.nth) << 32 | u64::from(place.of)
}

fn unpacked(bits: u64) -> Place {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    Place { nth: half(bits >> 32), of: half(bits) }
}

/// Whether a check counts requests in flight: each gateway has its share of those.
fn is_in_flight(check: &LimitCheck) -> bool {
    matches!(check.quota, Quota::Concurrency(_))
}
