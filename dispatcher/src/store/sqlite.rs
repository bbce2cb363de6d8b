//! The store in a SQLite file on this machine.
//!
//! One thread writes, in batches that are each one commit (`writer`). A few connections read, for
//! customers and for the worker (`read_pool`): a delivery that is to be sent does not wait for what
//! others have written. This file says which does what; the SQL is in the files below it, one for
//! each thing that is kept.
//!
//! # Invariants
//!
//! 1. A file has one process at a time, knows its key, and is ours (`open`).
//! 2. What is answered is on disk (`writer`).
//! 3. What the worker reads is no older than what it was told before it asked (`read_pool`).
//! 4. No statement goes through all deliveries, events or attempts (`tests` asks SQLite).

use std::fmt;
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use weir_common::time::{Clock, Tick, UnixTime};

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{Arrival, Cursor, Delivery, Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, JobId, WebhookId};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::{Queue, Webhook, WebhookUpdate};
use crate::store::encryption::{NONCE_BYTES, Sealer};
use crate::store::sqlite::read_pool::Readers;
#[cfg(test)]
use crate::store::sqlite::read_pool::executor::manual::Looks;
use crate::store::sqlite::steady_clock::Steady;
use crate::store::sqlite::writer::{Size, Writer};
use crate::store::{
    Accepted, Created, DeliveryQueue, Figures, Filter, Intake, Job, JobCreated, JobStep,
    Management, NewEvent, NewMail, NewWebhook, Page, Rotated, Rotation, StoreError, Upkeep,
    WebhookChange,
};

mod attempts;
mod backlog;
pub mod backup;
mod deliveries;
mod error;
mod events;
mod file_identity;
mod id_sequence;
mod jobs;
pub mod key_file;
mod listing;
mod migrations;
pub mod open;
mod outbox;
mod pragmas;
pub(crate) mod preview;
pub(crate) mod read_pool;
pub mod restore;
mod retention;
mod rows;
mod schema;
mod steady_clock;
mod unfinished_restore;
mod wal;
mod webhooks;
pub(crate) mod writer;

#[cfg(test)]
pub(crate) mod tests;

/// So many events of one call are small work for the writer.
const FEW_EVENTS: usize = 64;

/// A store in a file.
pub struct SqliteStore {
    path: PathBuf,
    ids: PublicIds,
    ended_in_order: bool,
    cut_off: Vec<UnixTime>,
    sealer: Sealer,
    steady: Steady,
    readers: Readers,
    worker: Readers,
    writer: Writer,
}

impl SqliteStore {
    /// Opens the database at `path`, with the key in `key_file`; makes what is not there.
    ///
    /// # Errors
    ///
    /// Where it is in use, not ours, or sealed with another key; the error says what to do.
    pub fn open(path: &Path, key_file: &Path, clock: Clock) -> Result<Self, open::OpenError> {
        let opened = open::open(path, key_file, clock)?;
        let (path, sealer) = (opened.path, opened.desk.sealer.clone());
        let (door, steady) = (opened.desk.log.door(), opened.desk.steady.clone());
        let readers = Readers::new(path.clone(), door.clone(), read_pool::CUSTOMERS_MAX);
        let worker = Readers::new(path.clone(), door, read_pool::WORKERS_MAX);
        let writer = Writer::start(opened.desk, &path, opened.lock)
            .map_err(|source| open::OpenError::Folder { path: path.clone(), source })?;
        let (ids, ended_in_order, cut_off) = (opened.ids, opened.ended_in_order, opened.cut_off);
        Ok(Self { ids, ended_in_order, cut_off, sealer, steady, readers, worker, path, writer })
    }

    /// As [`SqliteStore::open`]; it writes, and reads for the worker, when it is told to.
    #[cfg(test)]
    pub(crate) fn open_by_hand(
        path: &Path,
        key_file: &Path,
        clock: Clock,
    ) -> Result<(Self, writer::manual::ByHand, Arc<Looks>), open::OpenError> {
        let opened = open::open(path, key_file, clock)?;
        let (path, sealer) = (opened.path, opened.desk.sealer.clone());
        let (door, steady) = (opened.desk.log.door(), opened.desk.steady.clone());
        let readers = Readers::on_the_runtime(path.clone(), door.clone(), read_pool::CUSTOMERS_MAX);
        let (worker, looks) = Readers::by_hand(path.clone(), door, read_pool::WORKERS_MAX);
        let (writer, by_hand) = Writer::by_hand(opened.desk, opened.lock);
        let (ids, ended_in_order, cut_off) = (opened.ids, opened.ended_in_order, opened.cut_off);
        let store =
            Self { ids, ended_in_order, cut_off, sealer, steady, readers, worker, path, writer };
        Ok((store, by_hand, looks))
    }

