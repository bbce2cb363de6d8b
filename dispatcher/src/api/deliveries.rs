//! Deliveries: list, show with all attempts and the reason for waiting, send one again.

use std::collections::HashMap;
use std::time::Duration;

use crate::api::dto::{
    AttemptView, DeliveryDetail, DeliveryPage, DeliveryView, Kind, Nothing, ShownState, Time,
};
use crate::api::wait_reason::{self, AHEAD_MAX, Facts, Pace};
use crate::api::{Asked, bad_query, json};
use crate::domain::delivery::{Delivery, DeliveryState};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::Webhook;
use crate::http_server::{Reply, problems};
use crate::mailbox::Standing;

/// The worker answers between two steps of its own; where it does not, less is shown.
const WORKER_DEADLINE: Duration = Duration::from_secs(1);

pub(super) async fn list(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let ids = asked.store().ids();
    let (filter, after, limit) = asked.query.deliveries(ids).map_err(bad_query)?;
    let page = asked.store().deliveries(asked.workspace, &filter, after, limit).await;
    let page = page.map_err(|error| asked.failed(&error))?;
    let webhooks = webhooks_of(asked, &page.items).await?;
    let standings = standings_of(asked, &page.items).await;
    let shown = page.items.iter().map(|delivery| {
        let webhook = webhooks.get(&delivery.webhook);
        let standing = standings.get(&delivery.id).copied().unwrap_or_default();
        view(asked, &facts(asked, delivery, webhook, standing, None))
    });
    let data = shown.collect();
    Ok(json(200, &DeliveryPage { data, next_cursor: page.next.map(|next| ids.cursor(next)) }))
}

pub(super) async fn read(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let found = asked.store().delivery(asked.workspace, id_of(asked)?).await;
    let found = found.map_err(|error| asked.failed(&error))?;
    let (delivery, attempts) = found.ok_or_else(problems::not_found)?;
    let delivery = shown(asked, &delivery).await?;
    let attempt_log = attempts.iter().map(AttemptView::of).collect();
    Ok(json(200, &DeliveryDetail { delivery, attempt_log }))
}

pub(super) async fn redeliver(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let Nothing {} = asked.body(|_, _| {})?;
    let again = asked.store().redeliver(asked.workspace, id, asked.now).await;
    let again = again.map_err(|error| asked.failed(&error))?;
    let delivery = again.ok_or_else(problems::not_found)?;
    asked.state.mailbox.changed(delivery.webhook);
    Ok(json(202, &shown(asked, &delivery).await?))
}

/// The delivery that the path names.
fn id_of(asked: &Asked<'_>) -> Result<DeliveryId, Reply> {
    asked.store().ids().delivery_of(asked.id).ok_or_else(problems::not_found)
}

/// One delivery, with its place in the queue.
pub(super) async fn shown(asked: &Asked<'_>, delivery: &Delivery) -> Result<DeliveryView, Reply> {
    let one = std::slice::from_ref(delivery);
    let webhooks = webhooks_of(asked, one).await?;
    let standings = standings_of(asked, one).await;
    let ahead = if delivery.state == DeliveryState::Waiting && delivery.due <= asked.now {
        let (webhook, due) = (delivery.webhook, delivery.due);
        let counted = asked.store().ahead_of(webhook, due, delivery.id, AHEAD_MAX).await;
        Some(counted.map_err(|error| asked.failed(&error))?)
    } else {
        None
    };
    let webhook = webhooks.get(&delivery.webhook);
    let standing = standings.get(&delivery.id).copied().unwrap_or_default();
    Ok(view(asked, &facts(asked, delivery, webhook, standing, ahead)))
}

/// The webhooks of a page, each looked up once.
async fn webhooks_of(
    asked: &Asked<'_>,
    deliveries: &[Delivery],
) -> Result<HashMap<WebhookId, Webhook>, Reply> {
    let mut webhooks = HashMap::new();
    let mut gone = Vec::new();
    for id in deliveries.iter().map(|delivery| delivery.webhook) {
        if webhooks.contains_key(&id) || gone.contains(&id) {
            continue;
        }
        let found = asked.store().webhook(asked.workspace, id).await;
        match found.map_err(|error| asked.failed(&error))? {
            Some(webhook) => drop(webhooks.insert(id, webhook)),
            None => gone.push(id),
        }
    }
    Ok(webhooks)
}

/// What the worker knows of those that wait.
async fn standings_of(asked: &Asked<'_>, deliveries: &[Delivery]) -> HashMap<DeliveryId, Standing> {
    let waiting = deliveries.iter().filter(|one| one.state == DeliveryState::Waiting);
    let of: Vec<_> = waiting.map(|one| (one.webhook, one.id)).collect();
    if of.is_empty() {
        return HashMap::new();
    }
    let asking = asked.state.mailbox.standings(of.clone());
    let answered = tokio::time::timeout(WORKER_DEADLINE, asking).await.unwrap_or_default();
    of.into_iter().map(|(_, id)| id).zip(answered).collect()
}

fn facts<'a>(
    asked: &Asked<'_>,
    delivery: &'a Delivery,
    webhook: Option<&'a Webhook>,
    standing: Standing,
    ahead: Option<usize>,
) -> Facts<'a> {
    let egress = &asked.active.settings.egress;
    let pace = Pace { requests: egress.requests, window: egress.window };
    Facts { delivery, webhook, standing, ahead, pace, now: asked.now }
}

fn view(asked: &Asked<'_>, facts: &Facts<'_>) -> DeliveryView {
    let (ids, delivery) = (asked.store().ids(), facts.delivery);
    let waits = delivery.state == DeliveryState::Waiting;
    let deadline_at = || {
        let give_up_after = asked.active.settings.retry.give_up_after;
        let first = delivery.first_attempt_at?;
        Some(facts.webhook?.deadline(first, delivery.paused_before, give_up_after, facts.now))
    };
    DeliveryView {
        id: ids.delivery(delivery.id),
        event_id: delivery.event_id.to_string(),
        webhook_id: ids.webhook(delivery.webhook),
        kind: Kind(delivery.kind),
        state: match delivery.state {
            DeliveryState::Waiting if facts.standing.in_flight => ShownState::InFlight,
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
