//! What both Weir programs use, and nothing that only one of them does.
//!
//! `time` is the one place that reads a clock. `rolling` and `bucket` decide what fits an
//! allowance, `decision` is what they answer. `ids`, `secret` and `problem` are values with a
//! fixed shape. `reader` turns a settings file into values and every mistake in it into a line;
//! `directory` reads who belongs to whom, `files` what an operator names, `config_file` the first
//! of them, `json` what tokens hold and servers answer. `logging` writes the program's own log,
//! `lines` the lines that others read, both as `visible` JSON; `metrics` is what a program counts.
//! `signals` are what an operator sends, `browser` what only a page sends. `token` says whether a
//! signed token holds.

pub mod browser;
pub mod bucket;
pub mod config_file;
pub mod decision;
pub mod directory;
pub mod files;
pub mod ids;
pub mod json;
pub mod lines;
pub mod logging;
pub mod metrics;
pub mod problem;
pub mod reader;
pub mod rolling;
pub mod secret;
pub mod signals;
pub mod time;
pub mod token;
pub mod visible;
