//! The calls of customers, backends and maintenance to the dispatcher, and their replies.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use weir_common::time::Moment;
use weir_dispatcher::domain::delivery::{Arrival, Delivery};
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::webhook::Webhook;
use weir_dispatcher::domain::webhook::options::{OptionsChange, WebhookOptions};
use weir_dispatcher::store::StoreError;
use weir_dispatcher::store::types::{Accepted, Created, Job, JobCreated, NewEvent, Rotated};

/// The event types of scenarios.
pub(crate) const TYPES: [EventType; 4] = [
    EventType::new("user.created"),
    EventType::new("user.updated"),
    EventType::new("user.deleted"),
    EventType::new("session.started"),
];

/// Where events for operators are sent, and the key that signs them.
pub(crate) const OPERATOR_URL: &str = "https://ops.example/in/linnet";
pub(crate) const OPERATOR_SECRET: &str = "whsec_00000000000000000000000000000000";

/// How the values of custom headers begin.
pub(crate) const CUSTOM_VALUE: &str = "gannet-";

/// What an owner sets of a webhook that is created with this secret.
pub(crate) fn options_of(secret: &str) -> WebhookOptions {
    let (_, digits) = secret.split_at(secret.len() - 8);
    let dice = u32::from_str_radix(digits, 16).unwrap();
    let value = HeaderValue::try_from(format!("{CUSTOM_VALUE}{digits}")).unwrap();
    let change = OptionsChange {
        headers: vec![(HeaderName::from_static("x-key"), Some(value))],
        all_answers: Some(dice % 3 == 0),
        requests_per_minute: (dice / 3 % 4 == 0).then_some(3 + dice / 12 % 20),
        ..OptionsChange::default()
    };
    WebhookOptions::default().changed(change).unwrap()
}

/// Two workspaces whose webhooks share URLs.
pub(crate) const WORKSPACES: [&str; 2] = ["ws_0", "ws_1"];

#[derive(Clone, Debug)]
pub(crate) enum Order {
    Accept(Vec<NewEvent>),
    Create {
        ws: Arc<str>,
        url: String,
        events: EventSet,
        secret: String,
    },
    Move {
        ws: Arc<str>,
        hook: WebhookId,
        url: String,
    },
    Subscribe {
        ws: Arc<str>,
        hook: WebhookId,
        events: EventSet,
    },
    Rotate {
        ws: Arc<str>,
        hook: WebhookId,
        secret: String,
    },
    Delete {
        ws: Arc<str>,
        hook: WebhookId,
    },
    Reactivate {
        ws: Arc<str>,
        hook: WebhookId,
    },
    /// Disables a webhook, or enables it.
    Disable {
        ws: Arc<str>,
        hook: WebhookId,
        disabled: bool,
    },
    Redeliver {
        ws: Arc<str>,
        delivery: DeliveryId,
    },
    RedeliverFailed {
        ws: Arc<str>,
    },
    /// Creates the same job, and cancels it at once.
    Regret {
        ws: Arc<str>,
    },
    Ping {
        ws: Arc<str>,
        hook: WebhookId,
        event: NewEvent,
    },
    Sweep,
    /// Sends due mails, to a server that fails by this seed, or accepts everything.
    Post(Option<u64>),
}

pub(crate) enum Reply {
    Accepted(Result<Accepted, StoreError>),
    Created(Result<Created, StoreError>),
    Changed(Result<Option<Box<Webhook>>, StoreError>),
    Rotated(Result<Rotated, StoreError>),
    Job(Result<JobCreated, StoreError>),
    /// The job as its cancellation left it; `None` if there was none.
    Cancelled(Result<Option<Job>, StoreError>),
    Deleted(Result<bool, StoreError>),
    Redelivered(Result<Option<Delivery>, StoreError>),
    Pinged(Result<Option<Arrival>, StoreError>),
    Done(Result<(), StoreError>),
}

/// What the caller then notifies the worker of.
pub(crate) enum Word {
    Nothing,
    Arrived(Vec<Arrival>),
    Changed(WebhookId),
}

/// How long a secret still signs after it was replaced.
pub(crate) const OVERLAP: Duration = Duration::from_secs(86_400);

/// The store's reply to an order, and when the order was sent.
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) asked: Moment,
    pub(crate) reply: Reply,
}

impl Order {
    /// Whether it changes this webhook.
    pub(crate) fn names(&self, hook: WebhookId) -> bool {
        match self {
            Self::Move { hook: id, .. }
            | Self::Subscribe { hook: id, .. }
            | Self::Rotate { hook: id, .. }
            | Self::Delete { hook: id, .. }
            | Self::Reactivate { hook: id, .. }
            | Self::Disable { hook: id, .. } => *id == hook,
            _ => false,
        }
    }

    /// A short text for notes.
    pub(crate) fn short(&self) -> String {
        match self {
            Self::Accept(events) => format!("accept {} events", events.len()),
            Self::Create { url, .. } => format!("create {url}"),
            Self::Rotate { hook, .. } => format!("rotate {hook:?}"),
            order => format!("{order:?}"),
        }
    }
}
