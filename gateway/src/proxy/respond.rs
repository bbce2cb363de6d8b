//! Ends requests: with a response of the gateway's own, and with a line in the access log.
//!
//! # Invariants
//!
//! 1. Where the next request on a connection starts is known: an unread body closes the connection.
//! 2. Every response of the gateway's own shows a limit, unless its route is exempt.
//!
//! Not here: the response itself (`response`), and the fields of every response (`forwarding`).

use std::net::IpAddr;

use http::{Method, StatusCode, Version, header};
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::protocols::http::{HttpTask, ServerSession};
use pingora_core::{Error, Result};
use pingora_http::ResponseHeader;

use crate::admission::admit::CheckedRequest;
use crate::admission::facts::LimitFacts;
use crate::config::shared::Shared;
use crate::limit::report::Report;
use crate::proxy::access_line::{self, LineFacts};
use crate::proxy::context::RequestContext;
use crate::proxy::forwarding::response_fields;
use crate::proxy::{body, failure, response_head, server_results};
use crate::response::grpc::{self, Dialect};
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;

/// Sends a refusal in the client's protocol (HTTP or gRPC), with CORS lines for its page.
pub async fn refuse(
    shared: &Shared,
    session: &mut ServerSession,
    context: &mut RequestContext,
    refusal: Refusal,
) -> Result<()> {
    shared.count_refusal(&refusal);
    // Where the process with the counters is gone, so are these; of a shared store that is away
    // each gateway has a share.
    if refusal != Refusal::LimitsUnavailable || shared.limiter.shared.is_some() {
        charge_answer(shared, context).await;
    }
    context.response.status = Some(refusal.status());
    let head = session.req_header();
    let dialect = Dialect::of(&head.method, &head.headers);
    let mut reply = dialect.map_or_else(|| refusal.reply(), |d| grpc::reply(d, &refusal));
    reply.lines.push_str(&context.cors_lines(head).unwrap_or_default());
    reply.closes = refusal.closes();
    send(reply, session, context).await?;
    context.response.refusal = Some(refusal);
    Ok(())
}

/// Charges `limits.refused` for a response of the gateway's own, which then shows it: where the
/// request has met no other limit, and its route is not exempt.
pub async fn charge_answer(shared: &Shared, context: &mut RequestContext) {
    let rules = &context.config.rules;
    let route = context.facts.tenant.route.and_then(|index| rules.routes.get(index));
    let is_exempt = route.is_some_and(|route| route.exempt);
    if is_exempt || context.facts.limits.report != Report::default() {
        return;
    }
    // The request may have waited for this answer.
    let (now, nth) = (shared.clock.now(), context.nth);
    let request = CheckedRequest { shared, config: &context.config, now, nth };
    request.charge_refusal(context.facts.client.address, &mut context.facts.limits).await;
}

/// The answer to what `peer` has sent and is no request.
pub async fn refusal_of_unread(shared: &Shared, peer: IpAddr, refusal: &Refusal) -> Reply {
    shared.count_refusal(refusal);
    let (config, now) = (shared.active.load_full(), shared.clock.now());
    let (_, nth) = shared.next_request();
    let mut facts = LimitFacts::default();
    let checked = CheckedRequest { shared, config: &config, now, nth };
    checked.charge_refusal(peer, &mut facts).await;
    let mut reply = refusal.reply();
    response_fields::push_limit_lines(&mut reply.lines, &facts, &config.rules);
    reply
}

/// Answers a request that failed with `error`, unless its response has begun. Returns the status
/// that was sent; 0 if there was none.
pub async fn fail(
    shared: &Shared,
    session: &mut ServerSession,
    error: &Error,
    context: &mut RequestContext,
) -> u16 {
    let silent = context.exchange.was_silent() && !context.upstream.answered;
    let refusal = failure::refusal(error, context, silent);
    let of_server = matches!(refusal, Some(Refusal::BadGateway(_) | Refusal::GatewayTimeout))
        && !context.upstream.unconnected;
    if of_server {
        server_results::count_failure(shared, context, "answer");
    }
    let is_answer = |status: StatusCode| !response_head::is_interim(status);
    let begun = session.response_written().is_some_and(|head| is_answer(head.status));
    let Some(refusal) = refusal.filter(|_| !begun) else { return 0 };
    let status = refusal.status();
    // The connection closes after a failure; the response announces that.
    context.exchange.close();
    let mut written = refuse(shared, session, context, refusal).await;
    if written.is_ok() {
        written = session.finish_body().await;
    }
    if written.is_ok() { status } else { 0 }
}

/// Records the end of a request, and logs it.
pub async fn finish(
    shared: &Shared,
    session: &mut ServerSession,
    error: Option<&Error>,
    context: &mut RequestContext,
) {
    context.buffered = None;
    server_results::record_end(shared, context);
    let now = shared.clock.now();
    let seconds = now.tick.since(context.arrived_at.tick).as_secs_f64();
    if let Some(meter) =
        context.facts.tenant.plane.and_then(|plane| context.config.planes.get(plane))
    {
        meter.count(context.response.status.unwrap_or(499), seconds);
    }
    if let Some(log) = &shared.access_log {
        log.add(&access_line::line(context, &LineFacts::of(session, error), now));
    }
    if error.is_none() || context.response.refusal.is_some() {
        body::await_end(session).await; // A response that broke off does not end in order.
    }
}

/// Sends a reply. Keeps the connection if the request's body has been read to its end, unless the
/// reply closes it.
pub async fn send(
    mut reply: Reply,
    session: &mut ServerSession,
    context: &mut RequestContext,
) -> Result<()> {
    response_fields::push_lines(&mut reply.lines, context);
    context.release();
    let with_body = session.req_header().method != Method::HEAD;
    if session.req_header().version == Version::HTTP_2 {
        // Boxed, so that the future of HTTP/1 is smaller.
        return Box::pin(send_by_http2(reply, session, with_body)).await;
    }
    if reply.closes {
        context.exchange.close();
    } else {
        body::drain(session).await;
    }
    if !session.is_body_done() {
        context.exchange.close();
    }
    let date = get_cached_date();
    context.response.bytes = if with_body { reply.body.len() } else { 0 };
    let keep = !context.exchange.closes();
    // Finishing the session writes it.
    let response = reply.to_http1(date.to_str().unwrap_or_default(), keep, with_body);
    context.exchange.set_response(response);
    Ok(())
}

/// Sends a reply on an HTTP/2 stream. Without a body the head ends the stream, which gRPC clients
/// require.
///
/// A small request body is read first here, too: some clients lose a response that arrives before
/// they have sent theirs.
async fn send_by_http2(reply: Reply, session: &mut ServerSession, with_body: bool) -> Result<()> {
    let waits = session.req_header().headers.contains_key(header::EXPECT);
    if !reply.at_once && !waits {
        body::drain(session).await;
    }
    let mut head = ResponseHeader::build_no_case(reply.status, Some(16))?;
    if let Some(length) = reply.length() {
        head.insert_header(header::CONTENT_LENGTH, length)?;
    }
    response_fields::add_text(&mut head, &reply.lines)?;
    let with_body = with_body && !reply.body.is_empty();
    let mut tasks = vec![HttpTask::Header(Box::new(head), !with_body)];
    tasks.extend(with_body.then(|| HttpTask::Body(Some(reply.body.into()), true)));
    session.response_duplex_vec(tasks).await.map(drop)
}
