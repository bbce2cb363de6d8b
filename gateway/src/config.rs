//! The active configuration, and the state that all requests share.

pub mod active;
pub mod shared;
