//! Jobs that run, and sweeps that have ended.

use std::collections::BTreeMap;

use weir_dispatcher::domain::id::{DeliveryId, JobId};

/// The state of jobs and sweeps.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// A job is running.
    pub(crate) job: bool,
    /// The deliveries that jobs must redeliver, and their attempts when the job was created.
    pub(crate) asked: Vec<(DeliveryId, u32)>,
    /// Jobs that were cancelled, and whether that was on disk before the latest commit.
    pub(crate) cancelled: BTreeMap<JobId, bool>,
    /// A sweep has ended since its result was last checked.
    pub(crate) swept: bool,
}

impl Upkeep {
    /// Whether a sweep's result is to be checked, which it then counts as.
    pub(crate) fn take_swept(&mut self) -> bool {
        std::mem::take(&mut self.swept)
    }
}
