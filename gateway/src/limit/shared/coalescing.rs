//! Makes one call of the requests that wait for the same checks.
//!
//! The first request of some checks calls at once. Those with equal checks that come while its call
//! is under way wait for its end, and are then one call together, which charges all of them or
//! none. So a tenant has one call under way in each gateway, however many requests it sends, and
//! no other tenant's call waits behind a thousand of its.
//!
//! # Invariants
//!
//! 1. A request is not refused because of others that were asked for together with it: where they
//!    do not fit together, fewer are asked for, and at last one.
//! 2. A request whose call may have been executed is never asked for again.
//! 3. A request waits for one call of others, whose end is its turn; where that is not answered, it
//!    waits no longer.
//! 4. While requests wait, one of them calls: where that is given up, the next one does.
//!
//! # Not here
//!
//! The call (`shared::remote`), refusals that are remembered (`shared::standing`), requests that
//! wait for a lease (`shared::leasing`).

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use weir_common::limit::decision::Usage;

use super::super::key::{Key, KeyMap};
use super::super::memory::Store;
use super::super::{CheckResult, LimitCheck, Quota, Verdict};
use super::remote::Over;
use super::sharded::Sharded;
use super::{Checks, SharedStore};

/// How often requests are asked for together before one is asked for alone.
const TOGETHER_MAX: usize = 2;

/// The requests that wait, by the key of their first check.
#[derive(Debug, Default)]
pub(super) struct Coalescing(Sharded<Mutex<KeyMap<Group>>>);

/// Requests with the same checks, of which one calls.
#[derive(Debug)]
struct Group {
    checks: Vec<LimitCheck>,
    /// Those that wait, in the order in which they came.
    waiting: Vec<Waiting>,
}

/// Where a request waits for its message; none comes where its call has no reply.
type Waiting = oneshot::Sender<Message>;

/// What becomes of a request that waited.
#[derive(Debug)]
enum Message {
    /// It was admitted by the call of another one, with all that this decided, and before so many
    /// of these.
    Admitted(Arc<Verdict>, u32),
    /// It calls.
    Calls(Turn),
}

/// What a request does that has come.
enum Entry {
    /// It calls.
    Calls(Turn),
    /// It waits.
    Waits(oneshot::Receiver<Message>),
    /// It has other checks than those that wait for its key: it calls alone.
    Apart,
}

/// The turn of a request to call, for itself and for others. Dropped, it is the next one's.
#[derive(Debug)]
struct Turn {
    all: Arc<Coalescing>,
    key: Key,
    /// The others, in the order in which they came.
    others: Vec<Waiting>,
}

impl Coalescing {
    fn enter(self: &Arc<Self>, checks: &[LimitCheck]) -> Entry {
        let Some(first) = checks.first() else { return Entry::Apart };
        let mut groups = self.0.lock(first.key);
        match groups.get_mut(&first.key) {
            Some(group) if group.checks == checks => {
                let (told, waits) = oneshot::channel();
                group.waiting.push(told);
                Entry::Waits(waits)
            }
            Some(_) => Entry::Apart,
            None => {
                let group = Group { checks: checks.to_vec(), waiting: Vec::new() };
                groups.insert(first.key, group);
                Entry::Calls(Turn { all: self.clone(), key: first.key, others: Vec::new() })
            }
        }
    }
}

impl Turn {
    /// Leaves all but the first `kept` others to the next turn.
    fn leave(&mut self, kept: usize) {
        let mut left = self.others.split_off(kept.min(self.others.len()));
        if let Some(group) = self.all.0.lock(self.key).get_mut(&self.key) {
            left.append(&mut group.waiting);
            group.waiting = left;
        }
    }

    /// Tells all that wait that there is no reply. Returns how many.
    fn give_up(&mut self) -> u32 {
        self.leave(0);
        let given_up = match self.all.0.lock(self.key).get_mut(&self.key) {
            Some(group) => mem::take(&mut group.waiting),
            None => Vec::new(),
        };
        u32::try_from(given_up.len()).unwrap_or(u32::MAX)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leave(0);
        let mut groups = self.all.0.lock(self.key);
        let Some(group) = groups.get_mut(&self.key) else { return };
        let mut waiting = mem::take(&mut group.waiting).into_iter().filter(|one| !one.is_closed());
        let Some(next) = waiting.next() else {
            groups.remove(&self.key);
            return;
        };
        let turn = Self { all: self.all.clone(), key: self.key, others: waiting.collect() };
        drop(groups);
        // Where that has gone meanwhile, its turn is dropped here, and is the one's after it.
        let _ = next.send(Message::Calls(turn));
    }
}

