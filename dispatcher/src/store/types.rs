//! The arguments and results of the store.
//!
//! Not here: webhooks, deliveries and attempts themselves (`domain`).

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::delivery::{Arrival, Cursor, DeliveryState};
use crate::domain::event::{EventSet, EventType};
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::domain::outcome::OutcomeClass;
use crate::domain::webhook::Webhook;
use crate::domain::webhook::options::{OptionsChange, OptionsError, WebhookOptions};
use crate::domain::webhook::signing_key::SigningKey;

/// A webhook to create.
#[derive(Clone, Debug)]
pub struct NewWebhook {
    /// The workspace that owns it.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Arc<str>,
    /// The event types that it subscribes to.
    pub events: EventSet,
    /// What its owner sets apart from them.
    pub options: WebhookOptions,
    /// The key that signs its deliveries.
    pub secret: Secret<String>,
    /// The key that signs them with Ed25519 as well; `None` without.
    pub signing_key: Option<SigningKey>,
    /// Webhooks that the workspace may have, including this one.
    pub webhooks_max: u64,
}

/// The result of creating a webhook.
#[derive(Clone, Debug)]
pub enum Created {
    /// It is on disk.
    Webhook(Box<Webhook>),
    /// The workspace has [`NewWebhook::webhooks_max`] already.
    TooMany,
}

/// A change of a webhook; `None` leaves a field unchanged.
#[derive(Clone, Debug, Default)]
pub struct WebhookChange {
    /// The new canonical URL.
    pub url: Option<Arc<str>>,
    /// The new event types.
    pub events: Option<EventSet>,
    /// What changes of its options.
    pub options: OptionsChange,
    /// Whether its owner has it disabled.
    pub disabled: Option<bool>,
    /// What changes of its Ed25519 key.
    pub signing_key: KeyChange,
    /// The webhook as it was when the change was made up: once its settings are others, nothing
    /// changes.
    pub seen: Option<Box<Webhook>>,
}

/// A change of a webhook's Ed25519 key.
#[derive(Clone, Debug, Default)]
pub enum KeyChange {
    /// None.
    #[default]
    Keep,
    /// It has a key from now on: this one, unless it has one already.
    Have(SigningKey),
    /// It has none from now on.
    Remove,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// It is on disk.
    Webhook(Box<Webhook>),
    /// Nothing changed: its options would exceed a limit.
    Refused(OptionsError),
    /// Nothing changed: its settings are no longer those of [`WebhookChange::seen`].
    Overtaken,
    /// There is no such webhook.
    Absent,
}

/// Secrets of a webhook that may sign in addition to the current one: each adds a signature to a
/// header of every delivery, and receivers limit headers to a few kilobytes.
pub const SECRETS_BEFORE_MAX: usize = 8;

/// A new secret for a webhook.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// The key that signs its deliveries from now on.
    pub secret: Secret<String>,
    /// For how long the previous key signs as well; `None`: until it is removed.
    pub overlap: Option<Duration>,
}

/// The result of a rotation.
#[derive(Clone, Debug)]
pub enum Rotated {
    /// It is on disk.
    Webhook(Box<Webhook>),
    /// [`SECRETS_BEFORE_MAX`] others still sign, and a rotation ends none of them early.
    TooMany {
        /// The time until the first of them ends; `None` if each signs until it is removed.
        free_in: Option<Duration>,
    },
    /// The secret signs already.
    Known,
    /// There is no such webhook.
    Absent,
}

/// The result of removing a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRemoval {
    /// It signs nothing more.
    Removed,
    /// It stays: no other signs without an end.
    Last,
    /// There is no such secret, or no such webhook.
    Absent,
}

/// A valid event to store.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The public identifier, assigned by us or chosen by the sender: unique in its workspace.
    pub id: Arc<str>,
    /// The workspace that owns it.
    pub workspace: Arc<str>,
    /// The type.
    pub kind: EventType,
    /// The tenant that it concerns; `None` for a ping.
    pub tenant: Option<Arc<str>>,
    /// The envelope, as it is sent.
    pub body: Bytes,
    /// A hash that differs if two events with the same identifier are different: equal for the same
    /// type, tenant and data.
    pub digest: [u8; 32],
}

/// The result of accepting a batch of events.
#[derive(Clone, Debug)]
pub enum Accepted {
    /// All are on disk, with all their deliveries.
    Stored {
        /// For each event, whether it is new; otherwise the same event was stored before.
        new: Vec<bool>,
        /// The new deliveries, which now wait.
        arrivals: Vec<Arrival>,
    },
    /// Nothing was stored: the events at these indexes differ from another event of their workspace
    /// with the same identifier, stored or earlier in the batch.
    Conflict(Vec<usize>),
}

