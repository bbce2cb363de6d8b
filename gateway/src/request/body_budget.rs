//! The memory that buffered request bodies share.
//!
//! Invariant: an announced length reserves nothing; dropping a permit releases the bytes that it
//! has reserved.
//!
//! Not here: reading a body (`proxy::body`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that all buffered bodies use together.
#[derive(Debug, Default)]
pub struct BodyBudget {
    used: AtomicU64,
}

impl BodyBudget {
    /// How many bytes are reserved.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A part of the budget, released when dropped.
#[derive(Debug)]
pub struct BudgetPermit {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BudgetPermit {
    /// A permit for no bytes yet.
    #[must_use]
    pub fn of(budget: Arc<BodyBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Reserves `bytes` more; false if all permits together would then exceed `bytes_max`.
    pub fn reserve(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let fits = |used: u64| Some(used + bytes).filter(|used| *used <= bytes_max);
        let fits = self.budget.used.try_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffered_bodies_share_their_budget_and_give_it_back() {
        let budget = Arc::new(BodyBudget::default());
        let permit = || BudgetPermit::of(budget.clone());
        let (mut first, mut second) = (permit(), permit());
        assert!(first.reserve(60, 100));
        assert!(!second.reserve(41, 100));
        assert!(second.reserve(40, 100));
        drop((first, second));
        assert!(permit().reserve(100, 100));
    }
}
