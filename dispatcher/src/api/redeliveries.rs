//! Redeliveries of many: count what would be redelivered, create a job, show, list and cancel jobs.
//!
//! Not here: running the jobs (`maintenance`), when the last delivery is sent (`estimates`).

use serde_json::Value;
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;

use crate::api::dto::EmptyBody;
use crate::api::dto::redelivery::{JobView, NewRedelivery, RedeliveryPage, RedeliveryPreview};
use crate::api::query::{IDENTIFIER, TIME, identifier_of};
use crate::api::times::time_of;
use crate::api::{ApiRequest, bad_query, estimates, json};
use crate::domain::delivery::DeliveryState;
use crate::domain::id::{DeliveryId, JobId};
use crate::domain::public_id::PublicIds;
use crate::http_errors::{self, ValidationErrors};
use crate::store::types::{Filter, JOBS_OPEN_MAX, Job, JobCreated, JobScope, NewJob};

/// `Retry-After` of a refused job: a job of a few thousand deliveries ends sooner.
const AGAIN_SECONDS: &str = "10";

pub(super) async fn create(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let body: NewRedelivery = request.body(one_of_two)?;
    let ids = request.store().ids();
    let is_dry = body.dry_run.unwrap_or(false);
    let mut errors = ValidationErrors::default();
    let named = named(ids, body.deliveries.as_deref().unwrap_or_default(), &mut errors);
    let scope = if body.deliveries.is_some() {
        let mut ids: Vec<DeliveryId> = named.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        JobScope::Named(ids)
    } else {
        let filter = filter(ids, body, &mut errors);
        if !errors.is_empty() {
            return Err(http_errors::unprocessable(&errors));
        }
        JobScope::Matching(filter)
    };
    let matches = request.store().matches(request.workspace, &scope, request.now).await;
    let matches = matches.map_err(|error| request.failed(&error))?;
    for (place, _) in named.iter().filter(|(_, id)| matches.unknown.contains(id)) {
        errors.at(format!("/deliveries/{place}"), UNKNOWN);
    }
    if !errors.is_empty() {
        return Err(http_errors::unprocessable(&errors));
    }
    if is_dry {
        let estimate = estimates::of_matches(request, &matches).await;
        let estimate = estimate.map_err(|error| request.failed(&error))?;
        return Ok(json(200, &RedeliveryPreview::of(ids, &matches, estimate)));
    }
    let new = NewJob { scope, matches: Some(matches) };
    let job = request.store().create_job(request.workspace, new, request.now).await;
    let JobCreated::Job(job) = job.map_err(|error| request.failed(&error))? else {
        return Err(too_many());
    };
    request.state.jobs.notify_one();
    let location = format!("/v1/workspaces/{}/redeliveries/{}", request.workspace, ids.job(job.id));
    Ok(shown(request, 202, &job).await?.with("location", location))
}

/// Refuses a filter together with named deliveries.
fn one_of_two(body: &Value, errors: &mut ValidationErrors) {
    if body.get("deliveries").is_none_or(Value::is_null) {
        return;
    }
    for (name, value) in body.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "deliveries" | "dry_run") && !value.is_null() {
            let detail = "selects by filter, and `deliveries` names them: send one of the two";
            errors.at(http_errors::step(name), detail);
        }
    }
}

const UNKNOWN: &str = "must be the `id` of a delivery of this workspace, of a webhook that is not \
                       deleted";

/// The named deliveries, each with its place in the list.
fn named(
    ids: &PublicIds,
    texts: &[String],
    errors: &mut ValidationErrors,
) -> Vec<(usize, DeliveryId)> {
    let mut named: Vec<(usize, DeliveryId)> = Vec::new();
    for (place, text) in texts.iter().enumerate() {
        let pointer = format!("/deliveries/{place}");
        match ids.delivery_of(text) {
            None => errors.at(pointer, UNKNOWN),
            // Earlier versions wrote the same identifier differently.
            Some(id) if named.iter().any(|(_, one)| *one == id) => {
                errors.at(pointer, "appears twice");
            }
            Some(id) => named.push((place, id)),
        }
    }
    named
}

fn filter(ids: &PublicIds, body: NewRedelivery, errors: &mut ValidationErrors) -> Filter {
    let webhook = body.webhook.and_then(|text| {
        let webhook = ids.webhook_of(&text);
        if webhook.is_none() {
            errors.at("/webhook", "must be the `id` of a webhook");
        }
        webhook
    });
    if body.state == Some(DeliveryState::Delivered) && body.since.is_none() {
        let detail = "is missing: `delivered` without a start would send everything again that was \
            ever delivered and is kept";
        errors.at("/since", detail);
    }
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
    Filter {
        state: Some(body.state.unwrap_or(DeliveryState::FailedPermanent)),
        webhook,
        kind: body.kind.map(|kind| kind.0),
        event,
        tenant,
        outcome: body.outcome.map(|outcome| outcome.0),
        status: body.status,
        since,
        until,
    }
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

pub(super) async fn list(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let ids = request.store().ids();
    let (after, limit) = request.query.jobs(ids).map_err(bad_query)?;
    let page = request.store().jobs(request.workspace, after, limit).await;
    let page = page.map_err(|error| request.failed(&error))?;
    let data = page.items.iter().map(|job| JobView::of(ids, job, None)).collect();
    Ok(json(200, &RedeliveryPage { data, next_cursor: page.next.map(|id| ids.job(id)) }))
}

pub(super) async fn read(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let job = request.store().job(request.workspace, id_of(request)?).await;
    let job = job.map_err(|error| request.failed(&error))?.ok_or_else(http_errors::not_found)?;
    shown(request, 200, &job).await
}

pub(super) async fn cancel(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = id_of(request)?;
    let EmptyBody {} = request.body(|_, _| {})?;
    let job = request.store().cancel_job(request.workspace, id, request.now).await;
    let job = job.map_err(|error| request.failed(&error))?.ok_or_else(http_errors::not_found)?;
    shown(request, 200, &job).await
}

/// The job identifier of the path.
fn id_of(request: &ApiRequest<'_>) -> Result<JobId, Reply> {
    request.store().ids().job_of(request.id).ok_or_else(http_errors::not_found)
}

async fn shown(request: &ApiRequest<'_>, status: u16, job: &Job) -> Result<Reply, Reply> {
    let estimate = estimates::of_job(request, job).await;
    let estimate = estimate.map_err(|error| request.failed(&error))?;
    Ok(json(status, &JobView::of(request.store().ids(), job, estimate)))
}
