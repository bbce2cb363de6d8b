//! A token that was verified, and for how long a cache keeps it.
//!
//! Not here: when a cached token is verified again (`verifier`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;

use crate::time::UnixTime;

/// A valid token.
pub(super) struct ValidToken<T> {
    pub(super) claims: Arc<T>,
    pub(super) expires: UnixTime,
    /// Time from verification until it leaves the cache.
    pub(super) lasts: Duration,
    /// The edition of the keys that verified it; 0 for introspection.
    pub(super) edition: u64,
}

impl<T> Clone for ValidToken<T> {
    fn clone(&self) -> Self {
        Self { claims: Arc::clone(&self.claims), ..*self }
    }
}

/// Keeps a valid token in a cache for as long as it says.
pub(super) struct WhileValid;

impl<K, T> Expiry<K, ValidToken<T>> for WhileValid {
    fn expire_after_create(&self, _: &K, token: &ValidToken<T>, _: Instant) -> Option<Duration> {
        Some(token.lasts)
    }

    fn expire_after_update(
        &self,
        _: &K,
        token: &ValidToken<T>,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(token.lasts)
    }
}
