//! The webhooks with the most failed attempts lately, in bounded memory: for the operators' screen.
//!
//! Not here: whether a webhook counts as failing (`domain::health`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_common::heavy_hitters::Sketch;

use crate::domain::id::WebhookId;

/// A webhook and its workspace.
type Label = (WebhookId, Arc<str>);

/// Counts failed attempts by webhook.
#[derive(Debug, Default)]
pub struct MostFailedWebhooks(Mutex<Sketch<WebhookId, Label>>);

/// A webhook with failed attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MostFailedWebhook {
    /// The webhook.
    pub webhook: WebhookId,
    /// Its workspace.
    pub workspace: Arc<str>,
    /// Its failed attempts; old ones count less ([`MostFailedWebhooks::fade`]).
    pub failed: u64,
}

impl MostFailedWebhooks {
    /// Counts a failed attempt.
    pub fn failed(&self, webhook: WebhookId, workspace: &Arc<str>) {
        self.sketch().count(webhook, 1, || (webhook, Arc::clone(workspace)));
    }

    /// Those with the most failed attempts.
    #[must_use]
    pub fn most(&self, places: usize) -> Vec<MostFailedWebhook> {
        let most = self.sketch().most(places);
        let shown =
            |((webhook, workspace), failed)| MostFailedWebhook { webhook, workspace, failed };
        most.into_iter().map(shown).collect()
    }

    /// Halves all counts.
    pub fn fade(&self) {
        self.sketch().fade();
    }

    fn sketch(&self) -> MutexGuard<'_, Sketch<WebhookId, Label>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
