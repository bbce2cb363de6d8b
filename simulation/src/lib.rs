//! Runs the dispatcher in seeded runs, years of virtual time in seconds, and checks it by a model.
//!
//! The code that ships runs: the worker's turns, the scheduler, health, records, the SQLite store
//! with its statements and batches, the deadline of an attempt. Left out is code without decisions:
//! sockets, the store's threads, the loop that waits. The clock is advanced manually, receivers are
//! simulated, and everything runs on one thread, so that a seed reproduces a whole run.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a run that breaks a promise says which and stops"
)]

// Named spans of time.
mod spans;

// Calls of customers, backends and maintenance, and their replies.
mod orders;

// The model: what was promised, and what receivers, owners and backends saw.
mod model;

// Simulated receivers, and the network.
mod receivers;

// A simulated mail server.
mod mail_server;

// The process under test.
mod process;

// A disk that fails.
mod faults;

// The checks of each promise.
mod checks;

// Advances time.
mod world;

// Random events, and planned sequences.
mod scenarios;

// Executes runs.
mod runs;

pub use crate::runs::{Figures, again, many};
