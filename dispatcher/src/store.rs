//! The store of events, deliveries and webhooks: one trait for each kind of caller.
//!
//! The store is the only queue. A method that changes something returns once the change is on disk,
//! or returns an error once it is certain that nothing changed.
//!
//! # Invariants
//!
//! 1. An event and all its deliveries are one change.
//! 2. A workspace never sees another's objects: each call names the workspace.
//! 3. The duration of a call does not depend on the number of waiting deliveries; work on many
//!    deliveries runs in steps.
//!
//! `tests::conformance` checks every store. Not here: arguments and results (`types`).

// core
pub mod encryption;

pub mod dashboard;
pub mod mail;
pub mod sqlite;
pub mod types;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use prometheus::Histogram;
use weir_common::time::{Tick, UnixTime};

use crate::config::settings::{OperatorEndpoint, Retention};
use crate::domain::attempt::{AttemptRecord, EarlierStart, RecordedAttempt};
use crate::domain::delivery::{Arrival, Cursor, Delivery, Fetched, QueuedDelivery};
use crate::domain::event::EventType;
use crate::domain::forecast::Upcoming;
use crate::domain::id::{DeliveryId, EndpointId, JobId, MailId, WebhookId};
use crate::domain::operator_event::{OperatorEvent, Recorded};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::filter::WebhookFilter;
use crate::domain::webhook::stop::Stop;
use crate::domain::webhook::{Queue, Webhook, WebhookUpdate};
use crate::store::dashboard::DashboardStore;
use crate::store::mail::{Addressing, Mail, Posted, QueuedMail, UnaddressedMail};
use crate::store::types::{
    Accepted, Changed, Created, Figures, Filter, Job, JobCreated, JobScope, JobStep, Matches,
    NewEvent, NewJob, NewWebhook, OpenJob, Page, Paging, Rotated, Rotation, SecretRemoval,
    WebhookChange,
};

/// Why a call to the store failed; it changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk is full or fails, or the store was closed. Retry later.
    #[error("the store cannot write: {0}")]
    Unavailable(Arc<str>),
    /// The queue of the writer is full. Retry later.
    #[error("the store cannot keep up")]
    Busy,
    /// Stored data is invalid or cannot be decrypted, or the file is not a database.
    #[error("the store is damaged: {0}")]
    Damaged(Arc<str>),
}

/// The whole store, which the program owns; each caller gets only the trait that it needs.
pub trait Store: Management + DashboardStore + Intake + DeliveryQueue + MailQueue + Upkeep {}

impl<T: Management + DashboardStore + Intake + DeliveryQueue + MailQueue + Upkeep> Store for T {}

