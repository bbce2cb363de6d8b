//! What each tool accepts. Unknown members are refused; the JSON Schemas are made from these.

use std::num::NonZeroU64;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_client::body::{Filter, WebhookPatch};
use weir_client::methods::Paging;

/// Where a page begins, and how long it is.
macro_rules! paging {
    ($($name:ident),+) => {$(
        impl $name {
            pub(crate) fn paging(&self) -> Paging {
                Paging { cursor: self.cursor.clone(), limit: self.limit }
            }
        }
    )+};
}

paging!(Listed, Search);

/// A workspace alone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// The `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
    /// How many entries: 20 by default.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) limit: Option<u32>,
}

/// One thing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct One {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// Its `id`, from a list.
    pub(crate) id: String,
}

/// Nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// A webhook to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWebhook {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// Where deliveries go: absolute, https, on a public host.
    pub(crate) url: String,
    /// The event types it subscribes to, from list_event_types.
    #[schemars(length(min = 1))]
    pub(crate) events: Vec<String>,
    /// What it is for.
    pub(crate) description: Option<String>,
}

/// A change to a webhook.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Update {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// The webhook's `id`.
    pub(crate) id: String,
    /// What changes; the rest stays.
    pub(crate) changes: WebhookPatch,
    /// Only say what would happen, and to how many deliveries.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// The `confirm` of the dry run: a new URL, new event types and disabling need it.
    pub(crate) confirm: Option<u64>,
}

/// A secret to replace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rotation {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// The webhook's `id`.
    pub(crate) id: String,
    /// Only say what would happen.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// The `confirm` of the dry run.
    pub(crate) confirm: Option<u64>,
}

/// A test.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Test {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// The webhook's `id`.
    pub(crate) id: String,
    /// The event type whose example is sent; without it a `webhook.ping` with empty data.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

/// A search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Search {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// All that are given apply.
    #[serde(default)]
    pub(crate) filter: Filter,
    /// The `next_cursor` of the page before, with the same filter.
    pub(crate) cursor: Option<String>,
    /// How many entries: 20 by default.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) limit: Option<u32>,
}

/// Deliveries to send again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redelivery {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// Which; without a state those that failed permanently. `delivered` needs `since`.
    #[serde(default)]
    pub(crate) filter: Filter,
    /// Only say how many.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// The `confirm` of the dry run with the same filter.
    pub(crate) confirm: Option<u64>,
}

/// Limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// The workspace; without it, the one this server was started for.
    pub(crate) workspace: Option<String>,
    /// How many requests are planned: says whether they would be admitted now.
    pub(crate) requests: Option<NonZeroU64>,
}
