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

use crate::admission::admit::CheckedRequest;
use crate::config::shared::Shared;
use crate::proxy::body::{self, BufferedBody, Unread};
use crate::proxy::context::{Replayed, RequestContext};
use crate::request::batch;
use crate::request::body_budget::{BodyOwner, BudgetPermit};
use crate::request::client_address::network_of;
use crate::response::refusal::Refusal;
use crate::rules::Batch;
use crate::rules::charges::Charges;

/// Reads a batch's body, counts its items, and prepares its replay to the upstream. Charges what
/// its limits charge by items; a body that is refused costs 1.
pub async fn buffer(
    shared: &Shared,
    session: &mut ServerSession,
    context: &mut RequestContext,
    (batch, charges): (Batch, Option<Box<Charges>>),
) -> Result<(), Unread> {
    let counted = count(shared, session, context, batch).await;
    if let Some(mut charges) = charges {
        let items = counted.as_ref().map_or(1, |(items, _)| (*items).max(1));
        charges.cost(u32::try_from(items).unwrap_or(u32::MAX));
        let (config, nth) = (&context.config, context.nth);
        let request = CheckedRequest { shared, config, now: shared.clock.now(), nth };
        let charged = request.charge(&mut charges, &mut context.facts.limits).await;
        // What is wrong with the body comes first: waiting would not help.
        if counted.is_ok() {
            charged.map_err(Unread::Refused)?;
        }
    }
    let (_, buffered) = counted?;
    let bytes = buffered.body.len();
    context.exchange.replay(buffered.body);
    context.buffered = Some(Replayed { bytes, permit: buffered.permit });
    Ok(())
}

/// Reads a batch's body, and counts its items.
async fn count(
    shared: &Shared,
    session: &mut ServerSession,
    context: &RequestContext,
    batch: Batch,
) -> Result<(u64, BufferedBody), Unread> {
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
    let permit = BudgetPermit::of(shared.body_budget.clone(), owner(context));
    let buffered = body::read(session, permit, limits).await?;
    let items_max = batch.items_max;
    let items = batch::count(&buffered.body, items_max)
        .map_err(|miscount| Unread::Refused(Refusal::Batch { miscount, items_max }))?;
    Ok((items, buffered))
}

/// Who answers for the memory that a body takes.
fn owner(context: &RequestContext) -> BodyOwner {
    let (tenant, client) = (&context.facts.tenant, &context.facts.client);
    match &tenant.workspace {
        Some(workspace) if tenant.has_entry => BodyOwner::Workspace(workspace.clone()),
        workspace => BodyOwner::Network(network_of(client.address), workspace.clone()),
    }
}
