//! Settings files: their values, every error with its place, their schema; reloads when a file
//! changes.

pub mod certificates;
pub mod document;
pub mod file;
pub mod files;
pub mod reload;
pub mod server_keys;
pub mod shown_certificate;
pub mod trusted_url;
pub mod watch;
