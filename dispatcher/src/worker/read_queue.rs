//! What the store is to be asked next, and how much of that at a time.
//!
//! A hundred thousand webhooks may have something to be asked at one time: what waits for its turn
//! is kept as the few words that it is, and becomes a task, which takes ten times as much, when it
//! is asked.
//!
//! # Invariants
//!
//! 1. No more than [`QUESTIONS_MAX`] questions are with the store.
//! 2. Webhooks that are not known yet and work of those that are take turns: what is known of a
//!    webhook that was read leads to its first delivery before a hundred thousand others are read.
//!    Within each, what came first is asked first.
//! 3. What failed comes again after a pause, and keeps no place from others in the meantime.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_common::time::Tick;

use crate::domain::id::{DeliveryId, WebhookId};

/// Questions to the store at a time: each is a task, and a step of a reactivation takes a place
/// among what its writer lets wait.
const QUESTIONS_MAX: usize = 256;

/// Something the store is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// This webhook, and when its first delivery is due.
    Load(WebhookId),
    /// To put the next deliveries of a reactivated webhook into order.
    Reorder(WebhookId),
    /// As [`crate::scheduler::Step::Fetch`].
    Fetch { webhook: WebhookId, limit: usize, but: Vec<DeliveryId>, round: u64 },
    /// As [`crate::scheduler::Step::FetchOne`].
    FetchOne { webhook: WebhookId, delivery: DeliveryId, round: u64 },
}

/// A hundred thousand may wait.
const _: () = assert!(size_of::<Question>() <= 64);

/// Questions that wait for their turn.
#[derive(Debug)]
pub(super) struct Questions {
    /// Webhooks to be read: one for each that there is, at most.
    loads: VecDeque<WebhookId>,
    /// All else.
    work: VecDeque<Question>,
    /// Whether work has had its turn.
    load_is_next: bool,
    /// Those that are not to be asked before then: all rest for as long, so they are in order.
    resting: VecDeque<(Tick, Question)>,
    places: Arc<Semaphore>,
}

impl Default for Questions {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
        let (loads, work, resting) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { loads, work, load_is_next: false, resting, places }
    }
}

impl Questions {
    /// Lines a question up.
    pub(super) fn push(&mut self, question: Question) {
        match question {
            Question::Load(webhook) => self.loads.push_back(webhook),
            work => self.work.push_back(work),
        }
    }

    /// Lines a question up that is not to be asked before then.
    pub(super) fn push_later(&mut self, question: Question, at: Tick) {
        self.resting.push_back((at, question));
    }

    /// What is to be asked now, and the place that it has until it is answered.
    pub(super) fn next(&mut self, now: Tick) -> Option<(Question, OwnedSemaphorePermit)> {
        while let Some((_, question)) = self.resting.pop_front_if(|(at, _)| *at <= now) {
            self.push(question);
        }
        // Whoever gives a place back tells the worker something.
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.first().map(|question| (question, place))
    }

    fn first(&mut self) -> Option<Question> {
        let load_is_next = std::mem::take(&mut self.load_is_next) || self.work.is_empty();
        if load_is_next && let Some(webhook) = self.loads.pop_front() {
            fit(&mut self.loads);
            return Some(Question::Load(webhook));
        }
        self.load_is_next = true;
        let question = self.work.pop_front();
        fit(&mut self.work);
        question
    }

    /// When one that rests may be asked again.
    pub(super) fn next_at(&self) -> Option<Tick> {
        self.resting.front().map(|(at, _)| *at)
    }
}

/// Gives back what is only for the many that once waited.
fn fit<T>(line: &mut VecDeque<T>) {
    if line.is_empty() {
        line.shrink_to(QUESTIONS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: usize) -> Question {
        Question::Load(WebhookId(i64::try_from(id).expect("it is small")))
    }

    fn work(id: usize) -> Question {
        Question::Reorder(WebhookId(i64::try_from(id).expect("it is small")))
    }

    #[test]
    fn so_many_are_asked_at_a_time_and_all_in_their_order() {
        for question in [load, work] {
            let mut questions = Questions::default();
            (0..3 * QUESTIONS_MAX).for_each(|id| questions.push(question(id)));
            let mut asked = VecDeque::new();
            for id in 0..3 * QUESTIONS_MAX {
                if id >= QUESTIONS_MAX {
                    assert!(questions.next(Tick(0)).is_none());
                    asked.pop_front();
                }
                let (next, place) = questions.next(Tick(0)).expect("there is a place");
                assert_eq!(next, question(id));
                asked.push_back(place);
            }
            asked.clear();
            assert!(questions.next(Tick(0)).is_none());
            let kept = questions.loads.capacity() + questions.work.capacity();
            assert!(kept <= 2 * QUESTIONS_MAX, "{kept} are kept of what it once took");
        }
    }

    #[test]
    fn webhooks_to_be_read_and_work_of_those_that_are_known_take_turns() {
        let mut questions = Questions::default();
        (0..3).for_each(|id| questions.push(load(id)));
        assert_eq!(questions.next(Tick(0)).map(|(next, _)| next), Some(load(0)));
        (0..3).for_each(|id| questions.push(work(id)));
        let asked = std::iter::from_fn(|| questions.next(Tick(0)).map(|(next, _)| next));
        let asked: Vec<Question> = asked.collect();
        assert_eq!(asked, [work(0), load(1), work(1), load(2), work(2)]);
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
