//! What fits an allowance: rolling windows, token buckets, and what they answer.

pub mod decision;
pub mod rolling;
pub mod token_bucket;