/// Calls of the API, for customers.
#[async_trait]
pub trait Management: Send + Sync + 'static {
    /// Converts numbers to public identifiers and back.
    fn ids(&self) -> &PublicIds;

    /// Registers a webhook.
    async fn create_webhook(&self, new: NewWebhook, now: UnixTime) -> Result<Created, StoreError>;

    /// One webhook of a workspace.
    async fn webhook(&self, workspace: &str, id: WebhookId) -> Result<Option<Webhook>, StoreError>;

    /// The endpoint with this canonical URL, if a webhook has or had it.
    async fn endpoint_of(&self, url: &str) -> Result<Option<EndpointId>, StoreError>;

    /// A workspace's webhooks, oldest first.
    async fn webhooks(
        &self,
        workspace: &str,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError>;

    /// Changes a webhook. A disabled one that is enabled again resumes like one that is
    /// reactivated, unless it is also paused. At another URL its health begins anew.
    async fn change_webhook(
        &self,
        workspace: &str,
        id: WebhookId,
        change: WebhookChange,
        now: UnixTime,
    ) -> Result<Changed, StoreError>;

    /// Makes another secret of a webhook the current one. Each of the others signs until its own
    /// end, or its removal, regardless of later rotations.
    async fn rotate(
        &self,
        workspace: &str,
        id: WebhookId,
        rotation: Rotation,
        now: UnixTime,
    ) -> Result<Rotated, StoreError>;

    /// Removes the secret with this fingerprint; it signs nothing more. One without an end stays.
    async fn remove_secret(
        &self,
        workspace: &str,
        id: WebhookId,
        fingerprint: &str,
    ) -> Result<SecretRemoval, StoreError>;

    /// Deletes a webhook; its waiting deliveries are never sent. Returns whether it existed.
    async fn delete_webhook(&self, workspace: &str, id: WebhookId) -> Result<bool, StoreError>;

    /// Ends a pause: adds the time without deliveries to `paused_total`, resets the health, makes
    /// the next delivery a probe, and marks the webhook for [`DeliveryQueue::reorder`]. Changes
    /// nothing if it is not paused. A webhook that is also disabled stays so.
    async fn reactivate(
        &self,
        workspace: &str,
        id: WebhookId,
        now: UnixTime,
    ) -> Result<Option<Webhook>, StoreError>;

    /// A page of a workspace's deliveries. Filtered by webhook, time or `failed_permanent`, every
    /// page but the last is full; otherwise any page may be short. A delivery that matches from the
    /// first page to the last is on one of them only, whatever comes, changes or goes meanwhile.
    async fn deliveries(
        &self,
        workspace: &str,
        filter: &Filter,
        paging: Paging,
    ) -> Result<Page<Delivery, Cursor>, StoreError>;

    /// One delivery of a workspace and all its attempts, oldest first; the latest ones with their
    /// transcripts.
    async fn delivery(
        &self,
        workspace: &str,
        id: DeliveryId,
    ) -> Result<Option<(Delivery, Vec<RecordedAttempt>)>, StoreError>;

    /// When a webhook was sent nothing, because it was paused or disabled: what ended after
    /// `since`, oldest first.
    async fn stops(&self, webhook: WebhookId, since: UnixTime) -> Result<Vec<Stop>, StoreError>;

    /// How many deliveries of a webhook are due before this one; counts up to `most`.
    async fn ahead_of(
        &self,
        webhook: WebhookId,
        due: UnixTime,
        id: DeliveryId,
        most: usize,
    ) -> Result<usize, StoreError>;

    /// Queues a delivery again: it is due now, with a new schedule and a new deadline. `None` if it
    /// does not exist or its webhook was deleted.
    async fn redeliver(
        &self,
        workspace: &str,
        id: DeliveryId,
        now: UnixTime,
    ) -> Result<Option<Delivery>, StoreError>;

    /// When the delivery of a webhook is due that is due `nth`, counted from 0; walks as many.
    async fn nth_due(&self, webhook: WebhookId, nth: usize)
    -> Result<Option<UnixTime>, StoreError>;

    /// The deliveries of a webhook that are due first, as a forecast needs them.
    async fn upcoming(&self, webhook: WebhookId, limit: usize)
    -> Result<Vec<Upcoming>, StoreError>;

    /// Counts the deliveries that a job of this scope would redeliver, up to a bound; changes
    /// nothing.
    async fn matches(
        &self,
        workspace: &str,
        scope: &JobScope,
        now: UnixTime,
    ) -> Result<Matches, StoreError>;

    /// Creates a job that redelivers the deliveries in its scope. A workspace has at most
    /// [`JOBS_OPEN_MAX`] unfinished jobs.
    async fn create_job(
        &self,
        workspace: &str,
        new: NewJob,
        now: UnixTime,
    ) -> Result<JobCreated, StoreError>;

    /// Ends a job: it queues nothing more, and what it queued stays queued. Changes nothing if it
    /// has ended. `None` if it does not exist.
    async fn cancel_job(
        &self,
        workspace: &str,
        id: JobId,
        now: UnixTime,
    ) -> Result<Option<Job>, StoreError>;

    /// A workspace's jobs, newest first; an ended one is kept for a month.
    async fn jobs(
        &self,
        workspace: &str,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page<Job, JobId>, StoreError>;

    /// One job of a workspace.
    async fn job(&self, workspace: &str, id: JobId) -> Result<Option<Job>, StoreError>;

    /// The envelope of a workspace's event, byte for byte as it is sent, while a delivery needs it.
    async fn event(&self, workspace: &str, id: &str) -> Result<Option<Bytes>, StoreError>;

    /// Every event type that was ever used, pings included, in the order of first use.
    async fn event_types(&self) -> Result<Vec<EventType>, StoreError>;

    /// Stores an event for one webhook only. `None` if the webhook does not exist.
    async fn ping(
        &self,
        workspace: &str,
        webhook: WebhookId,
        event: NewEvent,
        now: UnixTime,
    ) -> Result<Option<Arrival>, StoreError>;
}

/// Accepts events from backends.
#[async_trait]
pub trait Intake: Send + Sync + 'static {
    /// Stores events, each with a delivery for every webhook of its workspace that subscribes to
    /// its type: all or nothing.
    async fn accept(&self, events: Vec<NewEvent>, now: UnixTime) -> Result<Accepted, StoreError>;
}

