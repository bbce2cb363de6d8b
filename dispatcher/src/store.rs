//! The store of events, deliveries and webhooks: one trait for each kind of caller.
//!
//! The store is the queue; there is no other. A method that changes something returns once the
//! change is on disk, or with an error once it is certain that nothing changed.
//!
//! # Invariants
//!
//! 1. An event and all its deliveries are one change.
//! 2. A workspace never sees another's objects: each call names the workspace.
//! 3. The time of a method does not depend on the number of waiting deliveries; work on many
//!    deliveries runs in steps.
//!
//! `tests::conformance` checks every store. Not here: arguments and results (`types`).

// core
pub mod encryption;

pub mod sqlite;
pub mod types;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use weir_common::time::{Tick, UnixTime};

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{Arrival, Cursor, Delivery, Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, JobId, MailId, WebhookId};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::{Queue, Webhook, WebhookUpdate};
use crate::store::types::{
    Accepted, Created, Figures, Filter, Job, JobCreated, JobStep, Mail, NewEvent, NewMail,
    NewWebhook, Page, Posted, Rotated, Rotation, WebhookChange,
};

/// Why a call of the store failed. Nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room on the disk, or the disk fails: to be tried again later.
    #[error("the store cannot write: {0}")]
    Unavailable(Arc<str>),
    /// More is waiting to be written than can be, soon: to be tried again later.
    #[error("the store cannot keep up")]
    Busy,
    /// What is stored makes no sense, or the store is not ours.
    #[error("the store is damaged: {0}")]
    Damaged(Arc<str>),
}

/// All of a store: what the program owns; each caller has the part that it needs.
pub trait Store: Management + Intake + DeliveryQueue + MailQueue + Upkeep {}

impl<T: Management + Intake + DeliveryQueue + MailQueue + Upkeep> Store for T {}

/// What customers do.
#[async_trait]
pub trait Management: Send + Sync + 'static {
    /// How numbers are shown to the outside.
    fn ids(&self) -> &PublicIds;

    /// Registers a webhook.
    async fn create_webhook(&self, new: NewWebhook, now: UnixTime) -> Result<Created, StoreError>;

    /// One webhook of a workspace.
    async fn webhook(&self, workspace: &str, id: WebhookId) -> Result<Option<Webhook>, StoreError>;

    /// A workspace's webhooks, oldest first.
    async fn webhooks(
        &self,
        workspace: &str,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError>;

    /// Changes a webhook, and gives it as it is then.
    async fn change_webhook(
        &self,
        workspace: &str,
        id: WebhookId,
        change: WebhookChange,
    ) -> Result<Option<Webhook>, StoreError>;

    /// Gives a webhook another secret. Every one before it signs until its own overlap ends,
    /// however often this is done.
    async fn rotate(
        &self,
        workspace: &str,
        id: WebhookId,
        rotation: Rotation,
    ) -> Result<Rotated, StoreError>;

    /// Deletes a webhook; its waiting deliveries are never sent. Returns whether it existed.
    async fn delete_webhook(&self, workspace: &str, id: WebhookId) -> Result<bool, StoreError>;

    /// Ends a pause: `paused_total` grows by it, health begins anew, the webhook probes, and its
    /// deliveries are to be put into order by [`DeliveryQueue::reorder`]. Changes nothing where it
    /// is not paused.
    async fn reactivate(
        &self,
        workspace: &str,
        id: WebhookId,
        now: UnixTime,
    ) -> Result<Option<Webhook>, StoreError>;

    /// A page of a workspace's deliveries, newest first, those after `after`. It is full unless it
    /// is the last, however few match by webhook, by time, or as `failed_permanent`; by type, or by
    /// another state, it may be short.
    async fn deliveries(
        &self,
        workspace: &str,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Delivery, Cursor>, StoreError>;

    /// One delivery of a workspace and all its attempts, oldest first.
    async fn delivery(
        &self,
        workspace: &str,
        id: DeliveryId,
    ) -> Result<Option<(Delivery, Vec<Attempt>)>, StoreError>;

    /// How many deliveries of a webhook are due before this one; counts no further than `most`.
    async fn ahead_of(
        &self,
        webhook: WebhookId,
        due: UnixTime,
        id: DeliveryId,
        most: usize,
    ) -> Result<usize, StoreError>;

    /// Lets a delivery begin anew: it waits, is due now, and has a schedule and a deadline of its
    /// own again. `None` where there is none, or where its webhook is gone.
    async fn redeliver(
        &self,
        workspace: &str,
        id: DeliveryId,
        now: UnixTime,
    ) -> Result<Option<Delivery>, StoreError>;

    /// Creates a job that redelivers all matching deliveries, up to the newest one; pings only if
    /// the filter has their type. A workspace has at most [`JOBS_OPEN_MAX`] running jobs.
    async fn create_job(
        &self,
        workspace: &str,
        filter: Filter,
        now: UnixTime,
    ) -> Result<JobCreated, StoreError>;

    /// One job of a workspace.
    async fn job(&self, workspace: &str, id: JobId) -> Result<Option<Job>, StoreError>;

    /// Stores an event for one webhook alone. `None` where there is no such webhook.
    async fn ping(
        &self,
        workspace: &str,
        webhook: WebhookId,
        event: NewEvent,
        now: UnixTime,
    ) -> Result<Option<Arrival>, StoreError>;
}

/// What backends do.
#[async_trait]
pub trait Intake: Send + Sync + 'static {
    /// Stores events and a delivery each for every webhook of their workspace that subscribes to
    /// their type: all or nothing.
    async fn accept(&self, events: Vec<NewEvent>, now: UnixTime) -> Result<Accepted, StoreError>;
}

