//! Makes one call of the requests that wait for the same checks.
//!
//! The first request of some checks calls at once. Those with equal checks that come while its call
//! is under way wait for its end, and are then one call together, which charges all of them or
//! none. So a tenant has one call under way for the same checks in each gateway, however many
//! requests it sends, and no other tenant's call waits behind a thousand of its.
//!
//! # Invariants
//!
//! 1. A request is not refused because of others that were asked for together with it. Where they
//!    do not fit together, as many as fit are asked for once more, and the next one alone: where
//!    that is refused, so are those behind it, which waited when it was sent.
//! 2. A request whose call may have been executed is never asked for again.
//! 3. A turn decides all whose turn it is, by three calls at most, or lets them call alone: no
//!    request waits for a second turn.
//! 4. While requests wait, one of them calls: where that is given up, the next one does.
//!
//! # Not here
//!
//! The call (`shared::remote`), refusals that are remembered (`shared::sync_state`), requests that
//! wait for a lease (`shared::token_leasing`).

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use weir_common::limit::decision::Usage;

use super::super::key::{Key, KeyMap};
use super::super::{CheckResult, LimitCheck, Quota, Verdict};
use super::remote::{Asking, RemoteError};
use super::sharded::Sharded;
use super::sync_state::is_same;
use super::{Checks, SharedStore};

/// How many groups a key has at most: each request that comes looks through them, and clients
/// choose what batches cost.
const GROUPS_MAX: usize = 8;

/// The requests that wait.
#[derive(Debug, Default)]
pub(super) struct Coalescing {
    /// By the key of their first check.
    groups: Sharded<Mutex<KeyMap<Vec<Group>>>>,
    /// The number of the newest group.
    newest: AtomicU64,
}

/// Requests with the same checks, of which one calls.
#[derive(Debug)]
struct Group {
    number: u64,
    checks: Vec<LimitCheck>,
    /// Those that wait, in the order in which they came.
    waiting: Vec<Waiting>,
}

/// Where a request waits for its message; none comes where its call has no reply.
type Waiting = oneshot::Sender<Message>;

/// What becomes of a request that waited.
#[derive(Debug)]
enum Message {
    /// It was decided by the call of another one, with all that this decided, and before so many
    /// of these.
    Decided(Arc<Verdict>, u32),
    /// It calls, for others as well.
    Calls(Turn),
    /// It calls alone.
    Alone,
}

/// What a request does that has come.
enum Entry {
    Calls(Turn),
    Waits(oneshot::Receiver<Message>),
}

/// The turn of a request to call, for itself and for others. Dropped, it is the next one's.
#[derive(Debug)]
struct Turn {
    all: Arc<Coalescing>,
    /// The key and the number of its group.
    group: (Key, u64),
    /// The others, in the order in which they came.
    others: Vec<Waiting>,
}

impl Coalescing {
    /// None where a request calls by itself.
    fn enter(self: &Arc<Self>, checks: &[LimitCheck]) -> Option<Entry> {
        let key = checks.first().filter(|_| checks.iter().all(is_for_many))?.key;
        let mut groups = self.groups.lock(key);
        let groups = groups.entry(key).or_default();
        if let Some(group) = groups.iter_mut().find(|group| are_same(&group.checks, checks)) {
            let (message, waits) = oneshot::channel();
            group.waiting.push(message);
            return Some(Entry::Waits(waits));
        }
        if groups.len() >= GROUPS_MAX {
            return None;
        }
        let number = self.newest.fetch_add(1, Ordering::Relaxed);
        groups.push(Group { number, checks: checks.to_vec(), waiting: Vec::new() });
        Some(Entry::Calls(Turn { all: self.clone(), group: (key, number), others: Vec::new() }))
    }

