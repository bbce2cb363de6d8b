//! Webhooks, events, deliveries and attempts: what they are and what follows for them.
//!
//! Invariant: nothing here waits, reads the clock, or imports another area.

// core
pub mod attempt;
// core
pub mod delivery;
// core
pub mod event;
// core
pub mod health;
// core
pub mod id;
// core
pub mod outcome;
// core
pub mod public_id;
// core
pub mod retry;
// core
pub mod sensitive;
// core
pub mod webhook;