/// Calls of the worker.
#[async_trait]
pub trait DeliveryQueue: Send + Sync + 'static {
    /// Steady time at a tick: wall-clock time that ignores changes of the clock. Retention and the
    /// overlap of secrets use it.
    fn steady(&self, at: Tick) -> UnixTime;

    /// A webhook of any workspace. `None` once it is deleted.
    async fn load(&self, id: WebhookId) -> Result<Option<Queue>, StoreError>;

    /// Webhooks after `after` that have waiting deliveries, need a health check, or are being
    /// reordered. Examines `limit` webhooks, so that a page may have fewer items.
    async fn queues(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Queue, WebhookId>, StoreError>;

    /// The waiting deliveries of a webhook that are due first, except those in `but` (few).
    async fn fetch(
        &self,
        webhook: WebhookId,
        but: &[DeliveryId],
        limit: usize,
    ) -> Result<Fetched, StoreError>;

    /// A delivery, if it is waiting.
    async fn fetch_one(&self, id: DeliveryId) -> Result<Option<QueuedDelivery>, StoreError>;

    /// Records attempts and the changes that follow from them: all or nothing. Skips webhooks and
    /// deliveries that were deleted meanwhile, but always records that an attempt started. A
    /// failure decides nothing about a delivery that was redelivered or reordered meanwhile, nor an
    /// update about a webhook that was reactivated or has another URL; mails and events about these
    /// are not stored. Stores other events if there is an operator's webhook, and as far as not too
    /// many wait.
    async fn record(
        &self,
        ended: Vec<AttemptRecord>,
        updates: Vec<WebhookUpdate>,
        mails: Vec<QueuedMail>,
        events: Vec<OperatorEvent>,
    ) -> Result<Recorded, StoreError>;

    /// The starts of attempts at or after `since`; includes attempts whose delivery or webhook was
    /// deleted.
    async fn starts_since(&self, since: UnixTime) -> Result<Vec<EarlierStart>, StoreError>;

    /// A wall-clock time by the clock of the previous process, if it is known to be set since.
    fn on_earlier_clock(&self, unix: UnixTime) -> UnixTime;

    /// Whether the previous process shut down cleanly, with all outcomes recorded.
    fn clean_shutdown(&self) -> bool;

    /// The times of starts that followed an unclean shutdown, oldest first: attempts that were in
    /// flight before them may have no record.
    fn unclean_shutdowns(&self) -> Vec<UnixTime>;

    /// Restores the order of creation of up to `limit` deliveries of a reactivated webhook, and
    /// restarts their schedule. Returns whether all are done.
    async fn reorder(&self, webhook: WebhookId, limit: usize) -> Result<bool, StoreError>;
}

/// Calls of the outbox.
#[async_trait]
pub trait MailQueue: Send + Sync + 'static {
    /// Claims due mails, oldest first: one of each workspace, and none of those in `but`. A claimed
    /// mail counts as sent: after a crash before [`MailQueue::posted`] it is not sent again.
    async fn claim_mails(
        &self,
        limit: usize,
        now: UnixTime,
        but: BTreeSet<Box<str>>,
    ) -> Result<Vec<Mail>, StoreError>;

    /// Records the result of a claimed mail; returns false if it was withdrawn meanwhile.
    async fn posted(&self, id: MailId, posted: Posted) -> Result<bool, StoreError>;

    /// Due mails whose recipients are to be found, oldest first.
    async fn unaddressed_mails(
        &self,
        limit: usize,
        now: UnixTime,
    ) -> Result<Vec<UnaddressedMail>, StoreError>;

    /// Records where such a mail goes: it is replaced by one for each recipient, all or nothing.
    async fn address_mail(&self, id: MailId, to: Addressing) -> Result<(), StoreError>;

    /// When the next mail with a recipient is due.
    async fn mail_due(&self) -> Result<Option<UnixTime>, StoreError>;
}

/// Maintenance, and figures for operators.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Runs one step, of at most `limit` deliveries, of the oldest job of the workspace whose turn
    /// it is.
    async fn step_job(&self, limit: usize, now: UnixTime) -> Result<JobStep, StoreError>;

    /// Unfinished jobs of all workspaces, `limit` at most: by workspace, oldest first.
    async fn open_jobs(&self, limit: usize) -> Result<Vec<OpenJob>, StoreError>;

    /// A page of webhooks, of all workspaces, that match; oldest first. Examines a bounded number
    /// of webhooks, so that a page may have fewer items than `limit`.
    async fn find_webhooks(
        &self,
        filter: &WebhookFilter,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError>;

    /// Reactivates the paused webhooks of such a page, as [`Management::reactivate`] does, and
    /// returns them. Those that are disabled too stay as they are.
    async fn reactivate_found(
        &self,
        filter: &WebhookFilter,
        after: Option<WebhookId>,
        limit: usize,
        now: UnixTime,
    ) -> Result<Page<WebhookId, WebhookId>, StoreError>;

    /// Creates, changes or deletes the operator's webhook, so that it sends to `endpoint`; returns
    /// it if it changed. What waits is sent to the new URL, or dropped with the webhook.
    async fn set_operator(
        &self,
        endpoint: Option<OperatorEndpoint>,
        now: UnixTime,
    ) -> Result<Option<WebhookId>, StoreError>;

    /// Drops up to `limit` rows: deliveries that ended more than `delivered` or `failed` before
    /// `now`, transcripts older than `answers`, transcripts and waiting deliveries of deleted
    /// webhooks, events that no delivery needs, attempts that are stored for their start only, and
    /// jobs, mails and endpoints that ended a month ago. Attempts, transcripts and events that go
    /// with a delivery do not count. If there are more, drops some of each kind, for a limit of at
    /// least eight. Uses steady time. Returns whether there may be more.
    async fn sweep(
        &self,
        retention: &Retention,
        now: UnixTime,
        limit: usize,
    ) -> Result<bool, StoreError>;

    /// Whether writes succeed. If the last one failed, tries another.
    async fn is_writable(&self) -> bool;

    /// The size of the store, in rows and bytes.
    async fn figures(&self) -> Result<Figures, StoreError>;

    /// From now on, adds the time of each commit to `times`.
    fn time_commits(&self, times: Histogram);

    /// Finishes accepted calls, records a clean shutdown, and closes the files. Later calls fail.
    async fn close(&self) -> Result<(), StoreError>;
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) mod conformance;
}