    /// Takes those that wait in a group, after `first`; where there are none, it is over.
    fn take(&self, (key, number): (Key, u64), mut first: Vec<Waiting>) -> Vec<Waiting> {
        let mut by_key = self.groups.lock(key);
        let Some(groups) = by_key.get_mut(&key) else { return first };
        if let Some(group) = groups.iter_mut().find(|group| group.number == number) {
            first.append(&mut group.waiting);
        }
        first.retain(|one| !one.is_closed());
        if first.is_empty() {
            groups.retain(|group| group.number != number);
        }
        if groups.is_empty() {
            by_key.remove(&key);
        }
        first
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waiting = self.all.take(self.group, mem::take(&mut self.others)).into_iter();
        if let Some(next) = waiting.next() {
            let turn = Self { all: self.all.clone(), group: self.group, others: waiting.collect() };
            // Where that has gone meanwhile, its turn is dropped here, and is the one's after it.
            let _ = next.send(Message::Calls(turn));
        }
    }
}

/// Whether requests with these checks decide alike. When a calendar's period began on the clock of
/// the ticks differs a little from one request to the next.
fn are_same(some: &[LimitCheck], others: &[LimitCheck]) -> bool {
    let same = |(one, other): (&LimitCheck, &LimitCheck)| {
        let quotas = is_same(&one.quota, &other.quota) && is_same(&one.lasting, &other.lasting);
        quotas && *one == LimitCheck { quota: one.quota, lasting: one.lasting, ..*other }
    };
    some.len() == others.len() && some.iter().zip(others).all(same)
}