/// Selects deliveries that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state; in a job, `None` means `failed_permanent`.
    pub state: Option<DeliveryState>,
    pub webhook: Option<WebhookId>,
    /// Of this type.
    pub kind: Option<EventType>,
    /// Of the event with this identifier.
    pub event: Option<Arc<str>>,
    /// Of events of this tenant.
    pub tenant: Option<Arc<str>>,
    /// Whose last attempt had an outcome of this class.
    pub outcome: Option<OutcomeClass>,
    /// Whose last attempt was answered with this status.
    pub status: Option<u16>,
    /// Accepted at or after.
    pub since: Option<UnixTime>,
    /// Accepted before.
    pub until: Option<UnixTime>,
}

/// The order of a list of deliveries, by the time when they were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The newest first.
    #[default]
    Newest,
    /// The oldest first.
    Oldest,
}

/// Which page of a list of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    /// The order of the list.
    pub order: Order,
    /// The end of the previous page.
    pub after: Option<Cursor>,
    /// Deliveries in a page, at most.
    pub limit: usize,
}

impl Paging {
    /// The first page, newest first.
    #[must_use]
    pub fn first(limit: usize) -> Self {
        Self { order: Order::Newest, after: None, limit }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T, Id> {
    pub items: Vec<T>,
    /// The next page starts after this one; `None` on the last. Other pages may be short or empty.
    pub next: Option<Id>,
}

/// Unfinished jobs of a workspace, at most: enough for a few filters. They run one after another,
/// so that more of them would finish nothing sooner.
pub const JOBS_OPEN_MAX: u64 = 5;

/// The result of creating a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobCreated {
    /// It is on disk.
    Job(Job),
    /// The workspace has [`JOBS_OPEN_MAX`] unfinished jobs.
    TooMany,
}

/// The deliveries that a job redelivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobScope {
    /// All that match and exist when the job is created; pings only if the filter has their type.
    Matching(Filter),
    /// These, in any state: ascending, without duplicates, [`NAMED_MAX`] at most.
    Named(Vec<DeliveryId>),
}

/// Deliveries that a job may name: as many as a page shows.
pub const NAMED_MAX: usize = 100;

/// A job to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// What it redelivers.
    pub scope: JobScope,
    /// How many deliveries that is, if they were counted.
    pub matches: Option<Matches>,
}

impl From<Filter> for NewJob {
    fn from(filter: Filter) -> Self {
        Self { scope: JobScope::Matching(filter), matches: None }
    }
}

/// The deliveries in a job's scope, counted up to a bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// By webhook, those with any; oldest first.
    pub webhooks: Vec<WebhookMatches>,
    /// Whether all were counted.
    pub complete: bool,
    /// Named deliveries that the workspace does not have.
    pub unknown: Vec<DeliveryId>,
}

/// The deliveries of one webhook in a job's scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookMatches {
    pub webhook: WebhookId,
    pub count: u64,
    /// Those of them that are due already: they wait with or without a job.
    pub due: u64,
}

/// A job that redelivers many deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    /// What it redelivers.
    pub scope: JobScope,
    pub created_at: UnixTime,
    /// When it had checked every delivery, or was cancelled; `None` while it runs.
    pub ended_at: Option<UnixTime>,
    pub cancelled: bool,
    /// The number of deliveries that it checked.
    pub examined: u64,
    /// The number of deliveries that it queued again.
    pub redelivered: u64,
    /// Whether [`JobWebhook::matching`] counts all matches; `None` if none were counted.
    pub counted: Option<bool>,
    /// What became of its deliveries, by webhook.
    pub webhooks: Vec<JobWebhook>,
}

impl Job {
    /// A number of all its webhooks.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&JobWebhook) -> u64) -> u64 {
        self.webhooks.iter().map(of).sum()
    }
}

/// What became of a job's deliveries of one webhook. A delivery that was redelivered again since
/// counts in `redelivered` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobWebhook {
    pub webhook: WebhookId,
    /// How many were in the job's scope when it was created, counted up to a bound.
    pub matching: u64,
    /// How many it queued again.
    pub redelivered: u64,
    /// Those that wait.
    pub waiting: u64,
    /// Those that were delivered since.
    pub delivered: u64,
    /// Those that failed permanently since.
    pub failed_permanent: u64,
}

/// An unfinished job, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenJob {
    /// The workspace that created it.
    pub workspace: Arc<str>,
    pub job: Job,
}

/// The result of a step of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStep {
    /// The webhooks whose deliveries it queued again.
    pub webhooks: Vec<WebhookId>,
    /// Whether any job is unfinished.
    pub more: bool,
}

/// The size of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Waiting deliveries.
    pub waiting: u64,
    /// Webhooks that are not deleted.
    pub webhooks: u64,
    /// Bytes on disk, the WAL included.
    pub bytes: u64,
    pub wal_bytes: u64,
    /// Commits since the start.
    pub commits: u64,
}
