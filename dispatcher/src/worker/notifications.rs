//! Tells a webhook's owners that it fails or that it is paused: a mail each, into the outbox.

use std::collections::BTreeSet;

use crate::domain::health::Notice;
use crate::domain::webhook::Webhook;
use crate::email::templates::{Incident, paused, warning};
use crate::store::NewMail;
use crate::worker::Resources;
use weir_common::time::UnixTime;

/// The mails that a notice at `now` asks for: none without `[mail]`, or without owners.
pub(super) fn mails(
    resources: &Resources,
    webhook: &Webhook,
    notice: Notice,
    now: UnixTime,
) -> Vec<NewMail> {
    let active = resources.active.load();
    // Who sends no mail does not want to find a heap of it on the day when they do.
    let Some(settings) = &active.settings.mail else { return Vec::new() };
    let since = match notice {
        Notice::Warn => webhook.health.failing_since(),
        Notice::Pause => webhook.health.down_since(),
    };
    let id = resources.ids.webhook(webhook.id);
    let incident = Incident {
        webhook: &id,
        workspace: &webhook.workspace,
        url: &webhook.url,
        since: since.unwrap_or(now),
        last: webhook.last_outcome.as_ref(),
        link: settings.link.as_deref(),
    };
    let owners = active.directory.workspaces.get(&*webhook.workspace);
    let owners = owners.into_iter().flat_map(|workspace| &workspace.owners);
    // Somebody who is named twice is told once.
    let owners: BTreeSet<&str> = owners.map(|owner| owner.value.as_str()).collect();
    let mail = |owner| match notice {
        Notice::Warn => warning(&incident, owner),
        Notice::Pause => paused(&incident, owner),
    };
    owners.into_iter().map(mail).collect()
}
