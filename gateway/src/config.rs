//! The configuration as it was read and as it is active, and the state that all requests share.

pub mod active;
pub mod checked;
pub mod shared;
