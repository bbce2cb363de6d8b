//! The store in a SQLite file on this machine.
//!
//! One thread writes, in batches that are each one commit (`writer`). A few connections read, for
//! customers and for the worker (`read_pool`): a due delivery does not wait for the writes of
//! others. This file and `management` assign calls to the writer or to readers; the SQL is in the
//! files below it.
//!
//! # Invariants
//!
//! 1. A database file is open in one process at a time, and only with its own key (`open`).
//! 2. A change is on disk before its call returns (`writer`).
//! 3. The worker's reads include every change that was reported to it before (`read_pool`).
//! 4. No statement scans all deliveries, events or attempts (checked by `tests`).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use prometheus::Histogram;
use weir_common::time::{Clock, Tick, UnixTime};

use crate::config::settings::{OperatorEndpoint, Retention};
use crate::domain::attempt::{AttemptRecord, EarlierStart};
use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::operator_event::{OperatorEvent, Recorded};
use crate::domain::webhook::filter::WebhookFilter;
use crate::domain::webhook::{Queue, Webhook, WebhookUpdate};
use crate::store::mail::QueuedMail;
use crate::store::sqlite::activity::{Due, RecentActivity};
use crate::store::sqlite::open::{Facts, OpenError, Opened};
use crate::store::sqlite::pragmas::ConnectionHook;
use crate::store::sqlite::read_pool::executor::ReadExecutor;
use crate::store::sqlite::read_pool::executor::manual::ManualReads;
use crate::store::sqlite::read_pool::{Readers, Source};
use crate::store::sqlite::wal::owner;
use crate::store::sqlite::writer::Writer;
use crate::store::sqlite::writer::manual::ManualWriter;
use crate::store::sqlite::writer::queue::Size;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::{Accepted, Figures, JobStep, NewEvent, OpenJob, Page};
use crate::store::{DeliveryQueue, Intake, StoreError, Upkeep};

mod activity;
mod attempts;
mod backlog;
pub mod backup;
mod dashboard;
mod deliveries;
mod error;
mod events;
mod file_identity;
mod file_owner;
mod finding;
mod health;
mod id_sequence;
mod job_counts;
mod jobs;
pub mod key_file;
mod listing;
mod management;
mod migrations;
pub mod open;
mod operator;
mod outbox;
mod pragmas;
pub(crate) mod preview;
pub mod read_pool;
pub mod rekey;
pub mod restore;
mod retention;
mod rows;
mod schema;
mod secrets;
mod selection;
mod sessions;
mod steady_clock;
mod stops;
mod unfinished_restore;
mod wal;
mod webhooks;
pub mod writer;

#[cfg(test)]
pub(crate) mod tests;

/// A call with up to this many events is small work for the writer.
const FEW_EVENTS: usize = 64;

/// A store in a file.
pub struct SqliteStore {
    facts: Facts,
    readers: Readers,
    worker: Readers,
    writer: Writer,
    activity: Arc<RecentActivity>,
}

impl SqliteStore {
    /// Opens the database at `path`, with the key in `key_file`; creates missing files.
    ///
    /// # Errors
    ///
    /// If it is in use, not ours, or sealed with another key; the error states the remedy.
    pub fn open(path: &Path, key_file: &Path, clock: Clock) -> Result<Self, OpenError> {
        Self::open_hooked(path, key_file, clock, pragmas::no_hook())
    }

    /// As [`SqliteStore::open`]; `hook` is called with each connection once it is set up.
    fn open_hooked(
        path: &Path,
        key_file: &Path,
        clock: Clock,
        hook: ConnectionHook,
    ) -> Result<Self, OpenError> {
        let Opened { session, lock, facts } = open::open(path, key_file, clock, &hook)?;
        let failed = |source| OpenError::Folder { path: facts.path.clone(), source };
        let source = Source::of(&facts.path, session.wal.gate(), hook).map_err(failed)?;
        let readers = Readers::on_threads(&source, read_pool::CUSTOMERS_MAX);
        let worker = Readers::on_threads(&source, read_pool::WORKERS_MAX);
        let writer = Writer::start(session, &facts.path, source.database, lock).map_err(failed)?;
        Ok(Self { facts, readers, worker, writer, activity: Arc::default() })
    }

