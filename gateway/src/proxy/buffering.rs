//! Holds a batch's body back until it is counted, then plays it to the upstream.
//!
//! Pingora writes the head upstream before it shows us the first byte of a body, and replays no
//! more than 64 KiB. So the body is read first, and the session is wrapped in one whose body is
//! what was read; once the request is over the real session comes back, connection and all.
//!
//! # Invariants
//!
//! 1. An upstream sees no byte, not even a connection, of a body that is refused.
//! 2. The real session comes back, however the request ends.
//!
//! # Not here
//!
//! Reading a body (`body`), counting (`batch`), whether one is held at all (`rules`), the wrapper
//! (`session`).

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use pingora_core::protocols::http::ServerSession;

use crate::config::shared::Parts;
use crate::edge::session::{Slot, Wrapped};

/// Wraps `session` in one whose body is `body`. [`unwrap`] gives it back.
pub fn wrap(session: &mut ServerSession, body: Bytes, parts: &Arc<Parts>) -> Slot {
    let slot = Slot::default();
    let real = std::mem::replace(session, ServerSession::new_custom(Box::new(())));
    *session = Wrapped::held(real, body, slot.clone(), parts.clone());
    slot
}

/// Puts the real session back in the place of the one that [`wrap`] made.
pub fn unwrap(session: &mut ServerSession, slot: &Slot) {
    // Dropping the wrapper is what hands the real one over.
    *session = ServerSession::new_custom(Box::new(()));
    if let Some(real) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
        *session = *real;
    }
}
