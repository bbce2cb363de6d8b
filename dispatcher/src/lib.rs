//! weir-dispatcher: takes events, keeps them, and delivers them, signed, to webhooks.
//!
//! Areas stand in layers, the lowest first: each imports only from those above it in this list.
//! Files marked *core* decide: they take values and return values, and neither wait nor read the
//! clock.

// Webhooks, events, deliveries, attempts; retries, outcomes, health.
pub mod domain;

// What an operator may set, and its bounds.
pub mod config;

// Threads of our own for work that blocks.
mod blocking_pool;

// Events and deliveries on disk.
pub mod store;

// Every metric, in one list.
pub mod metrics;

// Refusals of every listener.
pub mod http_errors;

// Which delivery starts next.
// core
pub mod scheduler;

// One HTTP attempt: egress rules, signature, outcome.
pub mod delivery;

// Bearer tokens: who may call, and for what.
pub mod auth;

// The active settings, tokens and directory, replaced as one by a reload.
pub mod live_config;

// Mails to owners: outbox, SMTP, texts.
pub mod email;

// The way to the worker.
pub mod mailbox;

// The loop: claim, send, record.
pub mod worker;

// What listeners and background tasks share.
pub mod state;

// Events come in.
pub mod ingest;

// What customers call.
pub mod api;

// Jobs, retention, files that change.
pub mod maintenance;

// Health, metrics, the configuration.
pub mod admin;

// Builds and connects everything.
pub mod app;

// The command line.
pub mod cli;
