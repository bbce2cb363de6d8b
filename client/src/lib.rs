//! Calls the APIs of both Weir programs as a well-behaved client does: it waits as refusals ask
//! for, shares identical reads, serves repeated lists from a cache, and repeats no call that may
//! have been carried out.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.

// How long to wait before a refused call is repeated.
pub mod backoff;

// What is sent and what comes back, as values.
pub mod call;

// The seam to the network, the clock and chance.
pub mod transport;

// Reads that are shared and kept.
mod cache;

// A client: one token, its cache, its waits.
pub mod client;

// The bodies of the APIs, and a method for each call.
pub mod body;
pub mod methods;
