//! Links into the dashboard, and the numbers of its charts.
//!
//! Not here: the pages (`crate::dashboard`), sessions (`domain::session`).

use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::time::UnixTime;

use crate::api::dto::Time;
use crate::api::dto::dashboard::{ActivityView, Counts, HourView, LinkView, NewLink};
use crate::api::dto::redelivery::MatchCount;
use crate::api::wait_reason::AHEAD_MAX;
use crate::api::{ApiRequest, estimates, json, random};
use crate::domain::activity::{Activity, hour_of};
use crate::domain::session::{Link, RANDOM_BYTES};
use crate::http_errors;

/// What charts show.
const HOURS: u64 = 24;

pub(super) async fn link(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let body: NewLink = request.body(|_, _| {})?;
    let Some(settings) = &request.active.settings.dashboard else {
        let detail = "There is no dashboard here: its operator has not set `dashboard.url`.";
        return Err(problems::refusal(409, "no-dashboard", "There is no dashboard", detail));
    };
    let caller = request.caller.as_ref().ok_or_else(http_errors::not_found)?;
    let grant = caller.grant(request.workspace, body.role).map_err(|refusal| refusal.reply())?;
    let role = grant.role;
    let expires_at = request.now.plus(settings.link_expires);
    let expires_at = grant.until.map_or(expires_at, |until| expires_at.min(UnixTime(until)));
    let nonce = hex::encode(random::<RANDOM_BYTES>()?);
    let link = Link { grant, expires_at: expires_at.0, nonce };
    let [key, _] = request.state.store.link_keys(request.now);
    let url = format!("{}/enter?link={}", settings.url, link.signed(&key));
    Ok(json(201, &LinkView { url, role, expires_at: Time(expires_at) }))
}

pub(super) async fn activity(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    let end = hour_of(request.now) + 1;
    let found = request.state.store.activity(id, end, HOURS).await;
    let mut found = found.map_err(|error| request.failed(&error))?.into_iter().peekable();
    let (mut total, mut hours) = (Activity::default(), Vec::new());
    for hour in end.saturating_sub(HOURS)..end {
        let activity = found.next_if(|(at, _)| *at == hour).map(|(_, activity)| activity);
        let activity = activity.unwrap_or_default();
        total.add(&activity);
        hours.push(HourView::of(hour, &activity));
    }
    let waiting = estimates::waiting(request, id).await.map_err(|error| request.failed(&error))?;
    Ok(json(
        200,
        &ActivityView {
            webhook_id: request.store().ids().webhook(id),
            waiting: MatchCount { count: waiting as u64, at_least: waiting >= AHEAD_MAX },
            last_success_at: webhook.health.last_success().map(Time),
            down_since: webhook.health.down_since().map(Time),
            total: Counts::of(&total),
            hours,
        },
    ))
}
