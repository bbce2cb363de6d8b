//! Jobs that send many deliveries again: ask for one, see how far it has come.
//!
//! Not here: who does them, step by step, and tells the worker.

use super::query::TIME;
use super::shapes::{JobView, RedeliveryFilter};
use super::times::time_of;
use super::{Asked, json};
use crate::model::DeliveryState;
use crate::serve::Reply;
use crate::serve::refuse::{self, Flaws};
use crate::store::Filter;

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
        return Err(refuse::unprocessable(&flaws));
    }
    let state = Some(body.state.unwrap_or(DeliveryState::FailedPermanent));
    let filter = Filter { state, webhook, kind: body.kind.map(|kind| kind.0), since, until };
    let job = asked.store().create_job(asked.workspace, filter, asked.now).await;
    let job = JobView::of(ids, &job.map_err(|error| asked.failed(&error))?);
    asked.parts.jobs.notify_one();
    let location = format!("/v1/workspaces/{}/redeliveries/{}", asked.workspace, job.id);
    Ok(json(202, &job).with("location", location))
}

pub(super) async fn read(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let ids = asked.store().ids();
    let id = ids.job_of(asked.id).ok_or_else(refuse::not_found)?;
    let job = asked.store().job(asked.workspace, id).await;
    let job = job.map_err(|error| asked.failed(&error))?.ok_or_else(refuse::not_found)?;
    Ok(json(200, &JobView::of(ids, &job)))
}
