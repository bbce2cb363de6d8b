//! weir-gateway: a reverse proxy that holds every tenant to its allowance, exactly.
//!
//! The modules stand in the order in which a request meets them. Those marked *(core)* decide:
//! they take values and return values, and neither wait nor read the clock.

// How it gets here.
pub mod listen;
pub mod wire;

// Its way through.
pub mod exchange;
pub mod judge;
pub mod proxy;
// (core)
pub mod target;
// (core)
pub mod route;
// (core)
pub mod identify;
// (core)
pub mod limit;
pub mod rules;
// (core)
pub mod batch;
pub mod body;
pub mod hold;
// (core)
pub mod headers;
// (core)
pub mod refuse;
pub mod relay;
pub mod upstream;
pub mod watch;

// What is told of it.
pub mod access_log;
pub mod metrics;
pub mod top;

// What it is judged by, and who may look.
pub mod admin;
pub mod app;
pub mod client;
pub mod command;
pub mod explain;
pub mod force;
pub mod parts;
pub mod resume;
// (core)
pub mod settings;
mod sync;
