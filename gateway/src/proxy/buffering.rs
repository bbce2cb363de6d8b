//! Buffers a batch's body until its items are counted, then replays it to the upstream.
//!
//! Pingora sends the head upstream before we see the first byte of a body, and replays at most
//! 64 KiB. So the body is read first, and the session is wrapped in one that returns this body.
//! When the request has ended, the real session is put back with its connection.
//!
//! # Invariants
//!
//! 1. For a body that is refused, no connection is opened and no byte sent to an upstream.
//! 2. The real session is put back, however the request ends.
//!
//! # Not here
//!
//! Reading a body (`body`), counting (`request::batch`), whether one is buffered at all (`rules`),
//! the wrapper (`edge::session`).

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use http::header;
use pingora_core::protocols::http::ServerSession;
use pingora_proxy::Session;

use crate::config::shared::Shared;
use crate::edge::session::{SessionOverride, Slot};
use crate::proxy::body::{self, Unread};
use crate::proxy::context::{Replayed, RequestContext};
use crate::request::batch;
use crate::response::refusal::Refusal;
use crate::rules::Batch;

/// Reads a batch's body, counts its items, and prepares its replay to the upstream.
pub async fn buffer(
    shared: &Arc<Shared>,
    session: &mut Session,
    context: &mut RequestContext,
    batch: Batch,
) -> Result<(), Unread> {
    let head = session.req_header();
    let mut codings = head.headers.get_all(header::CONTENT_ENCODING).iter();
    if !codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Unread::Refused(Refusal::EncodedBatch));
    }
    let mut types = head.headers.get_all(header::CONTENT_TYPE).iter();
    if !types.all(|media_type| batch::is_countable(media_type.as_bytes())) {
        return Err(Unread::Refused(Refusal::EncodedBatch));
    }
    let server = &context.config.settings.server;
    let limits = body::Limits {
        bytes_max: batch.bytes_max,
        buffered_bytes_max: server.caps.held_bytes_max,
        timeout: server.body_timeout,
    };
    let downstream = &mut *session.downstream_session;
    let buffered = body::read(downstream, &shared.body_budget, limits).await?;
    let items_max = batch.items_max;
    batch::count(&buffered.body, items_max)
        .map_err(|miscount| Unread::Refused(Refusal::Batch { miscount, items_max }))?;
    let bytes = buffered.body.len();
    let slot = wrap(downstream, buffered.body, shared);
    context.buffered = Some(Replayed { slot, bytes, permit: buffered.permit });
    Ok(())
}

/// Wraps `session` in one whose body is `body`. [`unwrap`] puts it back.
fn wrap(session: &mut ServerSession, body: Bytes, shared: &Arc<Shared>) -> Slot {
    let slot = Slot::default();
    let real = std::mem::replace(session, ServerSession::new_custom(Box::new(())));
    *session = SessionOverride::buffered(real, body, slot.clone(), shared.clone());
    slot
}

/// Replaces the session that [`wrap`] made by the real one.
pub fn unwrap(session: &mut ServerSession, slot: &Slot) {
    // Dropping the wrapper puts the real session into the slot.
    *session = ServerSession::new_custom(Box::new(()));
    if let Some(real) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
        *session = *real;
    }
}
