//! Checks limits in a store that several gateways share, and alone while it is away.
//!
//! A decision is one call: a script in the store checks all limits of a request, and charges all or
//! none; requests that wait for the same checks are one call. Each gateway keeps what it was given
//! as a witness; where the store has forgotten it, the gateway tells it again before anything is
//! admitted. Tokens of buckets and slots of requests in flight are leased, so that few requests
//! need a call.
//!
//! # Invariants
//!
//! 1. What the store confirms is recorded before the request is answered: each gateway has a copy
//!    of all that it admitted.
//! 2. A call whose fate is unknown is not repeated, but by a process that has taken the counters
//!    over meanwhile; it may have charged, and never charges late.
//! 3. While the store is away, gateways admit shares that add up to the allowance, and all that
//!    they admitted is in the store before they ask it again for the same key.
//! 4. Times of the memory store are the shared store's: microseconds since 1970.
//!
//! # Not here
//!
//! The script and its calls (`shared::call`, `shared::reply`), leases (`shared::token_leasing`,
//! `shared::slot_leasing`), the servers of the store and their connections (`shared::servers`,
//! `shared::connecting`), who asks (`limit::limiter`).

#[path = "shared/call.rs"]
pub mod call;
#[path = "shared/changes.rs"]
mod changes;
#[path = "shared/coalescing.rs"]
mod coalescing;
#[path = "shared/connecting.rs"]
mod connecting;
#[path = "shared/counts.rs"]
mod counts;
#[path = "shared/heartbeat.rs"]
mod heartbeat;
#[path = "shared/local_fallback.rs"]
mod local_fallback;
#[path = "shared/remote.rs"]
mod remote;
#[path = "shared/replay.rs"]
mod replay;
#[path = "shared/reply.rs"]
pub mod reply;
#[path = "shared/resets.rs"]
mod resets;
#[path = "shared/servers.rs"]
pub mod servers;
#[path = "shared/sharded.rs"]
mod sharded;
#[path = "shared/share.rs"]
pub mod share;
#[path = "shared/slot_lease.rs"]
mod slot_lease;
#[path = "shared/slot_leasing.rs"]
mod slot_leasing;
#[path = "shared/slot_renewal.rs"]
mod slot_renewal;
#[path = "shared/sync_state.rs"]
pub mod sync_state;
#[path = "shared/token_lease.rs"]
mod token_lease;
#[path = "shared/token_leasing.rs"]
mod token_leasing;
#[path = "shared/under_way.rs"]
mod under_way;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::log::limiter::LogLimiter;
use weir_common::time::{Clock, Moment, Tick, UnixTime};

use self::coalescing::Coalescing;
pub use self::connecting::{BEAT_EVERY, Beat};
use self::counts::StoreCounts;
use self::heartbeat::Heartbeat;
use self::remote::Asking;
use self::servers::address::{StoreAddress, Topology};
use self::servers::connection::StoreConnection;
use self::servers::link::Script;
use self::servers::login::Dial;
use self::servers::loss_log::LossLog;
use self::servers::node::{Over, StoreNode};
use self::servers::nodes::{NodeSet, Nodes, REGISTRY_TAG};
use self::servers::store_time::StoreTime;
use self::share::FleetPosition;
use self::slot_leasing::Slots;
use self::sync_state::SyncStates;
use self::token_leasing::Leases;
use self::under_way::UnderWay;
use super::memory::MemoryStore;
use super::{CHECKS_MAX, CheckResult, LimitCheck, Quota, Verdict};

/// The slot of the entries that unknown keys share.
const UNKNOWN_SLOT: u64 = 0;

/// How often it is logged that the store cannot read a key, or has keys between two servers.
const FAULTS_EVERY: Duration = Duration::from_secs(60);

/// The checks of a request, with the keys of the states that apply.
type Checks = ArrayVec<LimitCheck, CHECKS_MAX>;

/// How a gateway uses the store.
#[derive(Clone, Debug)]
pub struct SharedConfig {
    /// How to reach it.
    pub address: StoreAddress,
    /// How long a call may take.
    pub timeout: Duration,
    /// How many gateways there are at least.
    pub gateways_min: u32,
    /// The fingerprint of the secret that keys are derived from.
    pub fingerprint: String,
    /// What names this gateway among the others.
    pub id: String,
}

/// The store is away, or did not take a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreAway;

/// Why a request is not decided here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Another process has taken the counters over: it decides.
    Moved,
    /// The store is away, and an enforced limit refuses all requests then.
    Away,
}

