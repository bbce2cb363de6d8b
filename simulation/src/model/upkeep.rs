//! Jobs and sweeps that are under way or were answered.

use weir_dispatcher::domain::id::DeliveryId;

/// What is known of jobs and sweeps.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// A job is under way.
    pub(crate) job: bool,
    /// What jobs must put back, and how often that was tried when they were asked for.
    pub(crate) asked: Vec<(DeliveryId, u32)>,
    /// A sweep was answered since it was last looked at what is left.
    pub(crate) swept: bool,
}

impl Upkeep {
    /// Whether it is to be looked at what is left; not a second time.
    pub(crate) fn looks(&mut self) -> bool {
        std::mem::take(&mut self.swept)
    }
}