/// What the worker does.
#[async_trait]
pub trait DeliveryQueue: Send + Sync + 'static {
    /// Steady time at a tick: the time of day of a clock that is never set. Retention and overlaps
    /// use it.
    fn steady(&self, at: Tick) -> UnixTime;

    /// A webhook of any workspace. `None` once it is deleted.
    async fn load(&self, id: WebhookId) -> Result<Option<Queue>, StoreError>;

    /// Every webhook that has deliveries waiting, is to be looked at, or is being put in order: the
    /// page after `after`, for which `limit` webhooks were looked at.
    async fn queues(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Queue, WebhookId>, StoreError>;

    /// The first deliveries that wait for a webhook, but for these, which are few.
    async fn fetch(
        &self,
        webhook: WebhookId,
        but: &[DeliveryId],
        limit: usize,
    ) -> Result<Fetched, StoreError>;

    /// This delivery, where it waits.
    async fn fetch_one(&self, id: DeliveryId) -> Result<Option<QueuedDelivery>, StoreError>;

    /// Writes down attempts and what follows from them: all or nothing. A webhook or a delivery
    /// that is gone in the meantime is passed over; that an attempt started counts all the same.
    async fn record(
        &self,
        ended: Vec<AttemptRecord>,
        fared: Vec<WebhookUpdate>,
        mails: Vec<NewMail>,
    ) -> Result<(), StoreError>;

    /// The attempts that started at or after `since`, by endpoint, whatever has become of their
    /// deliveries and webhooks.
    async fn starts_since(
        &self,
        since: UnixTime,
    ) -> Result<Vec<(EndpointId, UnixTime)>, StoreError>;

    /// Whether the process that had the store before us shut down cleanly, with all outcomes
    /// recorded.
    fn clean_shutdown(&self) -> bool;

    /// When earlier processes were found not to have shut down cleanly, oldest first: their
    /// attempts in flight may have no record.
    fn unclean_shutdowns(&self) -> Vec<UnixTime>;

    /// Puts up to `limit` deliveries of a reactivated webhook back into the order of creation,
    /// at the beginning of their schedule. Returns whether that was all.
    async fn reorder(&self, webhook: WebhookId, limit: usize) -> Result<bool, StoreError>;
}

/// What the outbox does.
#[async_trait]
pub trait MailQueue: Send + Sync + 'static {
    /// Claims due mails, oldest first. They count as sent from here on: a crash before
    /// [`MailQueue::posted`] sends none of them twice.
    async fn claim_mails(&self, limit: usize, now: UnixTime) -> Result<Vec<Mail>, StoreError>;

    /// Records the result of a claimed mail.
    async fn posted(&self, id: MailId, posted: Posted) -> Result<(), StoreError>;

    /// When the next mail is due.
    async fn mail_due(&self) -> Result<Option<UnixTime>, StoreError>;
}

/// What runs beside deliveries, and what operators see.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Runs a step of at most `limit` deliveries of a job: the oldest job of the workspace whose
    /// turn it is.
    async fn step_job(&self, limit: usize, now: UnixTime) -> Result<JobStep, StoreError>;

    /// Drops up to `limit` deliveries that ended so long before `now`, or that wait for a webhook
    /// that is gone, with their attempts, events that no delivery needs, and jobs, mails and
    /// endpoints that have been over for a month; where there is more than that, some of each, for
    /// a limit of six or more. Goes by steady time, however the clock was set. Says whether there
    /// may be more.
    async fn sweep(
        &self,
        delivered: Duration,
        failed: Duration,
        now: UnixTime,
        limit: usize,
    ) -> Result<bool, StoreError>;

    /// Whether what is written now is kept. Where the last change was not, one more is tried.
    async fn is_writable(&self) -> bool;

    /// How much there is.
    async fn figures(&self) -> Result<Figures, StoreError>;

    /// Finishes accepted calls, records a clean shutdown, and closes the files. Later calls fail.
    async fn close(&self) -> Result<(), StoreError>;
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) mod conformance;
}