    /// As [`SqliteStore::open`], for simulations, which step the writes and the worker's reads;
    /// customers' reads run on the runtime's threads.
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`].
    pub fn open_manual(
        path: &Path,
        key_file: &Path,
        clock: Clock,
    ) -> Result<(Self, ManualWriter, Arc<ManualReads>), OpenError> {
        let hook = pragmas::no_hook();
        let Opened { session, lock, facts } = open::open(path, key_file, clock, &hook)?;
        let failed = |source| OpenError::Folder { path: facts.path.clone(), source };
        let source = Source::of(&facts.path, session.wal.gate(), hook).map_err(failed)?;
        let reads = Arc::new(ManualReads::default());
        let stepped = ReadExecutor::Manual(Arc::clone(&reads));
        let readers = Readers::new(&source, ReadExecutor::Runtime, read_pool::CUSTOMERS_MAX);
        let worker = Readers::new(&source, stepped, read_pool::WORKERS_MAX);
        let (writer, stepped) = Writer::manual(session, lock);
        let activity = Arc::default();
        Ok((Self { facts, readers, worker, writer, activity }, stepped, reads))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.facts.path).finish_non_exhaustive()
    }
}

/// The name of an empty `meta` value, written to check that writes succeed.
const TRIED: &str = "tried";

#[async_trait]
impl Intake for SqliteStore {
    async fn accept(&self, events: Vec<NewEvent>, now: UnixTime) -> Result<Accepted, StoreError> {
        let size = if events.len() > FEW_EVENTS { Size::Large } else { Size::Small };
        self.writer.try_run(size, move |session| events::accept(session, events, now)).await
    }
}

#[async_trait]
impl DeliveryQueue for SqliteStore {
    fn steady(&self, at: Tick) -> UnixTime {
        self.facts.steady.of(at)
    }

    async fn load(&self, id: WebhookId) -> Result<Option<Queue>, StoreError> {
        let sealer = self.facts.sealer.clone();
        self.worker.read(move |conn| backlog::load(conn, &sealer, id)).await
    }

    async fn queues(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Queue, WebhookId>, StoreError> {
        self.writer.run(move |session| backlog::page(session, after, limit)).await
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
        updates: Vec<WebhookUpdate>,
        mails: Vec<QueuedMail>,
        events: Vec<OperatorEvent>,
    ) -> Result<Recorded, StoreError> {
        let (counting, at) = activity::ended(&ended);
        let due = self.activity.due(at);
        let counted = due.as_ref().map(Due::counted).unwrap_or_default();
        let record = move |session: &mut _| {
            let stale = attempts::record(session, &ended, &updates, &mails)?;
            activity::write(&session.conn, &counted)?;
            let came_about = events.iter().filter(|event| !stale.has(event)).cloned();
            let recorded = operator::accept(session, &came_about.collect::<Vec<_>>())?;
            Ok(Recorded { redelivered: stale.deliveries, ..recorded })
        };
        let recorded = self.writer.run(record).await?;
        if let Some(due) = due {
            due.written();
        }
        self.activity.count(&counting);
        Ok(recorded)
    }

    async fn starts_since(&self, since: UnixTime) -> Result<Vec<EarlierStart>, StoreError> {
        self.writer.run(move |session| backlog::starts_since(session, since)).await
    }

    fn clean_shutdown(&self) -> bool {
        self.facts.clean_shutdown
    }

    fn on_earlier_clock(&self, unix: UnixTime) -> UnixTime {
        self.facts.set_ahead.undone(unix)
    }

    fn unclean_shutdowns(&self) -> Vec<UnixTime> {
        self.facts.unclean_shutdowns.clone()
    }

    async fn reorder(&self, webhook: WebhookId, limit: usize) -> Result<bool, StoreError> {
        self.writer
            .run_sized(Size::Large, move |session| backlog::reorder(session, webhook, limit))
            .await
    }
}

#[async_trait]
impl Upkeep for SqliteStore {
    async fn step_job(&self, limit: usize, now: UnixTime) -> Result<JobStep, StoreError> {
        self.writer.run_sized(Size::Large, move |session| jobs::step(session, limit, now)).await
    }

    async fn open_jobs(&self, limit: usize) -> Result<Vec<OpenJob>, StoreError> {
        self.readers.read(move |conn| jobs::open(conn, limit)).await
    }

    async fn find_webhooks(
        &self,
        filter: &WebhookFilter,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError> {
        let (filter, sealer) = (filter.clone(), self.facts.sealer.clone());
        self.readers.read(move |conn| finding::page(conn, &sealer, &filter, after, limit)).await
    }

    async fn reactivate_found(
        &self,
        filter: &WebhookFilter,
        after: Option<WebhookId>,
        limit: usize,
        now: UnixTime,
    ) -> Result<Page<WebhookId, WebhookId>, StoreError> {
        let filter = filter.clone();
        let step = move |session: &mut _| finding::reactivate(session, &filter, after, limit, now);
        self.writer.run_sized(Size::Large, step).await
    }

    async fn set_operator(
        &self,
        endpoint: Option<OperatorEndpoint>,
        now: UnixTime,
    ) -> Result<Option<WebhookId>, StoreError> {
        let nonces = webhooks::Nonces::random()?;
        let set = move |session: &mut _| operator::set(session, endpoint.as_ref(), nonces, now);
        self.writer.run(set).await
    }

    async fn sweep(
        &self,
        retention: &Retention,
        now: UnixTime,
        limit: usize,
    ) -> Result<bool, StoreError> {
        let retention = *retention;
        let due = self.activity.due(now);
        let counted = due.as_ref().map(Due::counted).unwrap_or_default();
        let work = move |session: &mut WriteSession| {
            activity::write(&session.conn, &counted)?;
            retention::sweep(session, &retention, now, limit)
        };
        let more = self.writer.run_sized(Size::Large, work).await?;
        if let Some(due) = due {
            due.written();
        }
        Ok(more || self.activity.has_rest())
    }

    async fn is_writable(&self) -> bool {
        if self.writer.shown().is_failing() {
            // Without other changes this is the one that shows that they are written again.
            let tried = self.writer.run(|session| Ok(schema::set_meta(&session.conn, TRIED, &[])?));
            let _ = tried.await;
        }
        !self.writer.shown().is_failing()
    }

    async fn figures(&self) -> Result<Figures, StoreError> {
        let path = self.facts.path.clone();
        // Not on a reader: operators need figures also when customers keep all readers busy.
        let sizes = tokio::task::spawn_blocking(move || owner::bytes_on_disk(&path)).await;
        let [database, wal_bytes] =
            sizes.map_err(|error| StoreError::Damaged(error.to_string().into()))?;
        let shown = self.writer.shown();
        Ok(Figures {
            waiting: shown.waiting.load(Ordering::Relaxed),
            webhooks: shown.webhooks.load(Ordering::Relaxed),
            bytes: database + wal_bytes,
            wal_bytes,
            commits: shown.commits.load(Ordering::Relaxed),
        })
    }

    fn time_commits(&self, times: Histogram) {
        // A second histogram would get none of the times.
        let _ = self.writer.shown().commit_times.set(times);
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.readers.close();
        self.worker.close();
        self.writer.end().await
    }
}
