//! Limits: rolling windows, token buckets, calendar periods, requests in flight, and their
//! decisions.
//!
//! A `quota` says how much one limit allows, whichever its algorithm; a `state` is what one key has
//! used of it.

pub mod calendar;
pub mod concurrency;
pub mod decision;
pub mod quota;
pub mod rolling;
pub mod slots;
pub mod state;
pub mod token_bucket;