    /// Bytes on disk, the log of changes included.
    fn bytes(path: &Path) -> u64 {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let sizes =
            [path, Path::new(&log)].map(|path| path.metadata().map_or(0, |file| file.len()));
        sizes.iter().sum()
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

fn nonce() -> Result<[u8; NONCE_BYTES], StoreError> {
    let mut nonce = [0; NONCE_BYTES];
    let unlucky = |error: getrandom::Error| StoreError::Unavailable(error.to_string().into());
    getrandom::fill(&mut nonce).map_err(unlucky)?;
    Ok(nonce)
}

/// Under this name nothing is kept: it is written to see whether that can be done.
const TRIED: &str = "tried";

#[async_trait]
impl Management for SqliteStore {
    fn ids(&self) -> &PublicIds {
        &self.ids
    }

    async fn create_webhook(&self, new: NewWebhook, now: UnixTime) -> Result<Created, StoreError> {
        let nonce = nonce()?;
        self.writer.ask(move |desk| webhooks::create(desk, new, nonce, now)).await
    }

    async fn webhook(&self, workspace: &str, id: WebhookId) -> Result<Option<Webhook>, StoreError> {
        let (workspace, sealer) = (workspace.to_owned(), self.sealer.clone());
        let look = move |conn: &_| webhooks::of_workspace(conn, &sealer, &workspace, id);
        self.readers.read(look).await
    }

    async fn webhooks(
        &self,
        workspace: &str,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError> {
        let (workspace, sealer) = (workspace.to_owned(), self.sealer.clone());
        let look = move |conn: &_| webhooks::page(conn, &sealer, &workspace, after, limit);
        self.readers.read(look).await
    }

    async fn change_webhook(
        &self,
        workspace: &str,
        id: WebhookId,
        change: WebhookChange,
    ) -> Result<Option<Webhook>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| webhooks::change(desk, &workspace, id, change)).await
    }

    async fn rotate(
        &self,
        workspace: &str,
        id: WebhookId,
        rotation: Rotation,
    ) -> Result<Rotated, StoreError> {
        let (workspace, nonce) = (workspace.to_owned(), nonce()?);
        self.writer.ask(move |desk| webhooks::rotate(desk, &workspace, id, &rotation, nonce)).await
    }

    async fn delete_webhook(&self, workspace: &str, id: WebhookId) -> Result<bool, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| webhooks::delete(desk, &workspace, id)).await
    }

    async fn reactivate(
        &self,
        workspace: &str,
        id: WebhookId,
        now: UnixTime,
    ) -> Result<Option<Webhook>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| webhooks::reactivate(desk, &workspace, id, now)).await
    }

    async fn deliveries(
        &self,
        workspace: &str,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Delivery, Cursor>, StoreError> {
        let (workspace, filter) = (workspace.to_owned(), filter.clone());
        let look = move |conn: &_| deliveries::page(conn, &workspace, &filter, after, limit);
        self.readers.read(look).await
    }

    async fn delivery(
        &self,
        workspace: &str,
        id: DeliveryId,
    ) -> Result<Option<(Delivery, Vec<Attempt>)>, StoreError> {
        let workspace = workspace.to_owned();
        self.readers.read(move |conn| deliveries::with_attempts(conn, &workspace, id)).await
    }

    async fn ahead_of(
        &self,
        webhook: WebhookId,
        due: UnixTime,
        id: DeliveryId,
        most: usize,
    ) -> Result<usize, StoreError> {
        self.readers.read(move |conn| deliveries::ahead_of(conn, webhook, due, id, most)).await
    }

    async fn redeliver(
        &self,
        workspace: &str,
        id: DeliveryId,
        now: UnixTime,
    ) -> Result<Option<Delivery>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| deliveries::redeliver(desk, &workspace, id, now)).await
    }

    async fn create_job(
        &self,
        workspace: &str,
        filter: Filter,
        now: UnixTime,
    ) -> Result<JobCreated, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| jobs::create(desk, &workspace, &filter, now)).await
    }

    async fn job(&self, workspace: &str, id: JobId) -> Result<Option<Job>, StoreError> {
        let workspace = workspace.to_owned();
        self.readers.read(move |conn| jobs::one(conn, &workspace, id)).await
    }

    async fn ping(
        &self,
        workspace: &str,
        webhook: WebhookId,
        event: NewEvent,
        now: UnixTime,
    ) -> Result<Option<Arrival>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.ask(move |desk| events::ping(desk, &workspace, webhook, &event, now)).await
    }
}

