//! A connection between two requests: who had it returns it, and says what becomes of it.
//!
//! Not here: which of these a request leads to (`http1::session`), what is then done (`http1`).

use std::sync::{Arc, Mutex};

use crate::edge::http1::buffered_connection::BufferedConnection;

/// Where a session puts its connection when it is dropped.
pub(super) type Slot = Arc<Mutex<Option<Returned>>>;

/// A connection whose request has ended.
pub(super) struct Returned {
    pub(super) buffered: Box<BufferedConnection>,
    pub(super) then: Then,
}

/// What becomes of a connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The next request.
    Keep,
    /// Its end, in order.
    Close,
    /// Its end, in order, while the client may still send the rest of a body.
    Linger,
    /// Its end at once, so that the client notices that the response is not whole.
    BreakOff,
    /// The same where the end of the connection would be that of the response.
    Reset,
}
