//! What has happened to a shared store's calls.
//!
//! Not here: how it is shown (`operations::admin`).

use std::sync::atomic::AtomicU64;

/// What has happened to a shared store's calls since the start.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Calls that were answered.
    pub answered: AtomicU64,
    /// Calls that were not answered in time, or refused.
    pub failed: AtomicU64,
    /// Calls whose keys were between two servers of a Cluster for as long as a call may take.
    pub moving: AtomicU64,
    /// Decisions made without the store.
    pub alone: AtomicU64,
    /// Decisions by a remembered refusal, without a call.
    pub remembered: AtomicU64,
    /// Decisions by a call of their own.
    pub called: AtomicU64,
    /// Decisions by the call of another request.
    pub together: AtomicU64,
    /// Decisions by tokens and slots that were leased, without a call.
    pub leased: AtomicU64,
    /// Calls to which the store answered that it has forgotten.
    pub forgotten: AtomicU64,
    /// Times at which the store's clock was seen to be set, by more than a second either way.
    pub jumps: AtomicU64,
}
