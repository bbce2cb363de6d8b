//! What both Weir programs use, and nothing that only one of them does.
//!
//! Areas stand in layers, the lowest first: each imports only from those above it in this list.

// The one place that reads a clock.
pub mod time;

// What fits an allowance: rolling windows, token buckets.
pub mod limit;

// Values with a fixed shape.
pub mod json;
pub mod problem;
pub mod secret;

// A program's own log, and lines of JSON that others read.
pub mod log;

// What a program counts.
pub mod metrics;

// Settings files: every value, and every error with its place; reloads.
pub mod config;

// Identifiers of tenants.
pub mod identifier;

// Who belongs to whom.
pub mod directory;

// HTTP/1.1 listeners, bounded.
pub mod http_server;

// The admin listener: health, metrics, the configuration, reloads.
pub mod admin;

// The command line: flags, printing, exit codes.
pub mod cli;

// What a process has from its system: signals, file descriptors.
pub mod rlimit;
pub mod signals;

// Whether a signed token holds.
pub mod token;
