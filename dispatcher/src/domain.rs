//! Webhooks, events, deliveries and attempts, and the decisions about them. (core)
//!
//! Invariant: nothing here waits, reads a clock, or imports another area of the dispatcher.

pub mod attempt;
pub mod delivery;
pub mod event;
pub mod health;
pub mod id;
pub mod outcome;
pub mod public_id;
pub mod retry;
pub mod sensitive;
pub mod webhook;
