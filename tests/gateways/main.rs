//! Gateways that share a store, in seeded runs of virtual time, checked by a model.
//!
//! The code that ships runs: limiters, the shared store with its connections, leases, heartbeats
//! and shares, the client of Redis, and the scripts on Lua 5.1. The network, the servers and all
//! clocks are simulated, and everything runs on one thread, so that a seed reproduces a whole run.
//!
//! ```text
//! WEIR_RUNS=5000 WEIR_BASE=1000 cargo test -p weir-tests --test gateways runs
//! WEIR_SEED=17 cargo test -p weir-tests --test gateways runs       one run again
//! ```

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a run that breaks a promise says which and stops"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the network is simulated on the runtime's own clock, and seeds come from outside"
)]

mod coalescing;
mod commands;
mod conformance;
mod data;
mod faults;
mod fleet;
mod forgetting;
mod gateway;
mod network;
mod plan;
mod real_server;
mod renewal;
mod runs;
mod scripts;
mod virtual_time;
