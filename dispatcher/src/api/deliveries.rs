//! Deliveries: list, show with attempts and the reason for waiting, redeliver; and what they
//! deliver.

use std::collections::HashMap;
use std::time::Duration;

use weir_common::http_server::reply::Reply;
use weir_common::time::UnixTime;

use crate::api::dto::attempt::AttemptView;
use crate::api::dto::{
    DeliveryDetail, DeliveryPage, DeliveryView, EmptyBody, Kind, ShownState, StopView, Time,
};
use crate::api::pace::start_limits;
use crate::api::wait_reason::{self, AHEAD_MAX, WaitFacts};
use crate::api::{ApiRequest, bad_query, json};
use crate::domain::delivery::{Delivery, DeliveryState, DeliveryStatus};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::Webhook;
use crate::http_errors;
use crate::live_config::ActiveConfig;
use crate::state::State;
use crate::store::StoreError;

/// The timeout of the worker's reply; without it, the response omits the worker's state.
pub(super) const WORKER_DEADLINE: Duration = Duration::from_secs(1);

pub(super) async fn list(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let ids = request.store().ids();
    let (filter, paging) = request.query.deliveries(ids, &request.types).map_err(bad_query)?;
    let page = request.store().deliveries(request.workspace, &filter, paging).await;
    let page = page.map_err(|error| request.failed(&error))?;
    let data = request.viewer().views(&page.items).await;
    let data = data.map_err(|error| request.failed(&error))?;
    Ok(json(200, &DeliveryPage { data, next_cursor: page.next.map(|next| ids.cursor(next)) }))
}

pub(super) async fn read(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let found = request.store().delivery(request.workspace, id_of(request)?).await;
    let found = found.map_err(|error| request.failed(&error))?;
    let (delivery, attempts) = found.ok_or_else(http_errors::not_found)?;
    let view = shown(request, &delivery).await?;
    let stops = stops(request, &delivery, &view).await?;
    let attempt_log_truncated = attempts.first().is_some_and(|first| first.attempt.number > 1);
    let attempt_log = attempts.into_iter().map(AttemptView::of).collect();
    Ok(json(200, &DeliveryDetail { delivery: view, stops, attempt_log, attempt_log_truncated }))
}

/// When nothing was sent since the first attempt, because the webhook was paused or disabled.
async fn stops(
    request: &ApiRequest<'_>,
    delivery: &Delivery,
    view: &DeliveryView,
) -> Result<Vec<StopView>, Reply> {
    let Some(first) = delivery.first_attempt_at else { return Ok(Vec::new()) };
    let ended = request.store().stops(delivery.webhook, first).await;
    let ended = ended.map_err(|error| request.failed(&error))?;
    let stops =
        ended.into_iter().filter(|stop| delivery.ended_at.is_none_or(|end| stop.from < end));
    let stops = stops.map(|stop| StopView { from: Time(stop.from), until: Some(Time(stop.until)) });
    let now = view.waiting_for.as_ref().and_then(|why| why.since);
    Ok(stops.chain(now.map(|from| StopView { from, until: None })).collect())
}

pub(super) async fn redeliver(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = id_of(request)?;
    let EmptyBody {} = request.body(|_, _| {})?;
    let again = request.store().redeliver(request.workspace, id, request.now).await;
    let again = again.map_err(|error| request.failed(&error))?;
    let delivery = again.ok_or_else(http_errors::not_found)?;
    request.state.mailbox.changed(delivery.webhook);
    Ok(json(202, &shown(request, &delivery).await?))
}

/// An event's envelope, byte for byte.
pub(super) async fn event(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let found = request.store().event(request.workspace, request.id).await;
    let body = found.map_err(|error| request.failed(&error))?.ok_or_else(http_errors::not_found)?;
    Ok(Reply::new(200, "application/json", body))
}

/// The delivery identifier of the path.
fn id_of(request: &ApiRequest<'_>) -> Result<DeliveryId, Reply> {
    request.store().ids().delivery_of(request.id).ok_or_else(http_errors::not_found)
}

/// One delivery, with its place in the queue.
pub(super) async fn shown(
    request: &ApiRequest<'_>,
    delivery: &Delivery,
) -> Result<DeliveryView, Reply> {
    let viewer = request.viewer();
    let one = std::slice::from_ref(delivery);
    let webhooks = viewer.webhooks_of(one).await.map_err(|error| request.failed(&error))?;
    let statuses = viewer.statuses_of(one).await;
    let ahead = if delivery.state == DeliveryState::Waiting && delivery.due <= request.now {
        let (webhook, due) = (delivery.webhook, delivery.due);
        let counted = request.store().ahead_of(webhook, due, delivery.id, AHEAD_MAX).await;
        Some(counted.map_err(|error| request.failed(&error))?)
    } else {
        None
    };
    let webhook = webhooks.get(&delivery.webhook);
    let status = statuses.get(&delivery.id).copied().unwrap_or_default();
    Ok(viewer.view(&viewer.facts(delivery, webhook, status, ahead)))
}

