//! What is measured and written down: metrics and the access log.

pub mod access_log;
pub mod metrics;
