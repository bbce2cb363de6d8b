//! Selects webhooks that are paused, failing or disabled, for operators. (core)
//!
//! Invariant: a webhook that delivers is never selected.

use std::sync::Arc;

use weir_common::time::UnixTime;

use crate::domain::webhook::{Webhook, WebhookState};

/// Selects webhooks that are not `delivering` and match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookFilter {
    /// Of this workspace.
    pub workspace: Option<Arc<str>>,
    /// In this state.
    pub state: Option<WebhookState>,
    /// With this host in the URL, in canonical form, without a port.
    pub host: Option<String>,
    /// In its state since this time or later.
    pub since: Option<UnixTime>,
    /// In its state since before this time.
    pub until: Option<UnixTime>,
}

impl WebhookFilter {
    /// Whether a webhook matches.
    #[must_use]
    pub fn matches(&self, webhook: &Webhook) -> bool {
        let Some(since) = webhook.state_since() else { return false };
        self.workspace.as_ref().is_none_or(|workspace| *workspace == webhook.workspace)
            && self.state.is_none_or(|state| state == webhook.state())
            && self.since.is_none_or(|earliest| since >= earliest)
            && self.until.is_none_or(|end| since < end)
            && self.host.as_ref().is_none_or(|host| webhook.host().as_ref() == Some(host))
    }
}
