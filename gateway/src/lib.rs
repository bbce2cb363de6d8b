//! weir-gateway: a reverse proxy that holds every tenant to its allowance, exactly.
//!
//! The modules stand in the order in which a request meets them. Those marked *core* decide:
//! they take values and return values, and neither wait nor read the clock.

// How it gets here.

pub mod listen;

// core
pub mod proxy_protocol;

pub mod tls;

pub mod wire;

pub mod http2;

// Its way through.

pub mod proxy;

pub mod exchange;

pub mod judge;

// core
pub mod target;

// core
pub mod route;

pub mod caller;

pub mod lookups;

// core
pub mod identify;

// core
pub mod rules;

pub mod limit;

// core
pub mod retention;

pub mod body;

// core
pub mod batch;

pub mod hold;

pub mod session;

pub mod upload;

// core
pub mod headers;

// core
pub mod cors;

// core
pub mod refuse;

// core
pub mod grpc;

pub mod reply;

pub mod relay;

pub mod upstream;

pub mod names;

pub mod attempt;

pub mod watch;

// What is told of it.

pub mod access_log;

pub mod metrics;

// core
pub mod top;

// What it is judged by, and who may look.

// core
pub mod settings;

pub mod force;

pub mod parts;

pub mod resume;

pub mod handover;

pub mod notify;

pub mod app;

pub mod admin;

pub mod client;

pub mod inquire;

pub mod command;

// core
pub mod explain;

mod sync;
