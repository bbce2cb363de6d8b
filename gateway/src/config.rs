//! The configuration that is active, and what all requests share.

pub mod active;
pub mod shared;
