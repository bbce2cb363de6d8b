//! Client connections: listeners, handshakes, HTTP/1.1 connections and HTTP/2 streams.
//!
//! Not here: what happens to a request (`proxy`).

pub mod connection;
pub mod drain;
pub mod exchange;
pub mod http1;
pub mod http2;
pub mod incoming;
pub mod listener;
pub mod open_connection;
pub mod proxy_protocol;
pub mod session;
