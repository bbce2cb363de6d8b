//! The end-to-end tests, one module per story, against the program as an operator runs it.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says why and stops"
)]

mod batch;
mod deadlines;
mod dispatching;
mod fuzzed;
mod harness;
mod hostile;
mod interleavings;
mod limits;
mod operating;
mod proxying;
mod real_servers;
mod shipped;
mod strangers;
mod targets;
mod tidy;
