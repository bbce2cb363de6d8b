//! weir-dispatcher: takes events, keeps them, and delivers them, signed, to webhooks.
//!
//! The modules stand in the order in which an event meets them. Those marked *core* decide:
//! they take values and return values, and neither wait nor read the clock.

// The nouns.

// core
pub mod model;

// core
pub mod public_id;

// An event's way out.

pub mod serve;

pub mod auth;

pub mod api;

pub mod ingest;

pub mod store;

// core
pub mod seal;

// core
pub mod schedule;

// core
pub mod lanes;

pub mod worker;

// core
pub mod sign;

pub mod egress;

pub mod deliver;

// core
pub mod outcome;

// core
pub mod health;

pub mod mail;

pub mod sweep;

// What it goes by, and who may look.

// core
pub mod settings;

pub mod force;

mod check;

pub mod parts;

mod threads;

pub mod metrics;

pub mod admin;

pub mod app;

pub mod command;

pub mod listen;
