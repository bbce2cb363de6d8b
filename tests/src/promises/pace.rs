//! The pace of an endpoint: never surely more starts within any window than it allows.
//!
//! Starts are reported in the order of the latest that each can be. Of all windows the one that
//! ends with the newest start holds the most of those before it, so that each is judged as it
//! comes.

use std::collections::VecDeque;

use super::{Broken, Promise, When, broken};

/// The starts at one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Each, and whether its endpoint heard of it.
    starts: VecDeque<(When, bool)>,
    /// The most that one window surely held.
    pub most: usize,
}

impl Pace {
    /// A start, of which `heard` ones count. No window of so many microseconds may hold more
    /// than `allowed`.
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

    /// How many starts, heard of or not, a window that ends now may hold.
    #[inline]
    pub fn within(&self, now: u64, window: u64) -> usize {
        self.starts.iter().filter(|(one, _)| now < one.latest.saturating_add(window)).count()
    }

    /// What came so far counts no more.
    #[inline]
    pub fn forget(&mut self) {
        self.starts.clear();
    }
}
