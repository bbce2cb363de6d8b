//! Runs reads: on own threads, on the runtime's, or when a simulation decides.
//!
//! Invariant: a read keeps its permit until it ends, whether or not its caller still waits.

pub mod manual;

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;

use crate::blocking_pool::Threads;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::read_pool::executor::manual::ManualReads;

/// Where reads run.
#[derive(Debug)]
pub(in crate::store::sqlite) enum ReadExecutor {
    /// On these threads.
    Own(Threads),
    /// On the runtime's blocking threads: tokio's paused clock stands still only while those work.
    Runtime,
    /// On no thread: a simulation decides when.
    Manual(Arc<ManualReads>),
}

impl ReadExecutor {
    /// Runs a read, and keeps its permit until it ends.
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

/// The read owns the permit, because its caller may stop waiting while it runs.
fn with_permit<T>(permit: OwnedSemaphorePermit, read: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _permit = permit;
        read()
    }
}
