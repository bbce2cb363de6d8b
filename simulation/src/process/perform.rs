//! Performs orders as the API, ingest, maintenance and the mail task do.

use std::sync::Arc;

use tokio::sync::watch;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;
use weir_dispatcher::domain::event::EventSet;
use weir_dispatcher::domain::id::WebhookId;
use weir_dispatcher::state::State;
use weir_dispatcher::store::StoreError;
use weir_dispatcher::store::types::{
    Accepted, Changed, Filter, Job, JobCreated, NewWebhook, Rotation, WebhookChange,
};

use crate::mail_server::{Letters, post};
use crate::orders::{OVERLAP, Order, Reply, Word, options_of};

impl Word {
    pub(crate) fn notify(self, state: &State) {
        match self {
            Self::Nothing => {}
            Self::Arrived(arrivals) => state.mailbox.arrived(arrivals),
            Self::Changed(hook) => state.mailbox.changed(hook),
        }
    }
}

/// What orders are performed with.
#[derive(Clone)]
pub(crate) struct Counter {
    pub(crate) state: Arc<State>,
    pub(crate) letters: Letters,
    pub(crate) stopping: watch::Receiver<bool>,
}

/// Performs an order as the real callers do, and returns what they notify the worker of, some time
/// later.
pub(crate) async fn perform(counter: &Counter, order: Order, now: UnixTime) -> (Reply, Word) {
    let Counter { state, letters, stopping } = counter;
    let store = &state.store;
    let change = WebhookChange::default();
    match order {
        Order::Accept(events) => {
            let accepted = store.accept(events, now).await;
            let word = match &accepted {
                Ok(Accepted::Stored { arrivals, .. }) => Word::Arrived(arrivals.clone()),
                _ => Word::Nothing,
            };
            (Reply::Accepted(accepted), word)
        }
        Order::Create { ws, url, events, secret } => {
            let new = registration(ws, url, events, secret);
            (Reply::Created(store.create_webhook(new, now).await), Word::Nothing)
        }
        Order::Move { ws, hook, url } => {
            let change = WebhookChange { url: Some(url.into()), ..change };
            changed(state, &ws, hook, (change, now)).await
        }
        Order::Subscribe { ws, hook, events } => {
            let change = WebhookChange { events: Some(events), ..change };
            changed(state, &ws, hook, (change, now)).await
        }
        Order::Disable { ws, hook, disabled } => {
            let change = WebhookChange { disabled: Some(disabled), ..change };
            changed(state, &ws, hook, (change, now)).await
        }
        Order::Rotate { ws, hook, secret } => {
            let rotation = Rotation { secret: Secret::new(secret), overlap: Some(OVERLAP) };
            let rotated = store.rotate(&ws, hook, rotation, now).await;
            (Reply::Rotated(rotated), Word::Changed(hook))
        }
        Order::Delete { ws, hook } => {
            let deleted = store.delete_webhook(&ws, hook).await;
            let word = if let Ok(true) = deleted { Word::Changed(hook) } else { Word::Nothing };
            (Reply::Deleted(deleted), word)
        }
        Order::Reactivate { ws, hook } => {
            let found = store.reactivate(&ws, hook, now).await;
            (Reply::Changed(found.map(|found| found.map(Box::new))), Word::Changed(hook))
        }
        Order::Redeliver { ws, delivery } => {
            let redelivered = store.redeliver(&ws, delivery, now).await;
            let word = match &redelivered {
                Ok(Some(delivery)) => Word::Changed(delivery.webhook),
                _ => Word::Nothing,
            };
            (Reply::Redelivered(redelivered), word)
        }
        Order::RedeliverFailed { ws } => (Reply::Job(job(state, &ws, now).await), Word::Nothing),
        Order::Regret { ws } => (Reply::Cancelled(regret(state, &ws, now).await), Word::Nothing),
        Order::Ping { ws, hook, event } => {
            let sent = store.ping(&ws, hook, event, now).await;
            let word = match &sent {
                Ok(Some(arrival)) => Word::Arrived(vec![arrival.clone()]),
                _ => Word::Nothing,
            };
            (Reply::Pinged(sent), word)
        }
        Order::Sweep => (Reply::Done(sweep(state, now).await), Word::Nothing),
        Order::Post(luck) => {
            (Reply::Done(post(state, luck, letters, stopping).await), Word::Nothing)
        }
    }
}

/// Creates a job that redelivers what has failed.
async fn job(state: &State, ws: &str, now: UnixTime) -> Result<JobCreated, StoreError> {
    let made = state.store.create_job(ws, Filter::default().into(), now).await;
    state.jobs.notify_one();
    made
}

/// Creates a job, and cancels it before maintenance hears of it, if it does not look by itself.
async fn regret(state: &State, ws: &str, now: UnixTime) -> Result<Option<Job>, StoreError> {
    let made = state.store.create_job(ws, Filter::default().into(), now).await?;
    let cancelled = match made {
        JobCreated::Job(job) => state.store.cancel_job(ws, job.id, now).await,
        JobCreated::TooMany => Ok(None),
    };
    state.jobs.notify_one();
    cancelled
}

fn registration(workspace: Arc<str>, url: String, events: EventSet, secret: String) -> NewWebhook {
    NewWebhook {
        workspace,
        url: url.into(),
        events,
        options: options_of(&secret),
        secret: Secret::new(secret),
        signing_key: None,
        webhooks_max: 20,
    }
}

async fn changed(
    state: &State,
    ws: &str,
    hook: WebhookId,
    (change, now): (WebhookChange, UnixTime),
) -> (Reply, Word) {
    let changed = state.store.change_webhook(ws, hook, change, now).await;
    let changed = changed.map(|changed| match changed {
        Changed::Webhook(webhook) => Some(webhook),
        Changed::Refused(_) | Changed::Overtaken | Changed::Absent => None,
    });
    (Reply::Changed(changed), Word::Changed(hook))
}

async fn sweep(state: &State, now: UnixTime) -> Result<(), StoreError> {
    let retention = state.active.load().settings.retention;
    while state.store.sweep(&retention, now, 20).await? {}
    Ok(())
}
