//! Where looks are made: on threads of their own, unless a test wants it otherwise.
//!
//! Invariant: a look holds its permit until it ends, whether or not anybody still waits for it.

#[cfg(test)]
pub(crate) mod manual;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;

use crate::blocking_pool::Threads;
use crate::store::sqlite::error::Fault;

#[derive(Debug)]
pub(super) enum Lookout {
    /// On these threads.
    Own(Threads),
    /// On the runtime's: a clock that is turned by hand stands still while those work, and no
    /// others.
    #[cfg(test)]
    Runtime,
    /// On none: a test says when.
    #[cfg(test)]
    ByHand(std::sync::Arc<manual::Looks>),
}

impl Lookout {
    /// Makes a look, which this permits.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        look: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<Result<T, Fault>, JoinError> {
        match self {
            Self::Own(threads) => threads.run(holding(permit, look)).await,
            #[cfg(test)]
            Self::Runtime => tokio::task::spawn_blocking(holding(permit, look)).await,
            #[cfg(test)]
            Self::ByHand(looks) => Ok(looks.look(permit, look).await),
        }
    }
}

/// Whoever waits may leave, the look goes on: so it, not the waiting, holds the permit.
fn holding<T>(permit: OwnedSemaphorePermit, look: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _permit = permit;
        look()
    }
}
