//! What is measured.

pub mod metrics;
