//! The dispatcher's own work in seeded runs, years of virtual time in seconds, judged by a model.
//!
//! What runs is what ships: the worker's turns, the scheduler, health, records, the SQLite store
//! with its statements and batches, the deadline of an attempt. What is left out is what has no
//! decision in it: sockets, the store's threads, the loop that waits. The clock is turned,
//! receivers are made up, and everything happens on one thread, so that a seed tells a whole story
//! and tells it again.
//!
//! Areas stand in layers, the lowest first: each imports only from those above it in this list.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a run that breaks a promise says which and stops"
)]

// Spans of time.
mod spans;

// What customers, backends and upkeep ask for, and what they are answered.
mod orders;

// What was promised, and what receivers, owners and backends know.
mod model;

// Receivers and the network before them.
mod receivers;

// The server of mails.
mod mail_server;

// The process that is looked at.
mod process;

// A disk that fails.
mod faults;

// The promises, one by one.
mod checks;

// Lets time pass.
mod world;

// What happens, by chance and in stories.
mod scenarios;

// One run after another.
mod runs;

pub use crate::runs::{Figures, again, many};
