//! The write-ahead log (WAL): its checkpoints, its size limit, the database that it belongs to.

pub(super) mod checkpointer;
pub(super) mod limit;
pub(super) mod owner;
pub(super) mod reader_gate;
