//! The store's own source, compiled a second time with a model checker's locks.
//!
//! `crate::sync` is loom's here and the standard library's in the gateway: what the interleaving
//! tests run is what ships, to the letter.

#[path = "../../gateway/src/limit.rs"]
pub mod limit;
