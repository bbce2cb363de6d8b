//! Asks the store about webhooks and what waits for them, and takes in what it answers.
//!
//! Not here: what is written down (`store_writes`), how many questions there may be (`read_queue`).

use std::time::Duration;

use weir_common::time::Moment;

use crate::domain::id::WebhookId;
use crate::domain::webhook::Queue;
use crate::worker::read_queue::Question;
use crate::worker::webhooks::Restored;
use crate::worker::{Told, Worker};

/// How long after a failure the store is asked again.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Deliveries that a reactivation puts into order at a time: a commit of some milliseconds.
const REORDER_STEP: usize = 1_000;

impl Worker {
    pub(super) fn load(&mut self, webhook: WebhookId) {
        if self.hooks.ask(webhook) {
            self.questions.push(Question::Load(webhook));
        }
    }

    /// Asks the store again after a while: it could not answer.
    pub(super) fn load_later(&mut self, webhook: WebhookId, now: Moment) {
        self.resources.metrics.store_failures.inc();
        // One answer at a time: of two, the older one could come last.
        if self.hooks.ask(webhook) {
            self.questions.push_later(Question::Load(webhook), now.tick.plus(STORE_PAUSE));
        }
    }

    /// Puts a reactivated webhook's deliveries back into the order of creation, a step at a time.
    pub(super) fn reorder(&mut self, webhook: WebhookId) {
        self.questions.push(Question::Reorder(webhook));
    }

    /// Asks the store what there is to ask. However many webhooks there is something to ask about,
    /// the store has room left for others' calls.
    pub(super) fn ask_store(&mut self, now: Moment) {
        while let Some((question, place)) = self.questions.next(now.tick) {
            let store = self.resources.store.clone();
            self.tasks.spawn(async move {
                let _place = place;
                match question {
                    Question::Load(webhook) => Told::Loaded(webhook, store.load(webhook).await),
                    Question::Reorder(webhook) => {
                        Told::Reordered(webhook, store.reorder(webhook, REORDER_STEP).await)
                    }
                    Question::Fetch { webhook, limit, but, round } => {
                        Told::Fetched(webhook, round, store.fetch(webhook, &but, limit).await)
                    }
                    Question::FetchOne { webhook, delivery, round } => {
                        Told::FetchedOne(webhook, round, store.fetch_one(delivery).await)
                    }
                }
            });
        }
    }

    pub(super) fn loaded(&mut self, webhook: WebhookId, queue: Option<Queue>, now: Moment) {
        let changed_since = self.hooks.answered(webhook);
        match queue {
            Some(queue) => {
                if let Restored::ToReorder =
                    self.hooks.restore(queue, &mut self.endpoints, now, &self.resources)
                {
                    self.reorder(webhook);
                }
            }
            None => {
                self.hooks.forget(webhook);
                self.endpoints.close(webhook, now.tick);
            }
        }
        // What was read is taken in all the same: it may go on changing for as long as it likes.
        if changed_since {
            self.load(webhook);
        }
    }
}