/// What views of a workspace's deliveries need apart from the deliveries.
pub(super) struct Viewer<'a> {
    pub(super) state: &'a State,
    pub(super) active: &'a ActiveConfig,
    pub(super) workspace: &'a str,
    pub(super) now: UnixTime,
}

impl Viewer<'_> {
    /// The deliveries of a page, without their places in queues.
    pub(super) async fn views(
        &self,
        deliveries: &[Delivery],
    ) -> Result<Vec<DeliveryView>, StoreError> {
        let webhooks = self.webhooks_of(deliveries).await?;
        let statuses = self.statuses_of(deliveries).await;
        let shown = deliveries.iter().map(|delivery| {
            let webhook = webhooks.get(&delivery.webhook);
            let status = statuses.get(&delivery.id).copied().unwrap_or_default();
            self.view(&self.facts(delivery, webhook, status, None))
        });
        Ok(shown.collect())
    }

    /// The webhooks of a page, each read once.
    async fn webhooks_of(
        &self,
        deliveries: &[Delivery],
    ) -> Result<HashMap<WebhookId, Webhook>, StoreError> {
        let mut webhooks = HashMap::new();
        let mut deleted = Vec::new();
        for id in deliveries.iter().map(|delivery| delivery.webhook) {
            if webhooks.contains_key(&id) || deleted.contains(&id) {
                continue;
            }
            match self.state.store.webhook(self.workspace, id).await? {
                Some(webhook) => drop(webhooks.insert(id, webhook)),
                None => deleted.push(id),
            }
        }
        Ok(webhooks)
    }

    /// The worker's state of those deliveries that wait.
    async fn statuses_of(&self, deliveries: &[Delivery]) -> HashMap<DeliveryId, DeliveryStatus> {
        let waiting = deliveries.iter().filter(|one| one.state == DeliveryState::Waiting);
        let of: Vec<_> = waiting.map(|one| (one.webhook, one.id)).collect();
        if of.is_empty() {
            return HashMap::new();
        }
        let reply = self.state.mailbox.statuses(of.clone());
        let answered = tokio::time::timeout(WORKER_DEADLINE, reply).await.unwrap_or_default();
        of.into_iter().map(|(_, id)| id).zip(answered).collect()
    }

    fn facts<'a>(
        &self,
        delivery: &'a Delivery,
        webhook: Option<&'a Webhook>,
        status: DeliveryStatus,
        ahead: Option<usize>,
    ) -> WaitFacts<'a> {
        let egress = &self.active.settings.egress;
        let limits = webhook.map(|webhook| start_limits(egress, webhook)).unwrap_or_default();
        let proxied = egress.proxy.is_some();
        WaitFacts { delivery, webhook, status, ahead, limits, proxied, now: self.now }
    }

    fn view(&self, facts: &WaitFacts<'_>) -> DeliveryView {
        let (ids, delivery) = (self.state.store.ids(), facts.delivery);
        let waits = delivery.state == DeliveryState::Waiting;
        let deadline_at = || {
            let give_up_after = self.active.settings.retry.give_up_after;
            let first = delivery.first_attempt_at?;
            Some(facts.webhook?.deadline(first, delivery.paused_before, give_up_after, facts.now))
        };
        DeliveryView {
            id: ids.delivery(delivery.id),
            event_id: delivery.event_id.to_string(),
            webhook_id: ids.webhook(delivery.webhook),
            kind: Kind(delivery.kind),
            state: match delivery.state {
                DeliveryState::Waiting if facts.status.in_flight => ShownState::InFlight,
                DeliveryState::Waiting => ShownState::Waiting,
                DeliveryState::Delivered => ShownState::Delivered,
                DeliveryState::FailedPermanent => ShownState::FailedPermanent,
            },
            attempts: delivery.attempts,
            last_outcome: delivery.last_outcome.as_ref().map(ToString::to_string),
            created_at: Time(delivery.created_at),
            first_attempt_at: delivery.first_attempt_at.map(Time),
            next_attempt_at: wait_reason::next_attempt_at(facts).map(Time),
            deadline_at: if waits { deadline_at().map(Time) } else { None },
            ended_at: delivery.ended_at.map(Time),
            waiting_for: wait_reason::waiting_for(facts),
        }
    }
}
