//! Settings files: read whole, every mistake with its place, and their schema.

pub mod document;
pub mod file;
pub mod files;
