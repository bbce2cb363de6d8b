//! The calls of the API's management side, each assigned to the writer or to a reader.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::Row;
use weir_common::time::UnixTime;

use crate::domain::attempt::RecordedAttempt;
use crate::domain::delivery::{Arrival, Cursor, Delivery};
use crate::domain::event::EventType;
use crate::domain::forecast::Upcoming;
use crate::domain::id::{DeliveryId, EndpointId, JobId, WebhookId};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::Webhook;
use crate::domain::webhook::stop::Stop;
use crate::store::sqlite::webhooks::Nonces;
use crate::store::sqlite::{
    SqliteStore, deliveries, events, finding, jobs, rows, secrets, stops, webhooks,
};
use crate::store::types::{
    Changed, Created, Filter, Job, JobCreated, JobScope, Matches, NewEvent, NewJob, NewWebhook,
    Page, Paging, Rotated, Rotation, SecretRemoval, WebhookChange,
};
use crate::store::{Management, StoreError};

#[async_trait]
impl Management for SqliteStore {
    fn ids(&self) -> &PublicIds {
        &self.facts.ids
    }

    async fn create_webhook(&self, new: NewWebhook, now: UnixTime) -> Result<Created, StoreError> {
        let nonces = Nonces::random()?;
        self.writer.run(move |session| webhooks::create(session, new, nonces, now)).await
    }

    async fn webhook(&self, workspace: &str, id: WebhookId) -> Result<Option<Webhook>, StoreError> {
        let (workspace, sealer) = (workspace.to_owned(), self.facts.sealer.clone());
        let read = move |conn: &_| webhooks::of_workspace(conn, &sealer, &workspace, id);
        self.readers.read(read).await
    }

    async fn endpoint_of(&self, url: &str) -> Result<Option<EndpointId>, StoreError> {
        let url = url.to_owned();
        self.readers.read(move |conn| Ok(webhooks::endpoint_of(conn, &url)?)).await
    }

    async fn webhooks(
        &self,
        workspace: &str,
        after: Option<WebhookId>,
        limit: usize,
    ) -> Result<Page<Webhook, WebhookId>, StoreError> {
        let (workspace, sealer) = (workspace.to_owned(), self.facts.sealer.clone());
        let read = move |conn: &_| {
            let whole = |row: &Row<'_>| rows::webhook(row, &sealer).map(Some);
            let every = |row: &Row<'_>| finding::of_list(row, whole);
            webhooks::page(conn, Some(&workspace), after, limit, every)
        };
        self.readers.read(read).await
    }

    async fn change_webhook(
        &self,
        workspace: &str,
        id: WebhookId,
        change: WebhookChange,
        now: UnixTime,
    ) -> Result<Changed, StoreError> {
        let workspace = workspace.to_owned();
        let nonces = Nonces::random()?;
        self.writer
            .run(move |session| webhooks::change(session, (&workspace, id), change, nonces, now))
            .await
    }

    async fn rotate(
        &self,
        workspace: &str,
        id: WebhookId,
        rotation: Rotation,
        now: UnixTime,
    ) -> Result<Rotated, StoreError> {
        let (workspace, nonce) = (workspace.to_owned(), webhooks::nonce()?);
        self.writer
            .run(move |session| secrets::rotate(session, (&workspace, id), &rotation, nonce, now))
            .await
    }

    async fn remove_secret(
        &self,
        workspace: &str,
        id: WebhookId,
        fingerprint: &str,
    ) -> Result<SecretRemoval, StoreError> {
        let (workspace, fingerprint) = (workspace.to_owned(), fingerprint.to_owned());
        self.writer.run(move |session| secrets::remove(session, &workspace, id, &fingerprint)).await
    }

