//! The locks this crate takes, in one place so that a model checker can put its own here.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
