//! What a request is: its target, route, batch and CORS facts. Values only.

// core
pub mod batch;
pub mod body_budget;
// core
pub mod client_address;
// core
pub mod cors;
// core
pub mod route;
// core
pub mod target;
pub mod upload;
