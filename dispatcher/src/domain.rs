//! Webhooks, events, deliveries and attempts, and the decisions about them. (core)
//!
//! Invariant: nothing here waits, reads a clock, or imports another area of the dispatcher.

pub mod activity;
pub mod attempt;
pub mod challenge;
mod compact;
pub mod contrast;
pub mod delivery;
pub mod estimate;
pub mod event;
pub mod forecast;
pub mod health;
pub mod id;
pub mod mail_address;
pub mod masking;
pub mod operator_event;
pub mod outcome;
pub mod pace;
pub mod port;
pub mod public_id;
pub mod retry;
pub mod sensitive;
pub mod session;
pub mod trace;
pub mod transcript;
pub mod webhook;
