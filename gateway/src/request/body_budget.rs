//! The memory that buffered request bodies share.
//!
//! # Invariants
//!
//! 1. An announced length reserves nothing; dropping a permit releases the bytes that it has
//!    reserved.
//! 2. Several bodies of one owner use no more than they leave to others: a workspace that sends
//!    its bodies slowly takes no other's place.
//! 3. Workspaces that the directory does not have share what one owner may use, by the network of
//!    their client: invented names reserve no more than one name.
//!
//! Not here: reading a body (`proxy::body`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who answers for the memory of a body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BodyOwner {
    /// A workspace that the directory has.
    Workspace(Arc<str>),
    /// A client's network, and the workspace that it names.
    Network(IpAddr, Option<Arc<str>>),
}

impl BodyOwner {
    /// The owner that this one is a part of, if any.
    fn whole(&self) -> Option<Self> {
        match self {
            Self::Network(network, Some(_)) => Some(Self::Network(*network, None)),
            Self::Workspace(_) | Self::Network(_, None) => None,
        }
    }
}

/// The bytes that buffered bodies use.
#[derive(Debug, Default)]
pub struct BodyBudget {
    used: Mutex<Used>,
}

/// In all, and by each owner that uses some.
#[derive(Debug, Default)]
struct Used {
    all: u64,
    owners: HashMap<BodyOwner, u64>,
}

impl Used {
    fn of(&self, owner: &BodyOwner) -> u64 {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    /// Whether `bytes` more fit for a body that has `reserved` some already.
    fn fits(&self, owner: &BodyOwner, reserved: u64, bytes: u64, bytes_max: u64) -> bool {
        let Some(left) = bytes_max.checked_sub(self.all + bytes) else { return false };
        let leaves_enough = |used: u64, left: u64| used == reserved || used + bytes <= left;
        let Some(whole) = owner.whole() else { return leaves_enough(self.of(owner), left) };
        let used = self.of(&whole);
        // Of the half that the whole may use.
        let left_of_whole = ((used + bytes + left) / 2).saturating_sub(used + bytes);
        leaves_enough(used, left) && leaves_enough(self.of(owner), left_of_whole)
    }

    fn add(&mut self, owner: &BodyOwner, bytes: u64) {
        self.all += bytes;
        for owner in [Some(owner.clone()), owner.whole()].into_iter().flatten() {
            *self.owners.entry(owner).or_default() += bytes;
        }
    }

    fn remove(&mut self, owner: &BodyOwner, bytes: u64) {
        self.all -= bytes;
        for owner in [Some(owner.clone()), owner.whole()].into_iter().flatten() {
            if let Some(own) = self.owners.get_mut(&owner) {
                *own -= bytes;
                if *own == 0 {
                    self.owners.remove(&owner);
                }
            }
        }
    }
}

impl BodyBudget {
    /// How many bytes are reserved.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub struct BudgetPermit {
    budget: Arc<BodyBudget>,
    owner: BodyOwner,
    bytes: u64,
}

impl BudgetPermit {
    /// A permit of `owner` for no bytes yet.
    #[must_use]
    pub fn of(budget: Arc<BodyBudget>, owner: BodyOwner) -> Self {
        Self { budget, owner, bytes: 0 }
    }

    /// Reserves `bytes` more; false if all permits together would then exceed `bytes_max`, or those
    /// of an owner that has several would leave less than they use.
    pub fn reserve(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let mut used = self.budget.lock();
        let fits = used.fits(&self.owner, self.bytes, bytes, bytes_max);
        if fits {
            used.add(&self.owner, bytes);
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.budget.lock().remove(&self.owner, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffered_bodies_share_their_budget_and_give_it_back() {
        let budget = Arc::new(BodyBudget::default());
        let permit =
            |owner: &str| BudgetPermit::of(budget.clone(), BodyOwner::Workspace(owner.into()));
        let (mut first, mut second) = (permit("one"), permit("two"));
        assert!(first.reserve(60, 100));
        assert!(!second.reserve(41, 100));
        assert!(second.reserve(40, 100));
        assert_eq!(budget.used(), 100);
        drop((first, second));
        assert!(permit("three").reserve(100, 100));
        assert_eq!((budget.used(), budget.lock().owners.len()), (0, 0));
    }

    #[test]
    fn an_owner_of_several_bodies_leaves_as_much_as_it_uses() {
        let budget = Arc::new(BodyBudget::default());
        let permit =
            |owner: &str| BudgetPermit::of(budget.clone(), BodyOwner::Workspace(owner.into()));
        let take = |owner: &str| {
            let one = std::iter::from_fn(|| {
                let mut permit = permit(owner);
                permit.reserve(10, 120).then_some(permit)
            });
            one.collect::<Vec<_>>()
        };
        let first = take("one");
        assert_eq!(first.len(), 6);
        let second = take("two");
        assert_eq!(second.len(), 3);
        drop(first);
        assert_eq!(take("three").len(), 4, "of what the second leaves, the half");
    }

    #[test]
    fn invented_workspaces_of_one_network_use_what_one_owner_may() {
        let budget = Arc::new(BodyBudget::default());
        let take = |network: &str, name: &str| {
            let owner = BodyOwner::Network(network.parse().unwrap(), Some(name.into()));
            let mut permit = BudgetPermit::of(budget.clone(), owner);
            permit.reserve(10, 120).then_some(permit)
        };
        let invented: Vec<_> =
            (0..20).filter_map(|nth| take("192.0.2.1", &format!("ws_{nth}"))).collect();
        assert_eq!(invented.len(), 6);
        let mut known = BudgetPermit::of(budget.clone(), BodyOwner::Workspace("ws_acme".into()));
        assert!(known.reserve(30, 120));
        drop((invented, known));
        // Of one network, a name leaves to others as a workspace does.
        let first: Vec<_> = (0..20).filter_map(|_| take("192.0.2.1", "ws_a")).collect();
        let second: Vec<_> = (0..20).filter_map(|_| take("192.0.2.1", "ws_b")).collect();
        assert_eq!((first.len(), second.len()), (3, 1));
        drop((first, second));
        assert_eq!((budget.used(), budget.lock().owners.len()), (0, 0));
    }
}
