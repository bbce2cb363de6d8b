//! What both Weir programs use, and nothing that only one of them does.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.

// The allocator of both programs.
pub mod allocator;

// The one place that reads a clock.
pub mod time;

// Limits: rolling windows, token buckets, calendar periods, requests in flight.
pub mod limit;

// Values with a fixed shape.
pub mod json;
pub mod secret;

// A program's own log, and lines of JSON for other programs.
pub mod log;

// The most frequent of any number of keys.
pub mod heavy_hitters;

// The body of a refusal.
pub mod problem;

// Metrics.
pub mod metrics;

// Settings files: every value, and every error with its place; reloads.
pub mod config;

// Requests to servers that the operator configured.
pub mod http_client;

// Identifiers of tenants.
pub mod identifier;

// Organisation, plan and owners of each workspace; from a file, or over HTTP.
pub mod directory;

// HTTP/1.1 listeners with limits on connections, bytes and time.
pub mod http_server;

// Pages for browsers: files, headers, charts, forms.
pub mod pages;

// The admin listener: health, metrics, the configuration, reloads.
pub mod admin;

// The command line: flags, printing, exit codes.
pub mod cli;

// The operating system: signals, the limit of file descriptors.
pub mod rlimit;
pub mod signals;

// Verifies signed tokens.
pub mod token;

// Callers' access tokens: by the issuer's keys, or at the issuer.
pub mod identity;
