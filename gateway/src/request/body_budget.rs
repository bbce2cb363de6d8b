//! The memory that buffered request bodies share.
//!
//! # Invariants
//!
//! 1. An announced length reserves nothing; dropping a permit releases the bytes that it has
//!    reserved.
//! 2. Several bodies of one owner use no more than they leave to others: a workspace that sends
//!    its bodies slowly takes no other's place.
//!
//! Not here: reading a body (`proxy::body`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes that buffered bodies use.
#[derive(Debug, Default)]
pub struct BodyBudget {
    used: Mutex<Used>,
}

/// In all, and by each owner that uses some.
#[derive(Debug, Default)]
struct Used {
    all: u64,
    owners: HashMap<Arc<str>, u64>,
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
    owner: Arc<str>,
    bytes: u64,
}

impl BudgetPermit {
    /// A permit of `owner` for no bytes yet.
    #[must_use]
    pub fn of(budget: Arc<BodyBudget>, owner: Arc<str>) -> Self {
        Self { budget, owner, bytes: 0 }
    }

    /// Reserves `bytes` more; false if all permits together would then exceed `bytes_max`, or those
    /// of an owner that has several would leave less than they use.
    pub fn reserve(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let mut used = self.budget.lock();
        let own = used.owners.get(&self.owner).copied().unwrap_or_default();
        let (all, left) = (used.all + bytes, bytes_max.saturating_sub(used.all + bytes));
        let fits = all <= bytes_max && (own == self.bytes || own + bytes <= left);
        if fits {
            used.all = all;
            *used.owners.entry(self.owner.clone()).or_default() += bytes;
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        let mut used = self.budget.lock();
        used.all -= self.bytes;
        if let Some(own) = used.owners.get_mut(&self.owner) {
            *own -= self.bytes;
            if *own == 0 {
                used.owners.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffered_bodies_share_their_budget_and_give_it_back() {
        let budget = Arc::new(BodyBudget::default());
        let permit = |owner: &str| BudgetPermit::of(budget.clone(), owner.into());
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
        let permit = |owner: &str| BudgetPermit::of(budget.clone(), owner.into());
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
}