/// The store that gateways share.
pub struct SharedStore {
    config: SharedConfig,
    clock: Clock,
    decide: Script,
    heartbeat: Script,
    nodes: Nodes,
    /// The time of a store whose servers are not known yet.
    time: StoreTime,
    /// This gateway among those that run, [packed](FleetPosition::packed).
    place: AtomicU64,
    /// The gateways that heartbeats have shown.
    pub gateways_heard: AtomicU32,
    /// Since when the server of heartbeats has not been replaced, nor lost its data, in ticks.
    known_since: AtomicU64,
    /// The gateway's id as a number: names its leases, and its stamps where it decides alone.
    id_bits: u64,
    changes: changes::Applied,
    /// When this process began to count.
    started_at: Tick,
    /// Of keys that the store cannot read.
    fault_log: LogLimiter<()>,
    /// Of keys between two servers.
    moving_log: LogLimiter<()>,
    connections: AtomicU64,
    sync_states: SyncStates,
    under_way: UnderWay,
    coalescing: Arc<Coalescing>,
    leases: Leases,
    slots: Slots,
    /// What has happened since the start.
    pub counts: StoreCounts,
    /// Which losses of servers are logged.
    losses: LossLog,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SharedStore {
    /// A store that is not connected yet: [`SharedStore::beat`] connects.
    #[must_use]
    pub fn new(config: SharedConfig, clock: Clock, dial: Arc<dyn Dial>) -> Self {
        let address = (config.address.clone(), config.timeout);
        let nodes = Nodes::new(address, clock.clone(), dial);
        let (time, started_at) = (StoreTime::new(clock.now()), clock.now().tick);
        let alone = FleetPosition { nth: config.gateways_min - 1, of: config.gateways_min };
        let id_bits = u64::from_str_radix(&config.id, 16).unwrap_or_default();
        Self {
            config,
            clock,
            id_bits,
            decide: Script::new(call::SCRIPT),
            heartbeat: Script::new(heartbeat::SCRIPT),
            nodes,
            time,
            place: AtomicU64::new(alone.packed()),
            gateways_heard: AtomicU32::new(0),
            known_since: AtomicU64::new(0),
            changes: changes::Applied::default(),
            started_at,
            fault_log: LogLimiter::new(FAULTS_EVERY),
            moving_log: LogLimiter::new(FAULTS_EVERY),
            connections: AtomicU64::new(0),
            sync_states: SyncStates::default(),
            under_way: UnderWay::default(),
            coalescing: Arc::default(),
            leases: Leases::default(),
            losses: LossLog::default(),
            slots: Slots::default(),
            counts: StoreCounts::default(),
        }
    }

    /// How many servers the store has, how many of them requests ask, and how many slots have none.
    #[must_use]
    pub fn servers(&self) -> [usize; 3] {
        let known = self.nodes.known();
        let available = known.nodes.iter().filter(|node| node.availability.is_available());
        [known.nodes.len(), available.count(), known.unserved()]
    }

    /// Where the store is, as logs name it.
    #[must_use]
    pub fn name(&self) -> String {
        let first = self.config.address.servers.first().map(ToString::to_string);
        let first = first.unwrap_or_default();
        match &self.config.address.topology {
            Topology::Sentinel(primary) => format!("{primary} of {first}"),
            Topology::Cluster => format!("Cluster of {first}"),
            Topology::Single => first,
        }
    }

    /// This gateway among those that run, as far as is known.
    #[must_use]
    pub fn place(&self) -> FleetPosition {
        FleetPosition::unpacked(self.place.load(Ordering::Relaxed))
    }

    /// Records which gateways the store has shown at a tick. One that knew this gateway for less
    /// time than others last may not know them yet.
    fn settle_place(&self, heard: &Heartbeat, now: Tick) {
        let since = Tick(self.known_since.load(Ordering::Relaxed));
        let knows_all = now.since(since) >= heartbeat::LASTS;
        let place = self.place().shown(heard.place, knows_all);
        self.place.store(place.packed(), Ordering::Relaxed);
        let before = self.gateways_heard.load(Ordering::Relaxed);
        let gateways = if knows_all { heard.gateways } else { heard.gateways.max(before) };
        self.gateways_heard.store(gateways, Ordering::Relaxed);
    }

    /// A moment of this machine as the counters of this process count it: both its times are the
    /// store's.
    #[must_use]
    pub fn moment(&self, now: Moment) -> Moment {
        let tick = self.time(now.tick);
        Moment { tick, unix: UnixTime(tick.0) }
    }

    /// The latest time that a server of the store can have at a tick of this machine.
    #[must_use]
    pub fn time(&self, now: Tick) -> Tick {
        let [_, latest] = self.times(now);
        latest
    }

    /// The clock of the server that has the keys of a request; where it is unknown, some server's.
    fn time_of<'k>(&'k self, known: &'k NodeSet, checks: &[LimitCheck]) -> &'k StoreTime {
        let own = checks.first().and_then(|check| known.of_slot(check.slot));
        own.or(known.nodes.first()).map_or(&self.time, |node| &node.time)
    }

    /// The connection to the server that has what all gateways have in common.
    fn registry(&self) -> Option<StoreConnection> {
        self.nodes.known().of_tag(REGISTRY_TAG)?.connection()
    }

    /// The verdict on a request that a remembered refusal refuses; none where the store must be
    /// asked.
    #[must_use]
    pub fn remembered(
        &self,
        store: &MemoryStore,
        checks: &[LimitCheck],
        now: Tick,
    ) -> Option<Verdict> {
        let known = self.nodes.known();
        let [_, latest] = self.time_of(&known, checks).range(now);
        let checks = self.effective(store, checks, latest);
        // What is decided while a key's server is away is the limit's setting.
        let own = self.node_of(&known, &checks);
        let time = &own.filter(|node| node.availability.is_available())?.time;
        let [earliest, latest] = time.range(now);
        let refusal = |check: &LimitCheck| match is_in_flight(check) {
            true => self.slots.refusal(store, check, latest),
            // Whatever is used of it.
            false if check.cost > check.quota.limit() => {
                Some(CheckResult { decision: Decision::TooLarge, ..self.unasked(check, earliest) })
            }
            false => self.sync_states.refusal(check, latest),
        };
        if !checks.iter().any(|check| check.enforced && refusal(check).is_some()) {
            return None;
        }
        self.counts.remembered.fetch_add(1, Ordering::Relaxed);
        let answer = |check: &LimitCheck| match refusal(check) {
            Some(refusal) => local(time, refusal),
            None => local(time, self.unasked(check, earliest)),
        };
        Some(Verdict::new(checks.iter().map(answer).collect(), false))
    }

    /// What is known of a check that the store was not asked: it does not refuse.
    fn unasked(&self, check: &LimitCheck, now: Tick) -> CheckResult {
        let limit = check.quota.limit();
        let usage = self.sync_states.usage(check, now);
        let usage = usage.unwrap_or(Usage { limit, remaining: limit, full_at: now });
        CheckResult { decision: Decision::Admit, usage }
    }

    /// Checks every limit and charges all or none; `charge` is false for a preview. What counts as
    /// in flight is counted in `store`, too: the caller must hold it.
    pub async fn check(
        &self,
        store: &MemoryStore,
        checks: &[LimitCheck],
        charge: bool,
    ) -> Result<Verdict, Undecided> {
        let known = self.nodes.known();
        let time = self.time_of(&known, checks);
        let [_, latest] = time.range(self.clock.now().tick);
        let effective = self.effective(store, checks, latest);
        let node = self.node_of(&known, &effective);
        if let Some(node) = node {
            if let Some(connection) = node.connection() {
                if charge && let Some(verdict) = self.wait_for_lease(store, &effective).await {
                    return Ok(verdict);
                }
                let over = Over { node, connection: &connection };
                let asking = Asking { over, store, charge };
                let found = match charge {
                    true => self.check_with_others(asking, &effective).await,
                    false => self.check_by_itself(asking, &effective).await,
                };
                if let Some(verdict) = found {
                    return Ok(verdict);
                }
            }
            node.availability.decided_alone();
        }
        self.counts.alone.fetch_add(1, Ordering::Relaxed);
        self.alone(store, time, &effective, charge)
    }

    /// The server that has the keys of all checks.
    fn node_of<'k>(&self, known: &'k NodeSet, checks: &Checks) -> Option<&'k Arc<StoreNode>> {
        let first = checks.first()?;
        // The configuration has no route whose limits have several slots.
        let is_one = checks.iter().all(|check| check.slot == first.slot);
        known.of_slot(first.slot).filter(|_| is_one || !self.nodes.is_cluster())
    }

    /// The checks with the keys of the states that apply.
    fn effective(&self, store: &MemoryStore, checks: &[LimitCheck], now: Tick) -> Checks {
        // Unknown keys that share an entry here share it in the store, too.
        let applying = checks.iter().map(|check| match store.effective(check, now) {
            key if key == check.key => *check,
            key => LimitCheck { key, slot: UNKNOWN_SLOT, ..*check },
        });
        let mut applying: Checks = applying.collect();
        if self.nodes.is_cluster() && applying.iter().any(|check| check.slot == UNKNOWN_SLOT) {
            let home = checks.iter().find(|check| check.known).map_or(UNKNOWN_SLOT, |own| own.slot);
            let unknown = applying.iter_mut().filter(|check| !check.known);
            unknown.for_each(|check| check.slot = home);
        }
        for (own, given) in applying.iter_mut().zip(checks) {
            // It has its entry already.
            own.known |= own.key != given.key;
        }
        applying
    }
}

/// A result in ticks of this machine, from one in the time of a server.
fn local(time: &StoreTime, found: CheckResult) -> CheckResult {
    let decision = match found.decision {
        Decision::Refuse { retry_at } => Decision::Refuse { retry_at: time.local(retry_at) },
        other => other,
    };
    let usage = Usage { full_at: time.local(found.usage.full_at), ..found.usage };
    CheckResult { decision, usage }
}

/// Whether a check counts requests in flight.
fn is_in_flight(check: &LimitCheck) -> bool {
    matches!(check.quota, Quota::Concurrency(_))
}
