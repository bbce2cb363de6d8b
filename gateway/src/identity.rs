//! Identifies the caller and its tenants: tokens and the tenant directory.

pub mod auth;
pub mod directory;
pub mod http_client;
mod log_limiter;
