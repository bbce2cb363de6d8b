//! The admin listener of both programs.

pub mod browser;
