//! weir-gateway: a reverse proxy that holds every tenant to its allowance, exactly.
//!
//! Areas stand in layers, the lowest first: each imports only from those above it in this list.
//! Files marked *(core)* in their first lines decide: they take values and return values, and
//! neither wait nor read the clock.

// Locks that the tests replace by a model checker's.
mod sync;

// Exact limits: quotas, keys, counters, boosts, snapshots.
pub mod limit;

// Metrics.
pub mod telemetry;

// What an operator may set, and its bounds.
pub mod settings;

// What a request is: target, route, batch, CORS.
pub mod request;

// Certificates and handshake settings.
pub mod tls;

// Servers: which one is tried, ejected, resolved.
pub mod upstream;

// What settings mean together: routes, plans, tenants, charges.
pub mod rules;

// Answers that the gateway gives itself, as values.
pub mod response;

// Who calls and which tenants there are: tokens, the tenant directory.
pub mod identity;

// The active configuration, and what all requests share.
pub mod config;

// One request: forward it, buffer it, or refuse it.
pub mod admission;

// Client connections: listeners, HTTP/1.1, HTTP/2.
pub mod edge;

// A request's way through Pingora's phases.
pub mod proxy;

// Beside requests: the admin listener, background tasks, persistence, upgrades.
pub mod operations;

// Builds and connects the parts.
pub mod app;

// The command line.
pub mod cli;
