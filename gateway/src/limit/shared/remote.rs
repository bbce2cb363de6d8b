//! Asks the store to decide a request, and records what it charged.
//!
//! # Invariants
//!
//! 1. Each call claims the newest admission of this gateway that the store has, and brings what the
//!    gateway has admitted alone. Where the store has lost the former, or nothing is known of a
//!    key, it brings all. So nothing that this gateway knows is admitted twice.
//! 2. A request that is refused, given up or not answered does not count as in flight here.
//!
//! # Not here
//!
//! The form of calls (`shared::call`), what is decided when there is no answer
//! (`shared::local_fallback`).

use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use log::Level;
use serde_json::json;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::rolling::EXACT_MAX;
use weir_common::limit::state::State;
use weir_common::log::events;
use weir_common::time::{Moment, Tick, UnixTime};

use super::super::key::hex;
use super::super::memory::MemoryStore;
use super::super::{CHECKS_MAX, CheckResult, LimitCheck, Quota, Verdict};
use super::call::{self, CallMode, SharedCheck, WitnessClaim};
use super::reply::{self, SharedDecision, SharedOutcome, SharedReply, SharedResult};
use super::servers::connection::StoreConnection;
use super::servers::errors::CallError;
use super::servers::node::{Over, StoreNode};
use super::servers::nodes::tag;
use super::slot_leasing::SlotTurn;
use super::sync_state::{Brought, Claim, Known, Learned};
use super::{SharedStore, is_in_flight, local};

/// A thread was busy that notices a call without a reply later than this part of the time limit.
const LATE_BY: u32 = 4;

/// How often one request tells the store what it has forgotten.
const ROUNDS_MAX: usize = 3;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Reply(#[from] reply::BadReply),
    #[error("its answer is not text")]
    Form,
    /// The store answers; this gateway was too busy to send it, or the way is slow.
    #[error("the call came too late")]
    Late,
    #[error("it did not answer in time")]
    Slow,
    /// Nothing is known of the store: heartbeats tell whether it is away.
    #[error("this gateway was too busy for its answer")]
    Busy,
    #[error("it keeps losing what this gateway recorded")]
    Forgets,
    /// The store answers, and a heartbeat tells it first: that is too much for a request's call.
    #[error("it lacks what this gateway recorded")]
    Lacks,
    #[error("another process has the counters")]
    Elsewhere,
}

/// How a request is asked for.
#[derive(Clone, Copy)]
pub(super) struct Asking<'c> {
    pub over: Over<'c>,
    /// Where this gateway keeps what it was given.
    pub store: &'c MemoryStore,
    /// False for a preview.
    pub charge: bool,
}

impl SharedStore {
    /// The verdict on a request. What its call teaches of the server is recorded.
    pub(super) async fn check_remotely(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
    ) -> Result<Verdict, RemoteError> {
        let Asking { over, store, charge } = asking;
        let [_, latest] = over.node.time.range(self.clock.now().tick);
        let turns = self.slots.begin((store, self.id_bits), checks, (charge, latest));
        let turns = turns.ok_or(RemoteError::Elsewhere)?;
        let _under_way = charge.then(|| self.under_way.begin(checks));
        let reply = self.decide_in_time(asking, checks, &turns).await?;
        let (admitted, now) = (reply.outcome == SharedOutcome::Admitted, Tick(reply.now.0));
        let own = turns.into_iter().zip(&reply.results);
        own.for_each(|(turn, found)| turn.finish(found, admitted, now));
        let found = checks.iter().zip(&reply.results);
        let found = found.map(|(check, found)| local(&over.node.time, result(check, found)));
        Ok(Verdict::new(found.collect(), admitted))
    }

