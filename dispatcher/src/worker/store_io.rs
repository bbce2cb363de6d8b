//! The scheduler's reads and writes of the store, each in a task.
//!
//! Not here: what is read and written, and how many reads run at a time (`scheduler`).

use std::pin::pin;
use std::sync::Arc;

use log::Level;
use serde_json::json;
use weir_common::log::events;

use crate::domain::id::WebhookId;
use crate::scheduler::Input;
use crate::scheduler::reads::{StoreAnswer, StoreRead};
use crate::scheduler::writes::Write;
use crate::store::{DeliveryQueue, StoreError};
use crate::worker::panics::caught;
use crate::worker::{Resources, notifications, operator_events};

/// Deliveries of a reactivated webhook that one step orders: a commit of some milliseconds.
const REORDER_STEP: usize = 1_000;

/// Runs a read, and returns its result.
pub(super) async fn read(read: StoreRead, resources: Arc<Resources>) -> Input {
    let (webhook, failed) = match read {
        StoreRead::Load(webhook) => (webhook, StoreAnswer::NotLoaded),
        StoreRead::Reorder(webhook)
        | StoreRead::Fetch { webhook, .. }
        | StoreRead::FetchOne { webhook, .. } => (webhook, StoreAnswer::Failed),
    };
    let answered = caught(pin!(answer(&*resources.store, webhook, read))).await;
    let answer = answered.and_then(Result::ok).unwrap_or_else(|| {
        resources.metrics.store_failures.inc();
        failed
    });
    Input::Read(webhook, answer)
}

async fn answer(
    store: &dyn DeliveryQueue,
    webhook: WebhookId,
    read: StoreRead,
) -> Result<StoreAnswer, StoreError> {
    Ok(match read {
        StoreRead::Load(_) => StoreAnswer::Loaded(store.load(webhook).await?.map(Box::new)),
        StoreRead::Reorder(_) => match store.reorder(webhook, REORDER_STEP).await? {
            true => StoreAnswer::Reordered,
            false => StoreAnswer::ReorderedSome,
        },
        StoreRead::Fetch { limit, but, round, .. } => {
            StoreAnswer::Fetched(round, store.fetch(webhook, &but, limit).await?)
        }
        StoreRead::FetchOne { delivery, round, .. } => {
            StoreAnswer::FetchedOne(round, store.fetch_one(delivery).await?)
        }
    })
}

/// Writes results to the store, with the mails to owners and the events for operators in the same
/// transaction.
pub(super) async fn write(write: Write, resources: Arc<Resources>) -> Input {
    let Write { records, updates, alerts, exhausted } = write;
    let count = records.len();
    let written = pin!(async {
        let mails = alerts.iter().flat_map(|alert| notifications::mails(&resources, alert));
        let events = operator_events::of(&resources, &alerts, &exhausted);
        resources.store.record(records, updates, mails.collect(), events).await
    });
    let error = match caught(written).await {
        Some(Ok(recorded)) => {
            let dropped = resources.metrics.operator_events.with_label_values(&["dropped"]);
            dropped.inc_by(recorded.dropped);
            return Input::Written(recorded);
        }
        Some(Err(error)) => error.to_string(),
        None => "the task panicked".to_owned(),
    };
    resources.metrics.store_failures.inc();
    let fields = [("error", json!(error)), ("count", json!(count))];
    events::event(Level::Error, "attempt results not written yet", &fields);
    Input::NotWritten
}
