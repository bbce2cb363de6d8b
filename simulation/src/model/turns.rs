//! How long webhooks and workspaces have waited for their turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_common::time::Tick;
use weir_dispatcher::domain::id::WebhookId;

/// The starts of others that each webhook and workspace has waited for.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// When everything was last idle, with a store that answers.
    pub(crate) rested: Tick,
    /// The starts of others at its URL, by webhook that could have started.
    pub(crate) passed: BTreeMap<WebhookId, usize>,
    /// How many starts at a URL a workspace that could start is behind another one.
    pub(crate) behind: BTreeMap<(usize, Arc<str>, Arc<str>), usize>,
}

impl Turns {
    /// Whether the worker must know what was on disk at `then`.
    pub(crate) fn knows(&self, then: Tick) -> bool {
        then <= self.rested
    }

    /// Counts anew: a caller may wait for the store.
    pub(crate) fn reset(&mut self) {
        self.passed.clear();
        self.behind.clear();
    }
}
