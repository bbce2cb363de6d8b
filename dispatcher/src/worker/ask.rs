//! Asks the store about webhooks, and takes in what it answers.
//!
//! Not here: what is written down (`record`), questions about single deliveries (`worker`).

use std::time::Duration;

use weir_common::time::Moment;

use super::hooks::Restored;
use super::{Told, Worker};
use crate::model::WebhookId;
use crate::store::Queue;

/// How long after a failure the store is asked again.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Deliveries that a reactivation puts into order at a time: a commit of some milliseconds.
const REORDER_STEP: usize = 1_000;

impl Worker {
    pub(super) fn load(&mut self, webhook: WebhookId) {
        if self.hooks.ask(webhook) {
            let store = self.parts.store.clone();
            let load = async move { Told::Loaded(webhook, store.load(webhook).await) };
            self.ask_store(Duration::ZERO, load);
        }
    }

    /// Asks the store again after a while: it could not answer.
    pub(super) fn load_later(&mut self, webhook: WebhookId) {
        self.parts.metrics.store_failures.inc();
        // One answer at a time: of two, the older one could come last.
        if self.hooks.ask(webhook) {
            let store = self.parts.store.clone();
            let load = async move { Told::Loaded(webhook, store.load(webhook).await) };
            self.ask_store(STORE_PAUSE, load);
        }
    }

    /// Asks the store after a while. However many webhooks there is something to ask about, the
    /// store has room left for others' calls.
    pub(super) fn ask_store(
        &mut self,
        after: Duration,
        asking: impl Future<Output = Told> + Send + 'static,
    ) {
        let questions = self.questions.clone();
        self.tasks.spawn(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            // Nobody closes it.
            let _place = questions.acquire_owned().await;
            asking.await
        });
    }

    pub(super) fn loaded(&mut self, webhook: WebhookId, queue: Option<Queue>, now: Moment) {
        let changed_since = self.hooks.answered(webhook);
        match queue {
            Some(queue) => {
                if let Restored::ToReorder =
                    self.hooks.restore(queue, &mut self.lanes, now, &self.parts)
                {
                    self.reorder(webhook);
                }
            }
            None => {
                self.hooks.forget(webhook);
                self.lanes.close(webhook, now.tick);
            }
        }
        // What was read is taken in all the same: it may go on changing for as long as it likes.
        if changed_since {
            self.load(webhook);
        }
    }

    /// Puts a reactivated webhook's deliveries back into the order of creation, a step at a time.
    pub(super) fn reorder(&mut self, webhook: WebhookId) {
        let store = self.parts.store.clone();
        self.ask_store(Duration::ZERO, async move {
            Told::Reordered(webhook, store.reorder(webhook, REORDER_STEP).await)
        });
    }
}
