//! What an operator may set, and how `dispatcher.toml` is read.

// core
pub mod allowed_fields;
pub mod read;
// core
pub mod settings;
