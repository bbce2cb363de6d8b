//! The next part of a request's body.
//!
//! Not here: where it comes from (`http1::body`, `http1::chunks`).

use bytes::Bytes;

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of it.
    Data(Bytes),
    /// More must be read.
    Partial,
    /// It has ended.
    End,
    /// It is malformed: where the next request starts is unknown.
    Broken,
}
