//! The settings of `dispatcher.toml`: their types, and the parser.

pub mod read;
pub mod settings;
