//! weir-dispatcher: accepts events, stores them, and delivers them, signed, to webhooks.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.
//! Files marked (core) decide: plain functions over plain values, without I/O and clocks.

// Webhooks, events, deliveries, attempts; retries, outcomes, health.
pub mod domain;

// The settings of dispatcher.toml.
pub mod config;

// A small thread pool for blocking work.
mod blocking_pool;

// Events and deliveries on disk.
pub mod store;

// Every metric, in one list.
pub mod metrics;

// The webhooks with the most failed attempts.
pub mod most_failed;

// Problem responses of every listener.
pub mod http_errors;

// The event catalogue: the types of events, and what their data may be.
pub mod catalogue;

// Which delivery starts next. (core)
pub mod scheduler;

// HTTP attempts: egress rules, signatures, transport.
pub mod delivery;

// Bearer tokens: authentication and authorisation.
pub mod auth;

// The active settings, catalogue, tokens and directory, replaced as one by a reload.
pub mod live_config;

// Mails to owners: outbox, SMTP, texts.
pub mod email;

// Commands to the worker.
pub mod mailbox;

// The event loop: runs the scheduler's actions.
pub mod worker;

// State shared by listeners and background tasks.
pub mod state;

// Accepts events.
pub mod ingest;

// The customers' API.
pub mod api;

// The customers' pages, which call the API in the same process.
pub mod dashboard;

// Redelivery jobs and retention.
pub mod maintenance;

// The admin listener.
pub mod admin;

// Builds and connects everything.
pub mod app;

// The command line.
pub mod cli;
