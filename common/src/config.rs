//! Settings files: read whole, every error with its place, and their schema; read again when they
//! change.

pub mod document;
pub mod file;
pub mod files;
pub mod reload;
pub mod server_keys;
pub mod watch;
