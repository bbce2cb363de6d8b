//! The harness of the end-to-end tests: the real programs, raw clients, recording upstreams and
//! receivers.
//!
//! A test states its input and its expected output as bytes, so nothing here corrects,
//! normalises or retries anything. Every wait has a deadline and an error that names what it
//! waited for.
//!
//! Not here: the tests themselves (`it/`, one module per topic).

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on says why and stops"
)]

pub mod admissions;
pub mod answer;
pub mod api;
pub mod authority;
pub mod client;
pub mod config;
pub mod directory;
pub mod dispatcher;
pub mod failing_sync;
pub mod folder;
pub mod frames;
pub mod gateway;
pub mod haproxy;
pub mod http1;
pub mod http2;
pub mod http2_server;
pub mod issuer;
pub mod lines;
pub mod mailbox;
pub mod modelled;
pub mod nginx;
pub mod preloaded;
pub mod process;
pub mod promises;
pub mod real;
pub mod receiver;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod relay;
pub mod request;
pub mod response;
pub mod rng;
pub mod silent_dns;
pub mod survival;
pub mod tenants;
pub mod timestamp;
pub mod upstream;
pub mod wait;
pub mod world;

/// The locks of [`modelled`], at the path where the gateway has its own.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::{Mutex, MutexGuard};
}
