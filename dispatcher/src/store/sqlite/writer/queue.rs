//! The order of work at the writer: small calls and large ones.
//!
//! A call with a thousand events lasts dozens of milliseconds, the record of an attempt a fraction
//! of one. With a single queue, a client that posts a million events would delay all others.
//!
//! # Invariants
//!
//! 1. Small work waits for at most one large call, however many came before.
//! 2. Large work waits for at most one batch of small work, beside earlier large calls.
//! 3. Work of one size is first in, first out.
//!
//! Not here: the size of a batch (`writer`).

use std::collections::VecDeque;

/// The approximate duration of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::sqlite) enum Size {
    /// A millisecond or less: many share a commit.
    Small,
    /// More: it has a commit to itself.
    Large,
}

/// What waits.
#[derive(Debug)]
pub(super) struct Line<T> {
    small: VecDeque<T>,
    large: VecDeque<T>,
    /// Whether small work has had its turn.
    large_is_next: bool,
}

impl<T> Line<T> {
    /// Nothing waits.
    pub(super) fn new() -> Self {
        Self { small: VecDeque::new(), large: VecDeque::new(), large_is_next: false }
    }

    /// Lines up.
    pub(super) fn push(&mut self, work: T, size: Size) {
        match size {
            Size::Small => self.small.push_back(work),
            Size::Large => self.large.push_back(work),
        }
    }

    /// What a batch begins with, and how large that is.
    pub(super) fn first(&mut self) -> Option<(T, Size)> {
        let large_is_next = std::mem::take(&mut self.large_is_next) || self.small.is_empty();
        if let Some(work) = self.large.pop_front_if(|_| large_is_next) {
            return Some((work, Size::Large));
        }
        self.large_is_next = true;
        self.small.pop_front().map(|work| (work, Size::Small))
    }

    /// What may share a batch with small work.
    pub(super) fn small(&mut self) -> Option<T> {
        self.small.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batches that come of what waits, each of two at most.
    fn batches(small: &[&'static str], large: &[&'static str]) -> Vec<Vec<&'static str>> {
        let mut line = Line::new();
        small.iter().for_each(|work| line.push(*work, Size::Small));
        large.iter().for_each(|work| line.push(*work, Size::Large));
        let mut batches = Vec::new();
        while let Some((first, size)) = line.first() {
            let second = if size == Size::Small { line.small() } else { None };
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
        let mut line = Line::new();
        ["A", "B", "C"].into_iter().for_each(|work| line.push(work, Size::Large));
        assert_eq!(line.first(), Some(("A", Size::Large)));
        line.push("a", Size::Small);
        assert_eq!(line.first(), Some(("a", Size::Small)));
    }
}
