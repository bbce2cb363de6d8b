//! A program's own log, and lines of JSON for other programs.

pub mod events;
pub mod json_lines;
pub mod limiter;
pub mod line;
pub mod outlet;
pub mod visible;
