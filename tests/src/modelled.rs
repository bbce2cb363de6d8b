//! The source of the limit store, compiled a second time with a model checker's locks.
//!
//! `crate::sync` is loom's here and the standard library's in the gateway: the interleaving
//! tests run exactly the shipped code.

#[path = "../../gateway/src/limit.rs"]
pub mod limit;
