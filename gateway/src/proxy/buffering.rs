//! Buffers a batch's body until its items are counted, then replays it to the upstream.
//!
//! Pingora sends the head upstream before we see the first byte of a body, and replays at most
//! 64 KiB. So the body is read before Pingora gets the request, whose session then returns it.
//!
//! Invariant: for a body that is refused, no connection is opened and no byte sent to an upstream.
//!
//! Not here: reading a body (`body`), counting (`request::batch`), whether one is buffered at all
//! (`rules`), returning it (`edge::exchange`).

use http::header;
use pingora_core::protocols::http::ServerSession;

use crate::config::shared::Shared;
use crate::proxy::body::{self, Unread};
use crate::proxy::context::{Replayed, RequestContext};
use crate::request::batch;
use crate::response::refusal::Refusal;
use crate::rules::Batch;

/// Reads a batch's body, counts its items, and prepares its replay to the upstream.
pub async fn buffer(
    shared: &Shared,
    session: &mut ServerSession,
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
    let buffered = body::read(session, &shared.body_budget, limits).await?;
    let items_max = batch.items_max;
    batch::count(&buffered.body, items_max)
        .map_err(|miscount| Unread::Refused(Refusal::Batch { miscount, items_max }))?;
    let bytes = buffered.body.len();
    context.exchange.replay(buffered.body);
    context.buffered = Some(Replayed { bytes, permit: buffered.permit });
    Ok(())
}
