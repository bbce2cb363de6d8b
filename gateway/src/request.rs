//! Reads a request: its target, route, batch, cookies, CORS headers, client address and progress of
//! its upload.

pub mod batch;
pub mod body_budget;
pub mod client_address;
pub mod cookies;
pub mod cors;
pub mod escapes;
pub mod framing;
pub mod full_width;
pub mod route;
pub mod target;
pub mod upload;