/// Whether requests with these checks can be one call. Those with leases have few calls, and what
/// counts as in flight does so request by request; a limit that only observes is charged as far as
/// it goes, whatever the others do.
fn is_for_many(check: &LimitCheck) -> bool {
    check.enforced && matches!(check.quota, Quota::Rolling(_) | Quota::Calendar(_))
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
fn fitting(checks: &[LimitCheck], together: &Verdict) -> usize {
    let results = checks.iter().zip(together.answers());
    let fitting = results.map(|(check, found)| found.usage.remaining / check.cost.max(1));
    fitting.min().and_then(|fitting| usize::try_from(fitting).ok()).unwrap_or_default()
}

fn count(waiting: &[Waiting]) -> u32 {
    u32::try_from(waiting.len()).unwrap_or(u32::MAX)
}

/// Tells the others what was decided of all together. Returns the verdict on the first request.
fn share_out(checks: &[LimitCheck], together: Verdict, others: Vec<Waiting>) -> Verdict {
    let (together, later) = (Arc::new(together), count(&others));
    for (one, later) in others.into_iter().zip((0..later).rev()) {
        // One that has gone meanwhile was charged, as with a call of its own.
        let _ = one.send(Message::Decided(together.clone(), later));
    }
    shared_out(checks, &together, later)
}

/// Lets requests be refused where the one before them was; otherwise they call alone.
fn follow(behind: Vec<Waiting>, one: &Arc<Verdict>) {
    if one.is_admitted() {
        return call_alone(behind);
    }
    for waiting in behind {
        // One that has gone meanwhile needs no verdict.
        let _ = waiting.send(Message::Decided(one.clone(), 0));
    }
}

fn call_alone(waiting: Vec<Waiting>) {
    waiting.into_iter().for_each(|one| drop(one.send(Message::Alone)));
}

impl SharedStore {
    /// The verdict on a request, which may be asked for together with others; none where the store
    /// does not answer in time.
    pub(super) async fn check_with_others(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
    ) -> Option<Verdict> {
        let Some(entry) = self.coalescing.enter(checks) else {
            return self.check_by_itself(asking, checks).await;
        };
        match entry {
            Entry::Calls(turn) => self.call_for_all(asking, checks, turn).await,
            Entry::Waits(message) => match message.await.ok()? {
                Message::Calls(mut turn) => {
                    // The call that has ended may have been refused, as these would be.
                    if let Some(refused) =
                        self.remembered(asking.store, checks, self.clock.now().tick)
                    {
                        let refused = Arc::new(refused);
                        follow(mem::take(&mut turn.others), &refused);
                        return Some(shared_out(checks, &refused, 0));
                    }
                    self.call_for_all(asking, checks, turn).await
                }
                Message::Alone => self.check_by_itself(asking, checks).await,
                Message::Decided(together, later) => {
                    self.counts.together.fetch_add(1, Ordering::Relaxed);
                    Some(shared_out(checks, &together, later))
                }
            },
        }
    }

    /// The verdict on a request that is asked for alone.
    pub(super) async fn check_by_itself(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
    ) -> Option<Verdict> {
        let found = self.check_remotely(asking, checks).await.ok()?;
        self.counts.called.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    async fn call_for_all(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
        mut turn: Turn,
    ) -> Option<Verdict> {
        // Where this is given up, or not answered, none of them is asked for again.
        let others = mem::take(&mut turn.others);
        let decided = self.decide_all(asking, checks, others).await;
        match decided {
            Ok(own) => {
                self.counts.called.fetch_add(1, Ordering::Relaxed);
                Some(own)
            }
            Err(_) => {
                // Those that have come meanwhile would wait for the same.
                drop(turn.all.take(turn.group, Vec::new()));
                None
            }
        }
    }

    /// Decides a request and the others whose turn it is. Returns its own verdict.
    async fn decide_all(
        &self,
        asking: Asking<'_>,
        checks: &[LimitCheck],
        mut others: Vec<Waiting>,
    ) -> Result<Verdict, RemoteError> {
        let of = |requests: u32| joined(checks, requests);
        let all = of(count(&others).saturating_add(1));
        let together = self.check_remotely(asking, &all).await?;
        if together.is_admitted() || others.is_empty() {
            return Ok(share_out(checks, together, others));
        }
        let fitting = fitting(checks, &together);
        others.retain(|one| !one.is_closed());
        if fitting == 0 {
            let own = Box::pin(self.check_remotely(asking, checks)).await?;
            let own = Arc::new(own);
            follow(others, &own);
            return Ok(shared_out(checks, &own, 0));
        }
        let mut behind = others.split_off(others.len().min(fitting - 1));
        let next = (!behind.is_empty()).then(|| behind.remove(0));
        // Both travel at once, as a rule over the same link and so in this order. In the other one,
        // those who fit may have to call alone.
        let some = of(count(&others).saturating_add(1));
        let (some, one) = tokio::join!(
            Box::pin(self.check_remotely(asking, &some)),
            Box::pin(async { Some((next?, self.check_remotely(asking, checks).await)) }),
        );
        if let Some((next, Ok(found))) = one {
            let found = Arc::new(found);
            follow(behind, &found);
            // One that has gone meanwhile was charged, or needs no verdict.
            let _ = next.send(Message::Decided(found, 0));
        }
        let some = some?;
        if some.is_admitted() || others.is_empty() {
            return Ok(share_out(checks, some, others));
        }
        // Another gateway was faster.
        call_alone(others);
        Box::pin(self.check_remotely(asking, checks)).await
    }
}

#[cfg(test)]
mod tests {
    use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
    use weir_common::time::{Moment, Tick, UnixTime};

    use super::super::super::key::LimitTag;
    use super::*;

    #[test]
    fn requests_of_one_day_wait_for_one_call_although_two_clocks_were_read_for_each() {
        let calendar = Calendar { unit: CalendarUnit::Day, zone: parse_zone("UTC").unwrap() };
        let checks = |requests, cost, tick| {
            let now = Moment { tick: Tick(tick), unix: UnixTime(1_795_000_000_000_000) };
            let quota = Quota::Calendar(CalendarQuota::new(requests, calendar)).at(now);
            let made = LimitCheck::new(Key::from_bits(7), LimitTag::from_bits(1), quota);
            [LimitCheck { cost, ..made }]
        };
        let all = Arc::<Coalescing>::default();
        let calls = |checks: &[LimitCheck]| match all.enter(checks).unwrap() {
            Entry::Calls(turn) => Some(turn),
            Entry::Waits(_) => None,
        };
        let first = calls(&checks(60, 1, 1 << 45));
        assert!(first.is_some() && calls(&checks(60, 1, (1 << 45) + 1)).is_none());
        assert!(calls(&checks(61, 1, 1 << 45)).is_some(), "of another quota");
        assert!(calls(&checks(60, 2, 1 << 45)).is_some(), "of another cost");
    }
}
