//! Redelivery jobs: create one from a filter, show its progress.
//!
//! Not here: running the jobs (`maintenance`).

use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;

use crate::api::dto::{JobView, RedeliveryFilter};
use crate::api::query::{IDENTIFIER, TIME, identifier_of};
use crate::api::times::time_of;
use crate::api::{ApiRequest, json};
use crate::domain::delivery::DeliveryState;
use crate::http_errors::{self, ValidationErrors};
use crate::store::types::{Filter, JOBS_OPEN_MAX, JobCreated};

/// `Retry-After` of a refused job: a job of a few thousand deliveries ends sooner.
const AGAIN_SECONDS: &str = "10";

pub(super) async fn create(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let body: RedeliveryFilter = request.body(|_, _| {})?;
    let ids = request.store().ids();
    let mut errors = ValidationErrors::default();
    let webhook = body.webhook.and_then(|text| {
        let webhook = ids.webhook_of(&text);
        if webhook.is_none() {
            errors.at("/webhook", "must be the `id` of a webhook");
        }
        webhook
    });
    let mut time = |pointer, text: Option<String>| {
        let text = text?;
        let time = time_of(&text);
        if time.is_none() {
            errors.at(pointer, format!("must be {TIME}"));
        }
        time
    };
    let (since, until) = (time("/since", body.since), time("/until", body.until));
    let mut identifier = |pointer, text: Option<String>| {
        let text = text?;
        let identifier = identifier_of(&text);
        if identifier.is_none() {
            errors.at(pointer, format!("must be {IDENTIFIER}"));
        }
        identifier
    };
    let event = identifier("/event", body.event);
    let tenant = identifier("/tenant", body.tenant);
    if !errors.is_empty() {
        return Err(http_errors::unprocessable(&errors));
    }
    let state = Some(body.state.unwrap_or(DeliveryState::FailedPermanent));
    let filter = Filter {
        state,
        webhook,
        kind: body.kind.map(|kind| kind.0),
        event,
        tenant,
        outcome: body.outcome.map(|outcome| outcome.0),
        status: body.status,
        since,
        until,
    };
    let job = request.store().create_job(request.workspace, filter.into(), request.now).await;
    let job = match job.map_err(|error| request.failed(&error))? {
        JobCreated::Job(job) => JobView::of(ids, &job),
        JobCreated::TooMany => return Err(too_many()),
    };
    request.state.jobs.notify_one();
    let location = format!("/v1/workspaces/{}/redeliveries/{}", request.workspace, job.id);
    Ok(json(202, &job).with("location", location))
}

fn too_many() -> Reply {
    let detail = format!(
        "A workspace runs at most {JOBS_OPEN_MAX} redeliveries at a time; try again when one has \
         ended."
    );
    let title = "Too many redeliveries";
    problems::refusal(429, "too-many-redeliveries", title, detail)
        .with("retry-after", AGAIN_SECONDS)
}

pub(super) async fn read(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let ids = request.store().ids();
    let id = ids.job_of(request.id).ok_or_else(http_errors::not_found)?;
    let job = request.store().job(request.workspace, id).await;
    let job = job.map_err(|error| request.failed(&error))?.ok_or_else(http_errors::not_found)?;
    Ok(json(200, &JobView::of(ids, &job)))
}
