//! The gateway's metrics.

pub mod metrics;