    async fn decide_in_time(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
        slots: &[SlotTurn<'_>],
    ) -> Result<SharedReply, RemoteError> {
        let sent = self.clock.now().tick;
        let mut decided = pin!(self.decide_there(asking, checks, slots));
        let in_time = tokio::time::timeout(self.config.timeout, &mut decided).await;
        let decided = match in_time {
            Ok(decided) => decided,
            Err(_) => {
                let (after, limit) = (self.clock.now().tick.since(sent), self.config.timeout);
                let is_busy = after > limit + limit / LATE_BY;
                // Other threads that read replies stood still as well, if this one did.
                let wait = if is_busy { limit / LATE_BY } else { Duration::ZERO };
                let missed = || Err(missed(asking, sent, is_busy));
                arrived(decided, wait).await.unwrap_or_else(missed)
            }
        };
        match &decided {
            Ok(_) => {
                asking.over.node.availability.answered();
                self.counts.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(RemoteError::Call(CallError::Moving)) => {
                self.counts.moving.fetch_add(1, Ordering::Relaxed);
                self.report_moving(asking.over.node);
            }
            Err(error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                self.unanswered(asking.over.node, error, sent);
            }
        }
        decided
    }

    /// Records why a call has no answer that was sent at `sent`.
    fn unanswered(&self, node: &StoreNode, error: &RemoteError, sent: Tick) {
        let turned = match error {
            // Other keys are none the worse for it.
            RemoteError::Call(CallError::Faulty(why)) => return self.report_fault(why),
            RemoteError::Call(CallError::Cut(_))
            | RemoteError::Elsewhere
            | RemoteError::Lacks
            | RemoteError::Late
            | RemoteError::Busy => return,
            RemoteError::Call(CallError::Lost(_) | CallError::Demoted(_)) => {
                node.availability.lost()
            }
            _ => node.availability.failed(sent, self.clock.now().tick),
        };
        if turned {
            self.losses.lost(&node.address.to_string(), error.to_string());
        }
    }

    /// Logs that keys are between a server and another one, once in a while.
    fn report_moving(&self, node: &StoreNode) {
        if self.moving_log.due((), self.clock.now().tick).is_some() {
            let why = "a slot is moving, or was left half moved: redis-cli --cluster fix ends that";
            let fields = [("store", json!(node.address.to_string())), ("error", json!(why))];
            events::event(Level::Warn, "keys are between two servers of the shared store", &fields);
        }
    }

    async fn decide_there(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
        slots: &[SlotTurn<'_>],
    ) -> Result<SharedReply, RemoteError> {
        let Asking { over, store, charge } = asking;
        let mode = if charge { CallMode::Charge } else { CallMode::Preview };
        let known = checks.iter().map(|check| self.sync_states.known(check.key));
        let known: ArrayVec<Known, CHECKS_MAX> = known.collect();
        let mut has_lost: ArrayVec<bool, CHECKS_MAX> = checks.iter().map(|_| false).collect();
        let forgotten = self.sync_states.forgotten();
        let [earliest, latest] = over.node.time.range(self.clock.now().tick);
        let turns = self.leases.begin(self.id_bits, checks, (charge, latest));
        for _ in 0..ROUNDS_MAX {
            let mut calls: Vec<SharedCheck> = Vec::with_capacity(checks.len());
            let mut told: ArrayVec<Brought, CHECKS_MAX> = ArrayVec::new();
            for ((check, known), has_lost) in checks.iter().zip(&known).zip(&has_lost) {
                let states = (&self.sync_states, store);
                let (call, brings) =
                    Self::with_replay(states, check, (*known, *has_lost), earliest)?;
                calls.push(call);
                told.push(brings);
            }
            for ((call, turn), slots) in calls.iter_mut().zip(&turns).zip(slots) {
                (call.lease, call.slots) = (turn.request, slots.request);
            }
            let (reply, number) = self.call(over, &calls, mode).await?;
            match reply.outcome {
                SharedOutcome::Late => return Err(RemoteError::Late),
                SharedOutcome::Forgot => {
                    self.counts.forgotten.fetch_add(1, Ordering::Relaxed);
                    for (has_lost, found) in has_lost.iter_mut().zip(&reply.results) {
                        *has_lost |= found.forgot;
                    }
                }
                SharedOutcome::Admitted | SharedOutcome::Refused => {
                    for (((check, known), call), told) in
                        checks.iter().zip(&known).zip(&calls).zip(told)
                    {
                        let newest = call.replayed.last().map(Claim::of_replayed);
                        self.sync_states.settle(check.key, (told, known.missed), newest);
                    }
                    self.record((number, forgotten), store, checks, &reply);
                    for ((turn, check), found) in turns.into_iter().zip(checks).zip(&reply.results)
                    {
                        turn.finish(check, found, Tick(reply.now.0));
                    }
                    return Ok(reply);
                }
            }
        }
        Err(RemoteError::Forgets)
    }

    /// Returns the reply, and the number of the connection over which it came.
    pub(super) async fn call(
        &self,
        over: Over<'_>,
        checks: &[SharedCheck],
        mode: CallMode,
    ) -> Result<(SharedReply, u64), RemoteError> {
        let sent = self.clock.now().tick;
        let [_, latest] = over.connection.time.range(sent);
        let not_after = UnixTime(latest.plus(self.config.timeout).0);
        let keys: Vec<&[u8]> = checks.iter().map(|check| &*check.key).collect();
        let call = self.decide.call(&keys, &call::encode(checks, mode, Some(not_after)));
        let called = self.nodes.evaluate(over, &self.decide, &call).await;
        let (reply, from) = called.map_err(|why| why.of_keys(keys.into_iter()))?;
        let redis::Value::BulkString(bytes) = reply else { return Err(RemoteError::Form) };
        let reply = reply::decode(&bytes, checks)?;
        self.learn_time(&from, reply.now, (sent, self.clock.now().tick));
        Ok((reply, from.number))
    }

    /// Records the time of a connection's server, in a reply to a call that was sent and answered
    /// at these ticks.
    pub(super) fn learn_time(&self, from: &StoreConnection, time: UnixTime, ticks: (Tick, Tick)) {
        if let Some(step) = from.time.learn(time, ticks) {
            self.counts.jumps.fetch_add(1, Ordering::Relaxed);
            let seconds = Duration::from_micros(step.unsigned_abs()).as_secs();
            let way = if step > 0 { "ahead" } else { "back" };
            let fields = [("store", json!(self.name())), (way, json!(format!("{seconds}s")))];
            events::event(Level::Warn, "clock of the shared store was set", &fields);
        }
    }

    /// Records what the store has charged over a connection, as a witness, and what it has refused.
    fn record(
        &self,
        (connection, forgotten): (u64, u64),
        store: &MemoryStore,
        checks: &[LimitCheck],
        reply: &SharedReply,
    ) {
        let now = Tick(reply.now.0);
        let moment = Moment { tick: now, unix: reply.now };
        let found = checks.iter().zip(&reply.results);
        for (check, found) in found.filter(|(check, _)| !is_in_flight(check)) {
            let mut claim = None;
            if let Some(receipt) = &found.receipt {
                let is_counted_one_by_one =
                    matches!(check.quota, Quota::Rolling(quota) if quota.requests <= EXACT_MAX);
                let at = if is_counted_one_by_one { Tick(receipt.stamp.0) } else { now };
                // A calendar's period came in ticks of this machine.
                let charged = LimitCheck { quota: check.quota.at(moment), ..*check };
                // Fails only where another process has become the witness; it asks from now on.
                let _ = store.record(&charged, at);
                let count = check.cost;
                let own = Claim { sequence: receipt.sequence, stamp: receipt.stamp, count };
                claim = Some((own, connection));
            }
            let until = found.ask_again_at.map(|at| Tick(at.0));
            let learned = Learned { claim, now, until, forgotten };
            self.sync_states.learn(check, &result(check, found), learned);
        }
    }
}

/// Why a call that was sent at `sent` has no answer in time.
fn missed(asking: Asking<'_>, sent: Tick, is_busy: bool) -> RemoteError {
    if is_busy {
        return RemoteError::Busy;
    }
    asking.over.connection.missed_reply(sent);
    RemoteError::Slow
}

/// What a call has decided whose time is over, if its reply has come: a thread with much to do
/// reads it late, and a call is not late for that.
async fn arrived<T>(decided: Pin<&mut impl Future<Output = T>>, wait: Duration) -> Option<T> {
    // In one turn it is read, and in the next one handed on.
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(wait, decided).await.ok()
}

/// A result of the store as one of this gateway's, in the store's time.
pub(super) fn result(check: &LimitCheck, found: &SharedResult) -> CheckResult {
    let decision = match found.decision {
        SharedDecision::Admit => Decision::Admit,
        SharedDecision::Refuse { retry_at } => Decision::Refuse { retry_at: Tick(retry_at.0) },
        SharedDecision::TooLarge => Decision::TooLarge,
    };
    // Slots are used up by what is in flight.
    let lease = found.lease.filter(|_| !is_in_flight(check));
    let leased = lease.map_or(0, |lease| lease.tokens);
    let (limit, remaining) = (check.quota.limit(), found.remaining.saturating_add(leased));
    let usage = Usage { limit, remaining, full_at: Tick(found.full_at.0) };
    CheckResult { decision, usage }
}

/// The name of a key in the store.
#[must_use]
pub(super) fn name(check: &LimitCheck) -> Vec<u8> {
    let (slot, key) = (tag(check.slot), hex(check.key.bits(), 32));
    [b"weir1:{", slot.as_bytes(), b"}", key.as_bytes()].concat()
}

/// One check as the store decides it, with what this gateway knows of its key at the store's
/// earliest time `now`.
pub(super) fn shared(
    store: &MemoryStore,
    check: &LimitCheck,
    claim: Option<Claim>,
    now: Tick,
) -> SharedCheck {
    let claim = match check.quota {
        Quota::Rolling(_) => claim.map(|own| WitnessClaim::Admission {
            sequence: own.sequence,
            stamp: own.stamp,
            count: own.count,
        }),
        _ => store.look(check.key, |state| spent(state, &check.quota, now)).flatten(),
    };
    SharedCheck { claim, ..unclaimed(check) }
}

/// One check as the store decides it.
pub(super) fn unclaimed(check: &LimitCheck) -> SharedCheck {
    SharedCheck {
        key: name(check),
        quota: check.quota,
        horizon: check.horizon,
        cost: check.cost,
        enforced: check.enforced,
        claim: None,
        replayed: Vec::new(),
        lease: None,
        slots: None,
    }
}

/// What this gateway alone has spent of a bucket, or used in a calendar's period, also where it was
/// given that by another algorithm.
fn spent(state: &State, quota: &Quota, now: Tick) -> Option<WitnessClaim> {
    match (state, quota) {
        (State::Bucket(own), Quota::Bucket(quota)) => {
            let token = quota.rate.token_units();
            // That of a share has another rate.
            let spent = own.spent_in(token);
            (spent > 0).then(|| WitnessClaim::Debt {
                tokens: u32::try_from(spent / token).unwrap_or(u32::MAX),
                units: spent % token,
                at: UnixTime(own.at().0),
            })
        }
        (State::Count(own), Quota::Calendar(_)) => {
            Some(WitnessClaim::Used { starts: own.starts(), count: own.used() })
        }
        (State::InFlight(_), _) | (_, Quota::Rolling(_) | Quota::Concurrency(_)) => None,
        _ => {
            // Its period begins at a tick of the store, as states have it.
            let quota = quota.at(Moment { tick: now, unix: UnixTime(now.0) });
            let mut state = state.clone();
            state.fit(&quota, now);
            spent(&state, &quota, now)
        }
    }
}
