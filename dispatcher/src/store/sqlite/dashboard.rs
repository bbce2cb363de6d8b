//! The calls of the dashboard, each assigned to the writer or to a reader.

use std::sync::Arc;

use async_trait::async_trait;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::activity::Activity;
use crate::domain::id::WebhookId;
use crate::domain::session::{Grant, LINK_KEY_BYTES, NewSession, SessionOpened, day_of};
use crate::store::StoreError;
use crate::store::dashboard::DashboardStore;
use crate::store::sqlite::{SqliteStore, activity, sessions};

#[async_trait]
impl DashboardStore for SqliteStore {
    fn link_keys(&self, now: UnixTime) -> [Secret<[u8; LINK_KEY_BYTES]>; 2] {
        let day = day_of(now);
        [day, day.saturating_sub(1)].map(|day| self.facts.sealer.link_key(day))
    }

    async fn open_session(
        &self,
        new: NewSession,
        now: UnixTime,
    ) -> Result<SessionOpened, StoreError> {
        self.writer.run(move |session| sessions::open(session, &new, now)).await
    }

    async fn session(&self, id: [u8; 32], now: UnixTime) -> Result<Option<Grant>, StoreError> {
        self.readers.read(move |conn| sessions::grant(conn, &id, now)).await
    }

    async fn link_used(&self, nonce: &str) -> Result<bool, StoreError> {
        let nonce = nonce.to_owned();
        self.readers.read(move |conn| sessions::link_used(conn, &nonce)).await
    }

    async fn end_session(&self, id: [u8; 32]) -> Result<(), StoreError> {
        self.writer.run(move |session| sessions::end(session, &id)).await
    }

    async fn activity(
        &self,
        webhook: WebhookId,
        end: u64,
        hours: u64,
    ) -> Result<Vec<(u64, Activity)>, StoreError> {
        let range = end.saturating_sub(hours)..end;
        let recent = Arc::clone(&self.activity);
        self.readers.read(move |conn| activity::of_hours(conn, &recent, webhook, range)).await
    }
}
