//! One HTTP attempt: where it may go, how it is signed, what its end means.

pub mod classify;
pub mod client;
pub(crate) mod connection;
pub mod egress;
pub(crate) mod http_client;
pub(crate) mod pool;
pub(crate) mod read_limit;
// core
pub mod signature;
pub mod transport;
