//! The locks of this crate, in one place so that a model checker can replace them.
//!
//! They are the standard library's rather than parking_lot's: that saves a crate, and the model
//! checker's have the same interface.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
