//! Answers that the gateway gives itself, as values. Sending them is `proxy`'s.

// core
pub mod grpc;
// core
pub mod refusal;
pub mod reply;
