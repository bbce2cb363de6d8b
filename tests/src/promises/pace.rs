//! The rate limit of an endpoint: no window has provably more attempts than it allows.
//!
//! Starts are reported in the order of their `latest`. It is enough to check, at each start, the
//! window that ends with it.

use std::collections::VecDeque;

use super::{Broken, Promise, When, broken};

/// The starts of attempts at one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Each start, and whether it reached its endpoint.
    starts: VecDeque<(When, bool)>,
    /// The most starts that were provably within one window.
    pub most: usize,
}

impl Pace {
    /// Reports a start, and checks that no `window` (in microseconds) has more than `allowed`
    /// starts. Only starts that were `heard` by the endpoint count.
    #[inline]
    pub fn started(
        &mut self,
        start: When,
        heard: bool,
        window: u64,
        allowed: usize,
    ) -> Result<(), Broken> {
        let within = |at: u64| start.latest < at.saturating_add(window);
        while self.starts.front().is_some_and(|(first, _)| !within(first.latest)) {
            self.starts.pop_front();
        }
        self.starts.push_back((start, heard));
        let sure = self.starts.iter().filter(|(one, heard)| *heard && within(one.earliest)).count();
        self.most = self.most.max(sure);
        if sure > allowed {
            return broken(Promise::Pace, format!("{sure} starts by {start:?} within {window} us"));
        }
        Ok(())
    }

    /// How many starts, `heard` or not, a window that ends now may contain.
    #[inline]
    pub fn within(&self, now: u64, window: u64) -> usize {
        self.starts.iter().filter(|(one, _)| now < one.latest.saturating_add(window)).count()
    }

    /// Forgets all starts so far.
    #[inline]
    pub fn forget(&mut self) {
        self.starts.clear();
    }
}
