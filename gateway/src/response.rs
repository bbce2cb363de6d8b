//! Responses that the gateway itself generates, as values. `proxy` sends them.

pub mod grpc;
pub mod refusal;
pub mod reply;
