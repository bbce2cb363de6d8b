//! What a store of events, deliveries and webhooks does: one method for each thing we need.
//!
//! The store is the queue; there is no other. Every method that changes something returns once
//! the change is on disk, or with an error once it is certain that nothing changed.
//!
//! # Invariants
//!
//! 1. An event and all its deliveries are one change (DESIGN invariant 8).
//! 2. A workspace never sees another's objects: each look names the workspace.
//! 3. No method takes longer the more deliveries wait; what must touch many does so in steps.
//!
//! `conformance` holds every store to this.

pub mod sqlite;

#[cfg(test)]
pub mod conformance;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::health::Health;
use crate::model::{
    Arrival, Attempt, Delivery, DeliveryId, DeliveryState, EventSet, EventType, JobId, LaneId,
    MailId, Probe, Ready, Webhook, WebhookId,
};
use crate::outcome::Outcome;
use crate::public_id::PublicIds;

/// Why a store could not do as it was asked. Nothing has changed.
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

/// Whoever registers a webhook.
#[derive(Clone, Debug)]
pub struct NewWebhook {
    /// Whose it is.
    pub workspace: Arc<str>,
    /// The canonical URL.
    pub url: Arc<str>,
    /// What it is told of.
    pub events: EventSet,
    /// What its deliveries are signed with.
    pub secret: Secret<String>,
    /// Webhooks that a workspace may have, this one among them.
    pub webhooks_max: u64,
}

/// What came of registering a webhook.
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
    /// A new secret, and until when the present one signs as well. The one before it is gone.
    pub secret: Option<(Secret<String>, UnixTime)>,
}

/// An event that was found good.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// Its public identifier, made by us or by whoever sent it: unique in its workspace.
    pub id: Arc<str>,
    /// Whose it is.
    pub workspace: Arc<str>,
    /// What happened.
    pub kind: EventType,
    /// The envelope.
    pub body: Bytes,
    /// Tells an event from another of the same identifier in the same workspace: equal for the
    /// same type, tenant and data, whenever it is sent.
    pub digest: [u8; 32],
}

/// What came of accepting a batch of events.
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

/// A webhook that has deliveries waiting, and when the first of them is due.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Which.
    pub webhook: Webhook,
    /// When the first that waits is due; `None` where only its health asks for a look.
    pub due: Option<UnixTime>,
}

/// Deliveries that wait, in the order in which they are due.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// The first of them.
    pub ready: Vec<Ready>,
    /// Whether there are more behind them.
    pub more: bool,
}

/// What becomes of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// A 2xx.
    Delivered,
    /// It waits until then.
    Again {
        /// Until when.
        due: UnixTime,
        /// [`Ready::step`] from now on.
        step: u32,
    },
    /// Given up.
    FailedPermanent,
}

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Of which delivery.
    pub delivery: DeliveryId,
    /// For whom.
    pub webhook: WebhookId,
    /// On which lane it started.
    pub lane: LaneId,
    /// The attempt.
    pub attempt: Attempt,
    /// What becomes of the delivery.
    pub after: After,
    /// [`Ready::first_attempt_at`] from now on.
    pub first_attempt_at: Option<UnixTime>,
    /// [`Ready::since`] from now on.
    pub since: Option<UnixTime>,
    /// [`Ready::paused_before`] from now on.
    pub paused_before: Duration,
}

/// What is known of a webhook after attempts, or after a while.
#[derive(Clone, Debug)]
pub struct Fared {
    /// Which.
    pub webhook: WebhookId,
    /// [`Webhook::paused_total`] as it was known: after a reactivation in the meantime all of
    /// this is out of date, and is passed over.
    pub paused_total: Duration,
    /// What its attempts have come to.
    pub health: Health,
    /// What the last of them came to.
    pub last_outcome: Option<Outcome>,
    /// When it has to be looked at next, though nothing ends.
    pub look_at: Option<UnixTime>,
    /// Since when it is paused. Only ever pauses: a reactivation is [`Store::reactivate`].
    pub paused_at: Option<UnixTime>,
    /// Which delivery probes it.
    pub probing: Option<Probe>,
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

/// What came of sending a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The server took it.
    Sent,
    /// The server will never take it, or it was tried too often.
    GivenUp,
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

/// A job that redelivers by filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it redelivers.
    pub filter: Filter,
    /// When it was asked for.
    pub created_at: UnixTime,
    /// When it had looked at everything that it was asked to.
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
    /// Bytes on disk, the log of changes included.
    pub bytes: u64,
    /// Changes made so far, each a commit.
    pub commits: u64,
}

