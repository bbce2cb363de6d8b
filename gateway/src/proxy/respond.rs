//! Sends an answer of the gateway's own, in the place of Pingora where a connection of ours lies
//! below it.
//!
//! Invariant: what follows on a connection can be told apart: a body that was not read away closes
//! it.
//!
//! Not here: what the answer is (`response`), and which fields every answer has (`forwarding`).

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

/// Sends a reply, and keeps the connection where what follows on it can be told apart.
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

/// Sends it on a stream of HTTP/2, whose end stands in the head where there is no body:
/// clients of gRPC ask for that.
///
/// A small body is read first here, too: some clients lose track of an answer that comes before
/// they have sent one.
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

/// Ends an context whose answer came before the end of the body, so that the client can still read
/// the answer. Pingora would close the connection at once, or reset the stream of HTTP/2, which is
/// right (RFC 9113, 8.1), but makes some clients forget what they have just been told.
pub async fn close(session: &mut Session) {
    body::await_end(&mut session.downstream_session).await;
    let unread = !session.downstream_session.is_body_done();
    let closes = session.downstream_session.as_http1().is_some_and(|h1| !h1.will_keepalive());
    if let Some(connection) = Connection::of(session.stream()).filter(|_| unread && closes) {
        connection.leaves_body();
        session.downstream_session.shutdown().await;
    }
}
