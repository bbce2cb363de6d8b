//! Jobs that send many deliveries again: ask for one, see how far it has come.
//!
//! Not here: who does them, step by step, and tells the worker.

use crate::api::dto::{JobView, RedeliveryFilter};
use crate::api::query::TIME;
use crate::api::times::time_of;
use crate::api::{Asked, json};
use crate::domain::delivery::DeliveryState;
use crate::http_errors::{self, Flaws};
use crate::http_server::{Reply, problems};
use crate::store::{Filter, JOBS_OPEN_MAX, JobCreated};

/// `Retry-After` of a refused job: a job of a few thousand deliveries takes less.
const AGAIN_SECONDS: &str = "10";

pub(super) async fn create(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let body: RedeliveryFilter = asked.body(|_, _| {})?;
    let ids = asked.store().ids();
    let mut flaws = Flaws::default();
    let webhook = body.webhook.and_then(|text| {
        let webhook = ids.webhook_of(&text);
        if webhook.is_none() {
            flaws.at("/webhook", "must be the `id` of a webhook");
        }
        webhook
    });
    let mut time = |pointer, text: Option<String>| {
        let text = text?;
        let time = time_of(&text);
        if time.is_none() {
            flaws.at(pointer, format!("must be {TIME}"));
        }
        time
    };
    let (since, until) = (time("/since", body.since), time("/until", body.until));
    if !flaws.is_empty() {
        return Err(http_errors::unprocessable(&flaws));
    }
    let state = Some(body.state.unwrap_or(DeliveryState::FailedPermanent));
    let filter = Filter { state, webhook, kind: body.kind.map(|kind| kind.0), since, until };
    let job = asked.store().create_job(asked.workspace, filter, asked.now).await;
    let job = match job.map_err(|error| asked.failed(&error))? {
        JobCreated::Job(job) => JobView::of(ids, &job),
        JobCreated::TooMany => return Err(too_many()),
    };
    asked.state.jobs.notify_one();
    let location = format!("/v1/workspaces/{}/redeliveries/{}", asked.workspace, job.id);
    Ok(json(202, &job).with("location", location))
}

fn too_many() -> Reply {
    let detail = format!(
        "A workspace has at most {JOBS_OPEN_MAX} redeliveries under way; ask again when one of \
         them has ended."
    );
    let title = "Too many redeliveries";
    Reply::problem(&problems::plain(429, "too-many-redeliveries", title, detail))
        .with("retry-after", AGAIN_SECONDS)
}

pub(super) async fn read(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let ids = asked.store().ids();
    let id = ids.job_of(asked.id).ok_or_else(problems::not_found)?;
    let job = asked.store().job(asked.workspace, id).await;
    let job = job.map_err(|error| asked.failed(&error))?.ok_or_else(problems::not_found)?;
    Ok(json(200, &JobView::of(ids, &job)))
}
