//! HTTP attempts: allowed addresses, signatures, transport, outcomes.

pub mod classify;
pub mod client;
pub(crate) mod client_certificate;
pub mod connection;
pub mod egress;
pub(crate) mod http_client;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod read_limit;
pub mod recording;
pub mod signature;
pub(crate) mod source_address;
pub mod transport;
