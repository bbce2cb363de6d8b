//! Reports events to the promises that the survival runs share, and checks their verdicts.

use std::sync::Arc;

use weir_dispatcher::domain::id::WebhookId;
use weir_tests::promises::Broken;

use crate::model::{Delivery, Model, violated};

impl Delivery {
    /// Its key in the promises.
    pub(crate) fn pair(&self) -> (Arc<str>, WebhookId) {
        (self.event.clone(), self.hook)
    }
}

impl Model {
    /// Records a delivery that is on disk.
    pub(crate) fn comes(&mut self, delivery: Delivery) {
        self.on_disk.insert(delivery.event.clone());
        self.promises.acknowledged(delivery.pair());
        let same = self.bodies.is(&delivery.event, &delivery.body);
        self.judge(same);
        if self.names.insert(delivery.pair(), delivery.id).is_some() {
            violated("kept", format!("{} has two deliveries for one webhook", delivery.event));
        }
        self.open.insert((delivery.hook, delivery.id));
        self.deliveries.insert(delivery.id, delivery);
    }

    /// Fails if a promise is broken; one that needs the wall clock, only if that was never set.
    #[track_caller]
    pub(crate) fn judge<T>(&self, judged: Result<T, Broken>) {
        let Err(Broken { promise, story }) = judged else { return };
        if !(self.clock_set && promise.needs_the_clock()) {
            violated(&promise.to_string(), story);
        }
    }

    /// Checks at the end of a run that nothing is still owed.
    pub(crate) fn nothing_is_owed(&self) {
        let left = self.promises.at_the_end(|(_, hook)| self.hooks[hook].deleted);
        left.into_iter().for_each(|broken| self.judge::<()>(Err(broken)));
    }
}
