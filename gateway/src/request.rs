//! What a request is: its target, route, batch and CORS facts. Values only.

pub mod batch;
pub mod body_budget;
pub mod client_address;
pub mod cors;
pub mod route;
pub mod target;
pub mod upload;
