//! Answers that the gateway gives itself, as values. Sending them is `proxy`'s.

pub mod grpc;
pub mod refusal;
pub mod reply;
