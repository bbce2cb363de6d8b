//! Identifies the caller and its tenants: tokens and the tenant directory.

pub mod auth;
pub mod directory;
pub mod fair_semaphore;
pub mod keyed_semaphore;
