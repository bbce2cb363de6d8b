//! weir-gateway: a reverse proxy that enforces the limits of every tenant, exactly.
//!
//! Areas stand in layers, the lowest first: each imports only from those earlier in this list.
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

// Servers of upstreams: selection, ejection, resolution.
pub mod upstream;

// Rules that settings result in: routes, plans, tenants, charges.
pub mod rules;

// Responses of the gateway's own, as values.
pub mod response;

// Identity of callers and tenants: tokens, the tenant directory.
pub mod identity;

// The active configuration, and what all requests share.
pub mod config;

// One request: forward it, buffer it, or refuse it.
pub mod admission;

// Client connections: listeners, HTTP/1.1, HTTP/2.
pub mod edge;

// Pingora's phases of a request.
pub mod proxy;

// Operations: the admin listener, background tasks, persistence, upgrades.
pub mod operations;

// Builds and connects the parts.
pub mod app;

// The command line.
pub mod cli;