    async fn delete_webhook(&self, workspace: &str, id: WebhookId) -> Result<bool, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.run(move |session| webhooks::delete(session, &workspace, id)).await
    }

    async fn reactivate(
        &self,
        workspace: &str,
        id: WebhookId,
        now: UnixTime,
    ) -> Result<Option<Webhook>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.run(move |session| webhooks::reactivate(session, &workspace, id, now)).await
    }

    async fn deliveries(
        &self,
        workspace: &str,
        filter: &Filter,
        paging: Paging,
    ) -> Result<Page<Delivery, Cursor>, StoreError> {
        let (workspace, filter) = (workspace.to_owned(), filter.clone());
        let read = move |conn: &_| deliveries::page(conn, &workspace, &filter, paging);
        self.readers.read(read).await
    }

    async fn delivery(
        &self,
        workspace: &str,
        id: DeliveryId,
    ) -> Result<Option<(Delivery, Vec<RecordedAttempt>)>, StoreError> {
        let workspace = workspace.to_owned();
        self.readers.read(move |conn| deliveries::with_attempts(conn, &workspace, id)).await
    }

    async fn stops(&self, webhook: WebhookId, since: UnixTime) -> Result<Vec<Stop>, StoreError> {
        self.readers.read(move |conn| stops::ended_after(conn, webhook, since)).await
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

    async fn nth_due(
        &self,
        webhook: WebhookId,
        nth: usize,
    ) -> Result<Option<UnixTime>, StoreError> {
        self.readers.read(move |conn| deliveries::nth_due(conn, webhook, nth)).await
    }

    async fn upcoming(
        &self,
        webhook: WebhookId,
        limit: usize,
    ) -> Result<Vec<Upcoming>, StoreError> {
        self.readers.read(move |conn| deliveries::upcoming(conn, webhook, limit)).await
    }

    async fn redeliver(
        &self,
        workspace: &str,
        id: DeliveryId,
        now: UnixTime,
    ) -> Result<Option<Delivery>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.run(move |session| deliveries::redeliver(session, &workspace, id, now)).await
    }

    async fn create_job(
        &self,
        workspace: &str,
        new: NewJob,
        now: UnixTime,
    ) -> Result<JobCreated, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.run(move |session| jobs::create(session, &workspace, &new, now)).await
    }

    async fn matches(
        &self,
        workspace: &str,
        scope: &JobScope,
        now: UnixTime,
    ) -> Result<Matches, StoreError> {
        let (workspace, scope) = (workspace.to_owned(), scope.clone());
        self.readers.read(move |conn| jobs::walk::count(conn, &workspace, &scope, now)).await
    }

    async fn jobs(
        &self,
        workspace: &str,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Page<Job, JobId>, StoreError> {
        let workspace = workspace.to_owned();
        self.readers.read(move |conn| jobs::page(conn, &workspace, after, limit)).await
    }

    async fn cancel_job(
        &self,
        workspace: &str,
        id: JobId,
        now: UnixTime,
    ) -> Result<Option<Job>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer.run(move |session| jobs::cancel(session, &workspace, id, now)).await
    }

    async fn job(&self, workspace: &str, id: JobId) -> Result<Option<Job>, StoreError> {
        let workspace = workspace.to_owned();
        self.readers.read(move |conn| jobs::one(conn, &workspace, id)).await
    }

    async fn event(&self, workspace: &str, id: &str) -> Result<Option<Bytes>, StoreError> {
        let (workspace, id) = (workspace.to_owned(), id.to_owned());
        self.readers.read(move |conn| events::body(conn, &workspace, &id)).await
    }

    async fn event_types(&self) -> Result<Vec<EventType>, StoreError> {
        self.readers.read(rows::types).await
    }

    async fn ping(
        &self,
        workspace: &str,
        webhook: WebhookId,
        event: NewEvent,
        now: UnixTime,
    ) -> Result<Option<Arrival>, StoreError> {
        let workspace = workspace.to_owned();
        self.writer
            .run(move |session| events::ping(session, &workspace, webhook, &event, now))
            .await
    }
}
