//! Checks the limits of a request, in the process that owns the counters.
//!
//! That is this process, except during an upgrade and after it. Nearly every request uses
//! [`Limiter::check`], which does not wait. Where that returns [`Moved`], the request uses
//! [`Limiter::check_at_owner`], which waits for the counters or sends the checks to their owner.
//!
//! # Invariants
//!
//! 1. The counters have one owner: a request is charged there, or not at all.
//! 2. Only the owner of the counters applies boosts.
//! 3. No check waits longer than [`CHECK_WAIT`]; when the owner is lost, every check fails.
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
use super::{CHECKS_MAX, LimitCheck, Quota, Verdict};

/// How long a request waits for a check elsewhere: the longest transfer of the counters, and two
/// seconds for the response.
pub const CHECK_WAIT: Duration = Duration::from_secs(12);

/// The process that owned the counters has ended, and the counters are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLost;

/// Every limit's counters and boosts, or the connection to the process that owns them.
#[derive(Debug)]
pub struct Limiter {
    clock: Clock,
    /// The counters.
    pub store: Store,
    /// Raised allowances.
    pub boosts: Boosts,
    owner: watch::Sender<LimitOwner>,
}

/// Which process owns the counters.
#[derive(Clone, Debug)]
pub enum LimitOwner {
    /// This one.
    Here,
    /// None now: the counters are being transferred, or restored after a failed transfer.
    Moving,
    /// The process that reads from this channel.
    There(mpsc::Sender<RemoteCheck>),
    /// That process has ended.
    Lost,
}

/// The checks of one request, for the process that owns the counters.
#[derive(Debug)]
pub struct RemoteCheck {
    /// Without boosts: the owner of the counters applies them.
    pub checks: ArrayVec<LimitCheck, CHECKS_MAX>,
    /// Receives the verdict.
    pub answer: oneshot::Sender<RemoteVerdict>,
}

/// The response of the process that owns the counters.
#[derive(Debug)]
pub struct RemoteVerdict {
    /// Its verdict.
    pub verdict: Verdict,
    /// The allowances that were checked, with boosts, in the order of the checks.
    pub quotas: ArrayVec<Quota, CHECKS_MAX>,
}

impl Limiter {
    /// A limiter that owns empty counters, with room for `unknown_max` keys that the directory
    /// does not know.
    #[must_use]
    pub fn new(clock: Clock, unknown_max: usize) -> Self {
        let (store, boosts) = (Store::new(unknown_max), Boosts::default());
        Self { clock, store, boosts, owner: watch::Sender::new(LimitOwner::Here) }
    }

    /// Checks every limit at `now`, and charges all or none. Applies boosts to `checks`.
    pub fn check(&self, checks: &mut [LimitCheck], now: Tick) -> Result<Verdict, Moved> {
        self.boosts.apply(checks, now);
        self.store.judge(checks, now)
    }

    /// Checks every limit in the process that owns the counters. Stores the allowances that were
    /// checked in `checks`.
    pub async fn check_at_owner(&self, checks: &mut [LimitCheck]) -> Result<Verdict, OwnerLost> {
        let checked = tokio::time::timeout(CHECK_WAIT, self.find_owner_and_check(checks));
        checked.await.unwrap_or(Err(OwnerLost))
    }

    async fn find_owner_and_check(&self, checks: &mut [LimitCheck]) -> Result<Verdict, OwnerLost> {
        let mut owner = self.owner.subscribe();
        loop {
            let now_is = owner.borrow_and_update().clone();
            match now_is {
                LimitOwner::Here => {
                    remove_boosts(checks);
                    // Where this fails, another transfer has started and has changed `owner`.
                    if let Ok(verdict) = self.check(checks, self.clock.now().tick) {
                        return Ok(verdict);
                    }
                }
                LimitOwner::Moving => owner.changed().await.map_err(|_| OwnerLost)?,
                LimitOwner::There(sender) => return check_there(&sender, checks).await,
                LimitOwner::Lost => return Err(OwnerLost),
            }
        }
    }

    /// Whether an enforced limit of `checks` has nothing left. False after the counters have
    /// moved: few requests remain in this process then.
    #[must_use]
    pub fn is_used_up(&self, checks: &mut [LimitCheck], now: Tick) -> bool {
        self.boosts.apply(checks, now);
        let mut enforced = checks.iter().filter(|check| check.enforced);
        enforced.any(|check| self.store.usage(check, now).is_ok_and(|usage| usage.remaining == 0))
    }

    /// Records which process owns the counters from now on.
    pub fn set_owner(&self, owner: LimitOwner) {
        self.owner.send_replace(owner);
    }
}

async fn check_there(
    sender: &mpsc::Sender<RemoteCheck>,
    checks: &mut [LimitCheck],
) -> Result<Verdict, OwnerLost> {
    remove_boosts(checks);
    let (answer, answered) = oneshot::channel();
    let own = checks.iter().copied().take(CHECKS_MAX).collect();
    sender.send(RemoteCheck { checks: own, answer }).await.map_err(|_| OwnerLost)?;
    let RemoteVerdict { verdict, quotas } = answered.await.map_err(|_| OwnerLost)?;
    for (check, quota) in checks.iter_mut().zip(quotas) {
        check.quota = quota;
    }
    Ok(verdict)
}

/// Undoes boosts: the owner of the counters applies them.
fn remove_boosts(checks: &mut [LimitCheck]) {
    for check in checks {
        check.quota = check.lasting;
    }
}
