//! Runs reads: on threads of their own, or when a simulation decides.
//!
//! Invariant: a read keeps its permit until it ends, whether or not its caller still waits.

pub mod manual;

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;

use crate::blocking_pool::Threads;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::read_pool::executor::manual::ManualReads;

/// What makes reads.
#[derive(Debug)]
pub(in crate::store::sqlite) enum ReadExecutor {
    /// These threads.
    Own(Threads),
    /// The runtime's: a clock that is turned stands still while those work, and no others.
    Runtime,
    /// `None`: a simulation decides.
    Manual(Arc<ManualReads>),
}

impl ReadExecutor {
    /// Makes a read, which this permits.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        read: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<Result<T, Fault>, JoinError> {
        match self {
            Self::Own(threads) => threads.run(with_permit(permit, read)).await,
            Self::Runtime => tokio::task::spawn_blocking(with_permit(permit, read)).await,
            Self::Manual(reads) => Ok(reads.run(permit, read).await),
        }
    }
}

/// A caller may leave while its read runs: the read owns the permit.
fn with_permit<T>(permit: OwnedSemaphorePermit, read: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _permit = permit;
        read()
    }
}
