//! The write-ahead log: whose it is, how large it grows, when it is checkpointed.

pub(super) mod checkpointer;
pub(super) mod limit;
pub(super) mod owner;
pub(super) mod reader_gate;
