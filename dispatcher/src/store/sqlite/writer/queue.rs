//! The order of work at the writer: small calls and large ones.
//!
//! A call with a thousand events runs for dozens of milliseconds, the record of an attempt for a
//! fraction of one. With one queue, a client that posts a million events would delay all others.
//!
//! # Invariants
//!
//! 1. Small work waits for at most one large call, however many were queued before.
//! 2. The next large call waits for at most one batch of small work.
//! 3. Work of one size is first in, first out.
//!
//! Not here: the size of a batch (`writer`).

use std::collections::VecDeque;

/// The approximate duration of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::sqlite) enum Size {
    /// A millisecond or less: many share a commit.
    Small,
    /// More: it has its own commit.
    Large,
}

/// Waiting work.
#[derive(Debug)]
pub(super) struct TaskQueue<T> {
    small: VecDeque<T>,
    large: VecDeque<T>,
    /// Whether small work had the last turn.
    large_is_next: bool,
}

impl<T> TaskQueue<T> {
    /// An empty queue.
    pub(super) fn new() -> Self {
        Self { small: VecDeque::new(), large: VecDeque::new(), large_is_next: false }
    }

    /// Adds work at the end.
    pub(super) fn push(&mut self, work: T, size: Size) {
        match size {
            Size::Small => self.small.push_back(work),
            Size::Large => self.large.push_back(work),
        }
    }

    /// Removes the work that the next batch starts with, and returns its size with it.
    pub(super) fn first(&mut self) -> Option<(T, Size)> {
        let large_is_next = std::mem::take(&mut self.large_is_next) || self.small.is_empty();
        if let Some(work) = self.large.pop_front_if(|_| large_is_next) {
            return Some((work, Size::Large));
        }
        self.large_is_next = true;
        self.small.pop_front().map(|work| (work, Size::Small))
    }

    /// Removes the next small work, which may share a batch with other small work.
    pub(super) fn small(&mut self) -> Option<T> {
        self.small.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batches, of at most two calls each, in which this work runs.
    fn batches(small: &[&'static str], large: &[&'static str]) -> Vec<Vec<&'static str>> {
        let mut queue = TaskQueue::new();
        small.iter().for_each(|work| queue.push(*work, Size::Small));
        large.iter().for_each(|work| queue.push(*work, Size::Large));
        let mut batches = Vec::new();
        while let Some((first, size)) = queue.first() {
            let second = if size == Size::Small { queue.small() } else { None };
            batches.push([first].into_iter().chain(second).collect());
        }
        batches
    }

    #[test]
    fn small_and_large_work_take_turns_and_each_keeps_its_order() {
        assert_eq!(batches(&["a", "b", "c"], &[]), [vec!["a", "b"], vec!["c"]]);
        assert_eq!(batches(&[], &["A", "B"]), [["A"], ["B"]]);
        let both = batches(&["a", "b", "c", "d", "e"], &["A", "B"]);
        assert_eq!(both, [vec!["a", "b"], vec!["A"], vec!["c", "d"], vec!["B"], vec!["e"]]);
        let more_large = batches(&["a"], &["A", "B"]);
        assert_eq!(more_large, [["a"], ["A"], ["B"]]);
    }

    #[test]
    fn small_work_waits_for_one_large_task_at_most() {
        let mut queue = TaskQueue::new();
        ["A", "B", "C"].into_iter().for_each(|work| queue.push(work, Size::Large));
        assert_eq!(queue.first(), Some(("A", Size::Large)));
        queue.push("a", Size::Small);
        assert_eq!(queue.first(), Some(("a", Size::Small)));
    }
}