/// Whether requests with these checks can be one call. One whose limits are leased has few calls;
/// one that counts as in flight does so by itself; a limit that only observes is charged as far as
/// it goes, whatever the others do.
fn is_for_many(checks: &[LimitCheck]) -> bool {
    let counts =
        |check: &LimitCheck| check.enforced && !matches!(check.quota, Quota::Concurrency(_));
    let is_called = |check: &LimitCheck| !matches!(check.quota, Quota::Bucket(_));
    checks.iter().all(counts) && checks.iter().any(is_called)
}

/// The checks of so many requests.
fn joined(checks: &[LimitCheck], requests: u32) -> Checks {
    let of_all =
        |check: &LimitCheck| LimitCheck { cost: check.cost.saturating_mul(requests), ..*check };
    checks.iter().map(of_all).collect()
}

/// The verdict on one of some requests that were decided together, before the `later` ones.
fn shared_out(checks: &[LimitCheck], together: &Verdict, later: u32) -> Verdict {
    let own = |(check, found): (&LimitCheck, &CheckResult)| {
        let left = found.usage.remaining.saturating_add(check.cost.saturating_mul(later));
        CheckResult { usage: Usage { remaining: left, ..found.usage }, ..*found }
    };
    let results = checks.iter().zip(together.answers()).map(own).collect();
    Verdict::new(results, together.is_admitted())
}

/// How many requests fit, by the results of some that did not fit together.
fn fitting(checks: &[LimitCheck], together: &Verdict) -> u32 {
    let results = checks.iter().zip(together.answers());
    let fitting = results.map(|(check, found)| found.usage.remaining / check.cost.max(1));
    fitting.min().unwrap_or_default()
}

impl SharedStore {
    /// The verdict on a request, which may be asked for together with others; none where the store
    /// does not answer in time.
    pub(super) async fn check_with_others(
        &self,
        over: Over<'_>,
        store: &Store,
        checks: &[LimitCheck],
    ) -> Option<Verdict> {
        let entry = match is_for_many(checks) {
            true => self.coalescing.enter(checks),
            false => Entry::Apart,
        };
        let turn = match entry {
            Entry::Apart => return self.check_by_itself(over, store, checks, true).await,
            Entry::Calls(turn) => turn,
            Entry::Waits(message) => match message.await.ok()? {
                Message::Admitted(together, later) => {
                    self.counts.together.fetch_add(1, Ordering::Relaxed);
                    return Some(shared_out(checks, &together, later));
                }
                Message::Calls(turn) => {
                    // The call that has ended may have been refused, as this one would be.
                    let refused = self.remembered(store, checks, self.clock.now().tick);
                    if refused.is_some() {
                        return refused;
                    }
                    turn
                }
            },
        };
        self.call_for_all(over, store, (checks, turn)).await
    }

    /// The verdict on a request that is asked for alone.
    pub(super) async fn check_by_itself(
        &self,
        over: Over<'_>,
        store: &Store,
        checks: &[LimitCheck],
        charge: bool,
    ) -> Option<Verdict> {
        let found = self.check_remotely(over, store, checks, charge).await;
        let found = found.map_err(|error| self.unanswered(over.node, &error, 1)).ok()?;
        self.counts.called.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    async fn call_for_all(
        &self,
        over: Over<'_>,
        store: &Store,
        (checks, mut turn): (&[LimitCheck], Turn),
    ) -> Option<Verdict> {
        let mut calls = 0;
        loop {
            calls += 1;
            if calls > TOGETHER_MAX {
                turn.leave(0);
            }
            // Where this is given up, or not answered, none of them is asked for again.
            let asked_for = mem::take(&mut turn.others);
            let others = u32::try_from(asked_for.len()).unwrap_or(u32::MAX);
            let together = joined(checks, others.saturating_add(1));
            let together = match self.check_remotely(over, store, &together, true).await {
                Ok(together) => together,
                Err(error) => {
                    let given_up = turn.give_up().saturating_add(others).saturating_add(1);
                    self.unanswered(over.node, &error, given_up);
                    return None;
                }
            };
            if together.is_admitted() || others == 0 {
                let together = Arc::new(together);
                for (waiting, later) in asked_for.into_iter().zip((0..others).rev()) {
                    // One that has gone meanwhile was charged, as with a call of its own.
                    let _ = waiting.send(Message::Admitted(together.clone(), later));
                }
                self.counts.called.fetch_add(1, Ordering::Relaxed);
                return Some(shared_out(checks, &together, others));
            }
            turn.others = asked_for;
            let fitting = fitting(checks, &together).min(others);
            turn.leave(usize::try_from(fitting.saturating_sub(1)).unwrap_or(usize::MAX));
        }
    }
}
