//! The bodies of redeliveries of many: what to redeliver, its count, the progress, the estimate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::dto::{Kind, OutcomeName, Time};
use crate::domain::delivery::DeliveryState;
use crate::domain::public_id::PublicIds;
use crate::store::types::{Job, Matches, NAMED_MAX};

/// Webhooks that a count lists: as many as a page.
const WEBHOOKS_LISTED_MAX: usize = 100;

/// The deliveries to redeliver: those named by `deliveries`, or all that match the other members.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct NewRedelivery {
    /// The `id`s of deliveries, in any state; without any other member but `dry_run`.
    #[schemars(length(min = 1, max = NAMED_MAX), extend("uniqueItems" = true))]
    pub(in crate::api) deliveries: Option<Vec<String>>,
    /// Whether to count the deliveries and redeliver none. Default: false.
    pub(in crate::api) dry_run: Option<bool>,
    /// Their state. Default: `failed_permanent`; `delivered` needs `since`.
    pub(in crate::api) state: Option<DeliveryState>,
    /// The `id` of their webhook.
    pub(in crate::api) webhook: Option<String>,
    /// Their event type.
    #[serde(rename = "type")]
    pub(in crate::api) kind: Option<Kind>,
    /// The `id` of their event.
    pub(in crate::api) event: Option<String>,
    /// The `tenant_id` of their event.
    pub(in crate::api) tenant: Option<String>,
    /// The class of their last attempt's outcome.
    pub(in crate::api) outcome: Option<OutcomeName>,
    /// The status that their last attempt got.
    #[schemars(range(min = 100, max = 999))]
    pub(in crate::api) status: Option<u16>,
    /// Accepted at or after this time.
    #[schemars(extend("format" = "date-time"))]
    pub(in crate::api) since: Option<String>,
    /// Accepted before this time.
    #[schemars(extend("format" = "date-time"))]
    pub(in crate::api) until: Option<String>,
}

/// A number of deliveries, exact up to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(in crate::api) struct MatchCount {
    /// How many were counted.
    pub(in crate::api) count: u64,
    /// Whether there may be more.
    pub(in crate::api) at_least: bool,
}

/// What a redelivery would redeliver.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct RedeliveryPreview {
    /// The deliveries that match.
    pub(in crate::api) total: MatchCount,
    /// The first 100 webhooks with any, oldest first.
    pub(in crate::api) webhooks: Vec<WebhookCount>,
    /// When the last would be sent; null if none matches.
    pub(in crate::api) estimate: Option<EstimateView>,
}

/// The deliveries of one webhook that match.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct WebhookCount {
    /// The webhook's identifier.
    pub(in crate::api) webhook_id: String,
    /// How many were counted.
    pub(in crate::api) count: u64,
}

impl RedeliveryPreview {
    pub(in crate::api) fn of(
        ids: &PublicIds,
        matches: &Matches,
        estimate: Option<EstimateView>,
    ) -> Self {
        let count = matches.webhooks.iter().map(|one| one.count).sum();
        let listed = matches.webhooks.iter().take(WEBHOOKS_LISTED_MAX);
        Self {
            total: MatchCount { count, at_least: !matches.complete },
            webhooks: listed
                .map(|one| WebhookCount { webhook_id: ids.webhook(one.webhook), count: one.count })
                .collect(),
            estimate,
        }
    }
}

/// When the last of some deliveries is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Estimate")]
pub(in crate::api) struct EstimateView {
    /// The earliest time, if each receiver answers at once; null if a webhook is paused.
    pub(in crate::api) sent_at: Option<Time>,
    /// The seconds until then.
    pub(in crate::api) seconds: Option<u64>,
    /// The estimate as a sentence, or why there is none.
    pub(in crate::api) text: String,
}

/// A job that redelivers many deliveries.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Redelivery")]
pub(in crate::api) struct JobView {
    /// The identifier.
    pub(in crate::api) id: String,
    /// Whether it runs.
    pub(in crate::api) state: JobState,
    /// The number of deliveries that it examined.
    pub(in crate::api) examined: u64,
    /// The deliveries that matched when it was created; null if they were not counted.
    pub(in crate::api) total: Option<MatchCount>,
    /// The number of deliveries that it queued again.
    pub(in crate::api) redelivered: u64,
    /// Of these, how many wait. One that was redelivered again since counts there only.
    pub(in crate::api) waiting: u64,
    /// Of these, how many were delivered since.
    pub(in crate::api) delivered: u64,
    /// Of these, how many failed permanently again.
    pub(in crate::api) failed_permanent: u64,
    /// When it was created.
    pub(in crate::api) created_at: Time,
    /// When it had examined every delivery, or was cancelled.
    pub(in crate::api) ended_at: Option<Time>,
    /// When the last is sent; null if none waits, and in a list.
    pub(in crate::api) estimate: Option<EstimateView>,
}

/// The state of a job.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::api) enum JobState {
    /// More deliveries are to be examined.
    Running,
    /// Every delivery was examined.
    Done,
    /// It was cancelled before: what it had queued again stays queued.
    Cancelled,
}

impl JobView {
    pub(in crate::api) fn of(ids: &PublicIds, job: &Job, estimate: Option<EstimateView>) -> Self {
        let counted =
            |complete: bool| MatchCount { count: job.sum(|one| one.matching), at_least: !complete };
        Self {
            id: ids.job(job.id),
            state: match job.ended_at {
                None => JobState::Running,
                Some(_) if job.cancelled => JobState::Cancelled,
                Some(_) => JobState::Done,
            },
            examined: job.examined,
            total: job.counted.map(counted),
            redelivered: job.redelivered,
            waiting: job.sum(|one| one.waiting),
            delivered: job.sum(|one| one.delivered),
            failed_permanent: job.sum(|one| one.failed_permanent),
            created_at: Time(job.created_at),
            ended_at: job.ended_at.map(Time),
            estimate,
        }
    }
}

/// A page of jobs, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct RedeliveryPage {
    /// The jobs.
    pub(in crate::api) data: Vec<JobView>,
    /// The `cursor` of the next page; null on the last page.
    pub(in crate::api) next_cursor: Option<String>,
}
