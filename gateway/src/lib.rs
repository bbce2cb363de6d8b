//! x
pub mod limit;
mod sync;
