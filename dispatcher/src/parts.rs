//! What everyone shares: the clock, the store, what is in force, the metrics, the way to the worker.

use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_common::time::Clock;

use crate::force::Force;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::worker::Handle;

/// What everyone shares.
pub struct Parts {
    /// The clock.
    pub clock: Clock,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What is in force.
    pub force: ArcSwap<Force>,
    /// The way to the worker.
    pub worker: Handle,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}
