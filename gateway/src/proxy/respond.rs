//! Sends a response of the gateway's own. Over HTTP/1.1 `Connection` writes it in place of Pingora.
//!
//! Invariant: where the next request on a connection starts is known: an unread body closes the
//! connection.
//!
//! Not here: the response itself (`response`), and the fields of every response (`forwarding`).

use http::{Method, Version, header};
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use crate::edge::connection::Connection;
use crate::proxy::body;
use crate::proxy::context::RequestContext;
use crate::response::reply::Reply;

/// Sends a reply. Keeps the connection if the request's body has been read to its end, unless the
/// reply closes it.
pub async fn send(
    mut reply: Reply,
    session: &mut Session,
    context: &mut RequestContext,
) -> Result<()> {
    reply.lines.push_str(&crate::proxy::forwarding::response_fields::lines(context));
    let with_body = session.req_header().method != Method::HEAD;
    if session.req_header().version == Version::HTTP_2 {
        return send_by_http2(reply, session, with_body).await;
    }
    if reply.closes {
        session.set_keepalive(None);
    } else {
        body::drain(&mut session.downstream_session).await;
    }
    let is_broken = Connection::of(session.stream()).is_some_and(Connection::has_broken_body);
    if is_broken || !session.downstream_session.is_body_done() {
        session.set_keepalive(None);
    }
    let Some(connection) = Connection::of(session.stream()) else {
        return Error::e_explain(ErrorType::InternalError, "no connection to answer on");
    };
    let keep = session.downstream_session.as_http1().is_some_and(|h1| h1.will_keepalive());
    let date = get_cached_date();
    context.response.bytes = if with_body { reply.body.len() } else { 0 };
    connection.answer(reply.to_http1(date.to_str().unwrap_or_default(), keep, with_body));
    Ok(())
}

/// Sends a reply on an HTTP/2 stream. Without a body the head ends the stream, which gRPC clients
/// require.
///
/// A small request body is read first here, too: some clients lose a response that arrives before
/// they have sent theirs.
async fn send_by_http2(reply: Reply, session: &mut Session, with_body: bool) -> Result<()> {
    let waits = session.req_header().headers.contains_key(header::EXPECT);
    if !reply.at_once && !waits {
        body::drain(&mut session.downstream_session).await;
    }
    let mut head = ResponseHeader::build_no_case(reply.status, Some(16))?;
    if let Some(length) = reply.length() {
        head.insert_header(header::CONTENT_LENGTH, length)?;
    }
    crate::proxy::forwarding::response_fields::add_text(&mut head, &reply.lines)?;
    let with_body = with_body && !reply.body.is_empty();
    let mut tasks = vec![HttpTask::Header(Box::new(head), !with_body)];
    tasks.extend(with_body.then(|| HttpTask::Body(Some(reply.body.into()), true)));
    session.downstream_session.response_duplex_vec(tasks).await.map(drop)
}

/// Ends a request that was answered before the end of its body, so that the client can still read
/// the response. Pingora would close the connection at once, or reset the HTTP/2 stream, which is
/// right (RFC 9113, 8.1), but makes some clients discard the response.
pub async fn close(session: &mut Session) {
    body::await_end(&mut session.downstream_session).await;
    let unread = !session.downstream_session.is_body_done();
    let closes = session.downstream_session.as_http1().is_some_and(|h1| !h1.will_keepalive());
    if let Some(connection) = Connection::of(session.stream()).filter(|_| unread && closes) {
        connection.leaves_body();
        session.downstream_session.shutdown().await;
    }
}
