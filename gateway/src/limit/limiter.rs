//! Checks the limits of a request, in the process that owns the counters.
//!
//! That is this process, but for the time of an upgrade and after it: [`Limiter::check`] is the
//! way of nearly every request and does not wait; [`Limiter::check_at_owner`] is for those that
//! it turns away, and waits for the counters to arrive or asks the process that has them.
//!
//! # Invariants
//!
//! 1. The counters have one owner: what is charged is charged there, or not at all.
//! 2. A boost raises what is checked where the counters are, and nowhere else.
//! 3. No check waits for longer than [`CHECK_WAIT`]; where the owner is lost none is answered.
//!
//! # Not here
//!
//! How counters and boosts move (`operations::upgrade`), what a limit allows (`rules`).

use std::time::Duration;

use arrayvec::ArrayVec;
use tokio::sync::{mpsc, oneshot, watch};
use weir_common::time::{Clock, Tick};

use super::boost::Boosts;
use super::memory::{Moved, Store};
use super::{ASKS_MAX, Ask, Quota, Verdict};

/// How long a request waits for a check elsewhere: as long as the counters may move, and for an
/// answer.
pub const CHECK_WAIT: Duration = Duration::from_secs(12);

/// The process that owned the counters is gone, and with it what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLost;

/// Every limit's counters and boosts, or the way to them.
#[derive(Debug)]
pub struct Limiter {
    clock: Clock,
    /// What has been used.
    pub store: Store,
    /// Raised allowances.
    pub boosts: Boosts,
    owner: watch::Sender<Owner>,
}

/// Which process owns the counters.
#[derive(Clone, Debug)]
pub enum Owner {
    /// This one.
    Here,
    /// They are moving, or coming back.
    Moving,
    /// The process that reads from this channel.
    There(mpsc::Sender<RemoteCheck>),
    /// That process is gone.
    Lost,
}

/// The checks of one request, for the process that owns the counters.
#[derive(Debug)]
pub struct RemoteCheck {
    /// Without boosts: those are where the counters are.
    pub asks: ArrayVec<Ask, ASKS_MAX>,
    /// Where the answer goes.
    pub answer: oneshot::Sender<RemoteVerdict>,
}

/// What the owner of the counters answers.
#[derive(Debug)]
pub struct RemoteVerdict {
    /// Its verdict.
    pub verdict: Verdict,
    /// The allowances that it was reached by, in the order of the asks.
    pub quotas: ArrayVec<Quota, ASKS_MAX>,
}

impl Limiter {
    /// A limiter that owns empty counters, with room for `unknown_max` keys that the directory
    /// does not know.
    #[must_use]
    pub fn new(clock: Clock, unknown_max: usize) -> Self {
        let (store, boosts) = (Store::new(unknown_max), Boosts::default());
        Self { clock, store, boosts, owner: watch::Sender::new(Owner::Here) }
    }

    /// Checks every limit at `now`, and charges all or none. Boosts are put into `asks`.
    pub fn check(&self, asks: &mut [Ask], now: Tick) -> Result<Verdict, Moved> {
        self.boosts.apply(asks, now);
        self.store.judge(asks, now)
    }

    /// Checks every limit wherever the counters are. Leaves the allowances that were checked in
    /// `asks`.
    pub async fn check_at_owner(&self, asks: &mut [Ask]) -> Result<Verdict, OwnerLost> {
        let checked = tokio::time::timeout(CHECK_WAIT, self.find_owner_and_check(asks));
        checked.await.unwrap_or(Err(OwnerLost))
    }

    async fn find_owner_and_check(&self, asks: &mut [Ask]) -> Result<Verdict, OwnerLost> {
        let mut owner = self.owner.subscribe();
        loop {
            let now_is = owner.borrow_and_update().clone();
            match now_is {
                Owner::Here => {
                    remove_boosts(asks);
                    // Where the counters have begun to move again, `owner` has changed by now.
                    if let Ok(verdict) = self.check(asks, self.clock.now().tick) {
                        return Ok(verdict);
                    }
                }
                Owner::Moving => owner.changed().await.map_err(|_| OwnerLost)?,
                Owner::There(checks) => return check_there(&checks, asks).await,
                Owner::Lost => return Err(OwnerLost),
            }
        }
    }

    /// Whether an enforced limit of `asks` has nothing left. Says no where the counters have
    /// moved: the few requests that are left in this process need not know.
    #[must_use]
    pub fn is_used_up(&self, asks: &mut [Ask], now: Tick) -> bool {
        self.boosts.apply(asks, now);
        let mut enforced = asks.iter().filter(|ask| ask.enforced);
        enforced.any(|ask| self.store.standing(ask, now).is_ok_and(|usage| usage.remaining == 0))
    }

    /// Notes which process owns the counters from now on.
    pub fn set_owner(&self, owner: Owner) {
        self.owner.send_replace(owner);
    }
}

async fn check_there(
    checks: &mpsc::Sender<RemoteCheck>,
    asks: &mut [Ask],
) -> Result<Verdict, OwnerLost> {
    remove_boosts(asks);
    let (answer, answered) = oneshot::channel();
    let own = asks.iter().copied().take(ASKS_MAX).collect();
    checks.send(RemoteCheck { asks: own, answer }).await.map_err(|_| OwnerLost)?;
    let RemoteVerdict { verdict, quotas } = answered.await.map_err(|_| OwnerLost)?;
    for (ask, quota) in asks.iter_mut().zip(quotas) {
        ask.quota = quota;
    }
    Ok(verdict)
}

/// Takes off what boosts have added: they are where the counters are.
fn remove_boosts(asks: &mut [Ask]) {
    for ask in asks {
        ask.quota = ask.lasting;
    }
}
