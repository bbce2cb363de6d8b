//! What a program writes down: its own log and lines of JSON.

pub mod events;
pub mod json_lines;
pub mod outlet;
pub mod visible;
