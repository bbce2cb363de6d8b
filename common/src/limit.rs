//! Rate limits: rolling windows, token buckets, and their decisions.

pub mod decision;
pub mod rolling;
pub mod token_bucket;
