//! The arguments and results of the store.
//!
//! Not here: webhooks, deliveries and attempts themselves (`domain`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::delivery::{Arrival, DeliveryState};
use crate::domain::event::{EventSet, EventType};
use crate::domain::id::{JobId, MailId, WebhookId};
use crate::domain::webhook::Webhook;

/// A webhook to create.
#[derive(Clone, Debug)]
pub struct NewWebhook {
    /// Whose it is.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Arc<str>,
    /// The event types that it subscribes to.
    pub events: EventSet,
    /// What its deliveries are signed with.
    pub secret: Secret<String>,
    /// Webhooks that a workspace may have, this one among them.
    pub webhooks_max: u64,
}

/// The result of creating a webhook.
#[derive(Clone, Debug)]
pub enum Created {
    /// It is on disk.
    Webhook(Box<Webhook>),
    /// The workspace has as many as it may have.
    TooMany,
}

/// What changes of a webhook; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct WebhookChange {
    /// Another canonical URL.
    pub url: Option<Arc<str>>,
    /// Other types.
    pub events: Option<EventSet>,
}

/// Earlier secrets of a webhook that sign beside the present one, at most: a signature of each is
/// in every delivery's header, which receivers bound at some kilobytes.
pub const SECRETS_BEFORE_MAX: usize = 8;

/// Another secret for a webhook.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// What its deliveries are signed with from now on.
    pub secret: Secret<String>,
    /// For how long they are signed with the one before it as well.
    pub overlap: Duration,
}

/// The result of a rotation.
#[derive(Clone, Debug)]
pub enum Rotated {
    /// It is on disk.
    Webhook(Box<Webhook>),
    /// [`SECRETS_BEFORE_MAX`] earlier ones sign: none of them may be stopped for another.
    TooMany {
        /// In so long, the first of them signs no more.
        free_in: Duration,
    },
    /// There is no such webhook.
    Absent,
}

/// An event that was found good.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The public identifier, assigned or chosen by the sender: unique in its workspace.
    pub id: Arc<str>,
    /// Whose it is.
    pub workspace: Arc<str>,
    /// What happened.
    pub kind: EventType,
    /// The envelope.
    pub body: Bytes,
    /// Distinguishes two events with the same identifier in a workspace: equal for the same type,
    /// tenant and data.
    pub digest: [u8; 32],
}

/// The result of accepting a batch of events.
#[derive(Clone, Debug)]
pub enum Accepted {
    /// All are on disk, with all their deliveries.
    Stored {
        /// For each event whether it is new; otherwise it was there already, just so.
        new: Vec<bool>,
        /// The deliveries that now wait.
        arrivals: Vec<Arrival>,
    },
    /// Nothing was stored: these of the batch, by their place, are other events than the ones
    /// that were stored, or stand in the batch, for their workspace under the same identifiers.
    Conflict(Vec<usize>),
}

/// A mail that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMail {
    /// One address.
    pub to: String,
    /// The subject.
    pub subject: String,
    /// Plain text.
    pub text: String,
    /// Unique to this mail: for a month after it is over a second one of this key is not stored.
    pub key: String,
}

/// A mail that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Its number.
    pub id: MailId,
    /// What to send.
    pub mail: NewMail,
    /// How often that has failed.
    pub failures: u32,
}

/// The result of sending a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The server took it.
    Sent,
    /// A permanent error, or too many attempts.
    Abandoned,
    /// To be tried again then; nothing was sent.
    Again(UnixTime),
}

/// Which deliveries are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<DeliveryState>,
    /// For this webhook.
    pub webhook: Option<WebhookId>,
    /// Of this type.
    pub kind: Option<EventType>,
    /// Accepted at or after.
    pub since: Option<UnixTime>,
    /// Accepted before.
    pub until: Option<UnixTime>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T, Id> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next begins: after this one. A page may be short, even empty, and not the last.
    pub next: Option<Id>,
}

/// Jobs of a workspace that are not at their end, at most: one for each of a few filters. They are
/// worked off one after another, so that more of them would get nothing done sooner.
pub const JOBS_OPEN_MAX: u64 = 5;

/// The result of creating a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCreated {
    /// It is on disk.
    Job(Job),
    /// [`JOBS_OPEN_MAX`] of the workspace are not at their end.
    TooMany,
}

/// A job that redelivers by filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it redelivers.
    pub filter: Filter,
    /// When it was created.
    pub created_at: UnixTime,
    /// When it had checked every delivery.
    pub ended_at: Option<UnixTime>,
    /// How many deliveries wait again because of it.
    pub redelivered: u64,
}

/// A job's step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStep {
    /// The webhooks that have deliveries waiting because of it.
    pub webhooks: Vec<WebhookId>,
    /// Whether any job has more to do.
    pub more: bool,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Deliveries that wait.
    pub waiting: u64,
    /// Webhooks.
    pub webhooks: u64,
    /// Bytes on disk, the WAL included.
    pub bytes: u64,
    /// Changes made so far, each a commit.
    pub commits: u64,
}
