//! What customers, backends and upkeep ask for, and how the API, ingest and mail do it.

use std::sync::Arc;
use std::time::Duration;

use weir_common::secret::Secret;
use weir_common::time::{UnixTime, micros};

use crate::model::{Arrival, Delivery, DeliveryId, EventSet, Webhook, WebhookId};
use crate::parts::Parts;
use crate::store::{
    Accepted, Created, Filter, NewEvent, NewWebhook, Posted, StoreError, WebhookChange,
};

#[derive(Clone, Debug)]
pub(super) enum Order {
    Accept(Vec<NewEvent>),
    Create { ws: Arc<str>, url: String, events: EventSet, secret: String },
    Move { ws: Arc<str>, hook: WebhookId, url: String },
    Subscribe { ws: Arc<str>, hook: WebhookId, events: EventSet },
    Rotate { ws: Arc<str>, hook: WebhookId, secret: String },
    Delete { ws: Arc<str>, hook: WebhookId },
    Reactivate { ws: Arc<str>, hook: WebhookId },
    Redeliver { ws: Arc<str>, delivery: DeliveryId },
    RedeliverFailed { ws: Arc<str> },
    Ping { ws: Arc<str>, hook: WebhookId, event: NewEvent },
    Sweep,
    Post,
}

pub(super) enum Reply {
    Accepted(Result<Accepted, StoreError>),
    Created(Result<Created, StoreError>),
    Changed(Result<Option<Webhook>, StoreError>),
    Deleted(Result<bool, StoreError>),
    Redelivered(Result<Option<Delivery>, StoreError>),
    Pinged(Result<Option<Arrival>, StoreError>),
    Done(Result<(), StoreError>),
}

/// For how long both secrets of a rotation sign.
pub(super) const OVERLAP: Duration = Duration::from_secs(86_400);

/// Does one of them, and tells the worker as the real callers do.
pub(super) async fn perform(parts: &Parts, order: Order) -> Reply {
    let now = parts.clock.now().unix;
    let store = &parts.store;
    let change = WebhookChange::default();
    match order {
        Order::Accept(events) => {
            let accepted = store.accept(events, now).await;
            if let Ok(Accepted::Stored { arrivals, .. }) = &accepted {
                parts.worker.arrived(arrivals.clone());
            }
            Reply::Accepted(accepted)
        }
        Order::Create { ws, url, events, secret } => {
            let (url, secret) = (url.into(), Secret::new(secret));
            let new = NewWebhook { workspace: ws, url, events, secret, webhooks_max: 20 };
            Reply::Created(store.create_webhook(new, now).await)
        }
        Order::Move { ws, hook, url } => {
            changed(parts, &ws, hook, WebhookChange { url: Some(url.into()), ..change }).await
        }
        Order::Subscribe { ws, hook, events } => {
            changed(parts, &ws, hook, WebhookChange { events: Some(events), ..change }).await
        }
        Order::Rotate { ws, hook, secret } => {
            let secret = Some((Secret::new(secret), now.plus(OVERLAP)));
            changed(parts, &ws, hook, WebhookChange { secret, ..change }).await
        }
        Order::Delete { ws, hook } => {
            let deleted = store.delete_webhook(&ws, hook).await;
            if let Ok(true) = deleted {
                parts.worker.changed(hook);
            }
            Reply::Deleted(deleted)
        }
        Order::Reactivate { ws, hook } => {
            let reactivated = store.reactivate(&ws, hook, now).await;
            parts.worker.changed(hook);
            Reply::Changed(reactivated)
        }
        Order::Redeliver { ws, delivery } => {
            let redelivered = store.redeliver(&ws, delivery, now).await;
            if let Ok(Some(delivery)) = &redelivered {
                parts.worker.changed(delivery.webhook);
            }
            Reply::Redelivered(redelivered)
        }
        Order::RedeliverFailed { ws } => {
            let made = store.create_job(&ws, Filter::default(), now).await;
            parts.jobs.notify_one();
            Reply::Done(made.map(drop))
        }
        Order::Ping { ws, hook, event } => {
            let sent = store.ping(&ws, hook, event, now).await;
            if let Ok(Some(arrival)) = &sent {
                parts.worker.arrived(vec![arrival.clone()]);
            }
            Reply::Pinged(sent)
        }
        Order::Sweep => Reply::Done(sweep(parts, now).await),
        Order::Post => Reply::Done(post(parts, now).await),
    }
}

async fn changed(parts: &Parts, ws: &str, hook: WebhookId, change: WebhookChange) -> Reply {
    let changed = parts.store.change_webhook(ws, hook, change).await;
    parts.worker.changed(hook);
    Reply::Changed(changed)
}

async fn sweep(parts: &Parts, now: UnixTime) -> Result<(), StoreError> {
    let kept = parts.force.load().settings.retention.clone();
    let before = |kept: Duration| UnixTime(now.0.saturating_sub(micros(kept)));
    while parts.store.sweep(before(kept.delivered), before(kept.failed), 20).await? {}
    Ok(())
}

/// Sends all mails that are due.
async fn post(parts: &Parts, now: UnixTime) -> Result<(), StoreError> {
    for mail in parts.store.take_mails(10, now).await? {
        parts.store.posted(mail.id, Posted::Sent).await?;
    }
    Ok(())
}
