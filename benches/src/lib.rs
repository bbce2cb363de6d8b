//! What the measuring programs in `bin/` share: processes, load, targets and tables.
//!
//! Read `bin/compare.rs` first.

pub mod arrivals;
pub mod bare;
pub mod counted;
pub mod dispatched;
pub mod flags;
pub mod lab;
pub mod load;
pub mod post;
pub mod report;
pub mod secure;
pub mod shared;
pub mod steady;
pub mod targets;
pub mod training;
pub mod unresponsive;
