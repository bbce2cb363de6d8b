//! Calls of the dashboard, in addition to those of the API.

use async_trait::async_trait;
use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::domain::activity::Activity;
use crate::domain::id::WebhookId;
use crate::domain::session::{Grant, LINK_KEY_BYTES, NewSession, SessionOpened};
use crate::store::StoreError;

/// Sessions, and what charts show.
#[async_trait]
pub trait DashboardStore: Send + Sync + 'static {
    /// The keys of links that are valid now, the one that signs first: that of this day, that of
    /// the day before.
    fn link_keys(&self, now: UnixTime) -> [Secret<[u8; LINK_KEY_BYTES]>; 2];

    /// Opens a session, unless its link has opened one.
    async fn open_session(
        &self,
        new: NewSession,
        now: UnixTime,
    ) -> Result<SessionOpened, StoreError>;

    /// What a session grants. `None` once it has ended.
    async fn session(&self, id: [u8; 32], now: UnixTime) -> Result<Option<Grant>, StoreError>;

    /// Whether the link with this nonce has opened a session.
    async fn link_used(&self, nonce: &str) -> Result<bool, StoreError>;

    /// Ends a session, if it exists.
    async fn end_session(&self, id: [u8; 32]) -> Result<(), StoreError>;

    /// The attempts of a webhook in the hours before `end`, `hours` of them, by their numbers:
    /// only those in which there were any.
    async fn activity(
        &self,
        webhook: WebhookId,
        end: u64,
        hours: u64,
    ) -> Result<Vec<(u64, Activity)>, StoreError>;
}