#[async_trait]
impl Intake for SqliteStore {
    async fn accept(&self, events: Vec<NewEvent>, now: UnixTime) -> Result<Accepted, StoreError> {
        let size = if events.len() > FEW_EVENTS { Size::Large } else { Size::Small };
        self.writer.ask_if_room(size, move |desk| events::accept(desk, events, now)).await
    }
}

#[async_trait]
impl DeliveryQueue for SqliteStore {
    fn steady(&self, at: Tick) -> UnixTime {
        self.steady.of(at)
    }

    async fn load(&self, id: WebhookId) -> Result<Option<Queue>, StoreError> {
        let sealer = self.sealer.clone();
        self.worker.read(move |conn| backlog::load(conn, &sealer, id)).await
    }

    async fn queues(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Queue, WebhookId>, StoreError> {
        self.writer.ask(move |desk| backlog::page(desk, after, limit)).await
    }

    async fn fetch(
        &self,
        webhook: WebhookId,
        but: &[DeliveryId],
        limit: usize,
    ) -> Result<Fetched, StoreError> {
        let but = but.to_vec();
        self.worker.read(move |conn| backlog::fetch(conn, webhook, &but, limit)).await
    }

    async fn fetch_one(&self, id: DeliveryId) -> Result<Option<QueuedDelivery>, StoreError> {
        self.worker.read(move |conn| backlog::fetch_one(conn, id)).await
    }

    async fn record(
        &self,
        ended: Vec<AttemptRecord>,
        fared: Vec<WebhookUpdate>,
        mails: Vec<NewMail>,
    ) -> Result<(), StoreError> {
        self.writer.ask(move |desk| attempts::record(desk, &ended, &fared, &mails)).await
    }

    async fn starts_since(
        &self,
        since: UnixTime,
    ) -> Result<Vec<(EndpointId, UnixTime)>, StoreError> {
        self.writer.ask(move |desk| backlog::starts_since(desk, since)).await
    }

    fn ended_in_order(&self) -> bool {
        self.ended_in_order
    }

    fn cut_off(&self) -> Vec<UnixTime> {
        self.cut_off.clone()
    }

    async fn reorder(&self, webhook: WebhookId, limit: usize) -> Result<bool, StoreError> {
        self.writer.ask_for(Size::Large, move |desk| backlog::reorder(desk, webhook, limit)).await
    }
}

#[async_trait]
impl Upkeep for SqliteStore {
    async fn step_job(&self, limit: usize, now: UnixTime) -> Result<JobStep, StoreError> {
        self.writer.ask_for(Size::Large, move |desk| jobs::step(desk, limit, now)).await
    }

    async fn sweep(
        &self,
        delivered: Duration,
        failed: Duration,
        now: UnixTime,
        limit: usize,
    ) -> Result<bool, StoreError> {
        let work = move |desk: &mut _| retention::sweep(desk, delivered, failed, now, limit);
        self.writer.ask_for(Size::Large, work).await
    }

    async fn is_writable(&self) -> bool {
        if !self.writer.shown().failing.load(Ordering::Relaxed) {
            return true;
        }
        self.writer.ask(|desk| Ok(schema::set_meta(&desk.conn, TRIED, &[])?)).await.is_ok()
    }

    async fn figures(&self) -> Result<Figures, StoreError> {
        let path = self.path.clone();
        // Without a reader: an operator looks when customers keep them all busy, above all.
        let sizes = tokio::task::spawn_blocking(move || Self::bytes(&path)).await;
        let bytes = sizes.map_err(|error| StoreError::Damaged(error.to_string().into()))?;
        let shown = self.writer.shown();
        Ok(Figures {
            waiting: shown.waiting.load(Ordering::Relaxed),
            webhooks: shown.webhooks.load(Ordering::Relaxed),
            bytes,
            commits: shown.commits.load(Ordering::Relaxed),
        })
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.readers.close();
        self.worker.close();
        self.writer.end().await
    }
}
