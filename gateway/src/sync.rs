//! The locks this crate takes, in one place so that a model checker can put its own here.
//!
//! They are the standard library's rather than parking_lot's: that is a crate fewer, and the model
//! checker's have the same interface.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
