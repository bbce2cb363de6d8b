//! How long webhooks and workspaces have waited for their turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_common::time::Tick;
use weir_dispatcher::domain::id::WebhookId;

/// What was waited for, and for how long.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// When all was last idle, with a store that answers.
    pub(crate) rested: Tick,
    /// So many starts of others at its URL each webhook has waited for that could have started.
    pub(crate) passed: BTreeMap<WebhookId, usize>,
    /// So many starts at a URL each workspace that could start is behind each other.
    pub(crate) behind: BTreeMap<(usize, Arc<str>, Arc<str>), usize>,
}

impl Turns {
    /// Whether the worker must have heard of what was then.
    pub(crate) fn knows(&self, then: Tick) -> bool {
        then <= self.rested
    }

    /// A caller may wait for the store.
    pub(crate) fn hold(&mut self) {
        self.passed.clear();
        self.behind.clear();
    }
}
