//! What the store is to be asked next, and how much of that at a time.
//!
//! A hundred thousand webhooks may have something to be asked at one time: what waits for its turn
//! is kept as the few words that it is, and becomes a task, which takes ten times as much, when it
//! is asked.
//!
//! # Invariants
//!
//! 1. No more than [`QUESTIONS_MAX`] questions are with the store.
//! 2. They are asked in the order in which they came; one that failed comes again after a pause,
//!    and keeps no place from others in the meantime.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_common::time::Tick;

use crate::model::{DeliveryId, WebhookId};

/// Questions to the store at a time: a small part of what its writer lets wait.
const QUESTIONS_MAX: usize = 256;

/// Something the store is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// This webhook, and when its first delivery is due.
    Load(WebhookId),
    /// To put the next deliveries of a reactivated webhook into order.
    Reorder(WebhookId),
    /// As [`crate::lanes::Step::Fetch`].
    Fetch { webhook: WebhookId, limit: usize, but: Vec<DeliveryId>, round: u64 },
    /// As [`crate::lanes::Step::FetchOne`].
    FetchOne { webhook: WebhookId, delivery: DeliveryId, round: u64 },
}

/// A hundred thousand may wait.
const _: () = assert!(size_of::<Question>() <= 64);

/// Questions that wait for their turn.
#[derive(Debug)]
pub(super) struct Questions {
    waiting: VecDeque<Question>,
    /// Those that are not to be asked before then: all rest for as long, so they are in order.
    resting: VecDeque<(Tick, Question)>,
    places: Arc<Semaphore>,
}

impl Default for Questions {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
        Self { waiting: VecDeque::new(), resting: VecDeque::new(), places }
    }
}

impl Questions {
    /// Lines a question up.
    pub(super) fn push(&mut self, question: Question) {
        self.waiting.push_back(question);
    }

    /// Lines a question up that is not to be asked before then.
    pub(super) fn push_later(&mut self, question: Question, at: Tick) {
        self.resting.push_back((at, question));
    }

    /// What is to be asked now, and the place that it has until it is answered.
    pub(super) fn next(&mut self, now: Tick) -> Option<(Question, OwnedSemaphorePermit)> {
        while let Some((_, question)) = self.resting.pop_front_if(|(at, _)| *at <= now) {
            self.waiting.push_back(question);
        }
        if self.waiting.is_empty() {
            self.waiting.shrink_to(QUESTIONS_MAX);
            return None;
        }
        // Whoever gives a place back tells the worker something.
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.waiting.pop_front().map(|question| (question, place))
    }

    /// When one that rests may be asked again.
    pub(super) fn next_at(&self) -> Option<Tick> {
        self.resting.front().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: usize) -> Question {
        Question::Load(WebhookId(i64::try_from(id).expect("it is small")))
    }

    #[test]
    fn so_many_are_asked_at_a_time_and_all_in_their_order() {
        let mut questions = Questions::default();
        (0..3 * QUESTIONS_MAX).for_each(|id| questions.push(load(id)));
        let mut asked = VecDeque::new();
        while let Some((question, place)) = questions.next(Tick(0)) {
            assert_eq!(question, load(asked.len()));
            asked.push_back(place);
        }
        assert_eq!(asked.len(), QUESTIONS_MAX);
        for id in QUESTIONS_MAX..3 * QUESTIONS_MAX {
            assert!(questions.next(Tick(0)).is_none());
            asked.pop_front();
            let (question, place) = questions.next(Tick(0)).expect("there is a place");
            assert_eq!(question, load(id));
            asked.push_back(place);
        }
        asked.clear();
        assert!(questions.next(Tick(0)).is_none());
        assert!(questions.waiting.capacity() <= 2 * QUESTIONS_MAX, "it keeps what it once took");
    }

    #[test]
    fn one_that_rests_holds_nobody_up_and_comes_when_it_is_time() {
        let mut questions = Questions::default();
        (0..2 * QUESTIONS_MAX).for_each(|id| questions.push_later(load(id), Tick(10)));
        questions.push(load(7_000));
        assert_eq!(questions.next_at(), Some(Tick(10)));
        let (question, _) = questions.next(Tick(9)).expect("it does not rest");
        assert_eq!(question, load(7_000));
        assert!(questions.next(Tick(9)).is_none());
        let (question, _) = questions.next(Tick(10)).expect("it has rested");
        assert_eq!((question, questions.next_at()), (load(0), None));
    }
}