/// A store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// How numbers are shown to the outside.
    fn ids(&self) -> &PublicIds;

    // What customers do.

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

    /// Deletes a webhook; what waits for it is never sent. Says whether it was there.
    async fn delete_webhook(&self, workspace: &str, id: WebhookId) -> Result<bool, StoreError>;

    /// Ends a pause: `paused_total` grows by it, health begins anew, the webhook probes, and its
    /// deliveries are to be put into order by [`Store::reorder`]. Changes nothing where it is not
    /// paused.
    async fn reactivate(
        &self,
        workspace: &str,
        id: WebhookId,
        now: UnixTime,
    ) -> Result<Option<Webhook>, StoreError>;

    /// A page of a workspace's deliveries, newest first, those after `after`.
    async fn deliveries(
        &self,
        workspace: &str,
        filter: &Filter,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> Result<Page<Delivery, DeliveryId>, StoreError>;

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

    /// Writes down that all deliveries that match, up to the newest there is, are to begin anew;
    /// pings only where their type is asked for.
    async fn create_job(
        &self,
        workspace: &str,
        filter: Filter,
        now: UnixTime,
    ) -> Result<Job, StoreError>;

    /// One job of a workspace.
    async fn job(&self, workspace: &str, id: JobId) -> Result<Option<Job>, StoreError>;

    // What backends do.

    /// Stores events and a delivery each for every webhook of their workspace that subscribes to
    /// their type: all or nothing.
    async fn accept(&self, events: Vec<NewEvent>, now: UnixTime) -> Result<Accepted, StoreError>;

    /// Stores an event for one webhook alone. `None` where there is no such webhook.
    async fn ping(
        &self,
        workspace: &str,
        webhook: WebhookId,
        event: NewEvent,
        now: UnixTime,
    ) -> Result<Option<Arrival>, StoreError>;

    // What the worker does.

    /// A webhook, whoever's it is. `None` once it is deleted.
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
    async fn fetch_one(&self, id: DeliveryId) -> Result<Option<Ready>, StoreError>;

    /// Writes down attempts and what follows from them: all or nothing. A webhook or a delivery
    /// that is gone in the meantime is passed over; that an attempt started counts all the same.
    async fn record(
        &self,
        ended: Vec<Ended>,
        fared: Vec<Fared>,
        mails: Vec<NewMail>,
    ) -> Result<(), StoreError>;

    /// The attempts that started at or after `since`, by lane, whatever has become of their
    /// deliveries and webhooks.
    async fn starts_since(&self, since: UnixTime) -> Result<Vec<(LaneId, UnixTime)>, StoreError>;

    /// Whether the process that had the store before us ended in order, with all outcomes
    /// recorded.
    fn ended_in_order(&self) -> bool;

    /// When processes before us were found not to have ended in order, oldest first: what they had
    /// under way by then may have left no trace. As far back as is known.
    fn cut_off(&self) -> Vec<UnixTime>;

    /// Puts up to `limit` deliveries of a reactivated webhook back into the order of creation,
    /// at the beginning of their schedule. Says whether that was all.
    async fn reorder(&self, webhook: WebhookId, limit: usize) -> Result<bool, StoreError>;

    /// Takes the oldest job that is not at its end a step further, of at most `limit` deliveries.
    async fn step_job(&self, limit: usize, now: UnixTime) -> Result<JobStep, StoreError>;

    // Mail.

    /// Mails that are due, oldest first. From here on they count as sent, unless told otherwise:
    /// a crash between here and [`Store::posted`] sends none of them twice.
    async fn take_mails(&self, limit: usize, now: UnixTime) -> Result<Vec<Mail>, StoreError>;

    /// What came of one of them.
    async fn posted(&self, id: MailId, posted: Posted) -> Result<(), StoreError>;

    /// When the next mail is due.
    async fn mail_due(&self) -> Result<Option<UnixTime>, StoreError>;

    // Upkeep.

    /// Drops up to `limit` deliveries that ended before these times, or that wait for a webhook
    /// that is gone, with their attempts, events that no delivery needs, and jobs, mails and lanes
    /// that have been over for a month; where there is more than that, some of each, for a limit
    /// of six or more. Says whether there may be more.
    async fn sweep(
        &self,
        delivered_before: UnixTime,
        failed_before: UnixTime,
        limit: usize,
    ) -> Result<bool, StoreError>;

    /// How much there is.
    async fn figures(&self) -> Result<Figures, StoreError>;

    /// Finishes what was asked, notes that we ended in order, and lets go. Later calls fail.
    async fn close(&self) -> Result<(), StoreError>;
}
