//! Handles a request that has arrived: decides about it, and forwards or answers it.
//!
//! A request that is refused never reaches Pingora: it needs no upstream.
//!
//! Not here: the decision (`admission`), the phases of a forwarded request (`proxy`).

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Version, header};
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use pingora_core::{Error, Result};
use pingora_proxy::HttpProxy;

use crate::admission::{Admission, Arrival, admit};
use crate::config::shared::Shared;
use crate::edge::connection::Client;
use crate::edge::incoming::{Handler, Handling, Incoming};
use crate::proxy::Proxy;
use crate::proxy::body::{Unread, awaits_continue};
use crate::proxy::buffering;
use crate::proxy::context::RequestContext;
use crate::proxy::respond;
use crate::request::target::Malformed;
use crate::request::upload;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;

tokio::task_local! {
    /// The context of the request that this task passes to Pingora.
    static PASSED: Cell<Option<Box<RequestContext>>>;
}

/// The context that was passed with the current request.
pub(super) fn passed() -> Box<RequestContext> {
    let context = PASSED.try_with(Cell::take).ok().flatten();
    context.expect("requests reach Pingora only through `RequestHandler`, with their context")
}

/// Handles requests.
pub struct RequestHandler {
    /// Forwards them.
    pub pingora: Arc<HttpProxy<Proxy>>,
    /// What all requests share.
    pub shared: Arc<Shared>,
    /// Turns true when a stop has started.
    pub stop: ShutdownWatch,
}

impl Handler for RequestHandler {
    /// Boxed in place: `Box::pin` would copy kilobytes from the stack for each request, most of
    /// them not even set.
    fn handle(&self, incoming: Incoming) -> Handling<'_> {
        let place = Box::new_uninit();
        let handling = Box::write(place, self.process(incoming));
        Box::into_pin(handling)
    }

    fn refuse_unread<'h>(
        &'h self,
        client: &Client,
        refusal: &'h Refusal,
    ) -> Pin<Box<dyn Future<Output = Reply> + Send + 'h>> {
        let peer = client.peer;
        Box::pin(async move { respond::refusal_of_unread(&self.shared, peer, refusal).await })
    }
}

impl RequestHandler {
    async fn process(&self, incoming: Incoming) {
        let shared = &self.shared;
        let Incoming { mut session, exchange, client, length, arrived_at, malformed } = incoming;
        let place = Box::new_uninit();
        let mut context = Box::write(place, RequestContext::new(shared, client.peer, exchange));
        context.arrived_at = arrived_at.unwrap_or(context.started_at);
        context.facts.client.secure = client.is_secure;
        context.facts.client.certificate = client.certificate;
        begin(shared, &mut session, &context);
        match self.decide(&mut session, &mut context, (length, malformed)).await {
            Ok(true) => {
                let forwarded = self.pingora.process_new_http(session, &self.stop);
                // A session of ours leaves nothing for Pingora's next request.
                drop(PASSED.scope(Cell::new(Some(context)), forwarded).await);
            }
            Ok(false) => {
                respond::finish(shared, &mut session, None, &mut context).await;
                // A client that has gone needs no end.
                drop(session.finish_body().await);
            }
            Err(error) => {
                respond::fail(shared, &mut session, &error, &mut context).await;
                respond::finish(shared, &mut session, Some(&error), &mut context).await;
            }
        }
    }

    /// Whether to forward a request; otherwise it has been answered.
    async fn decide(
        &self,
        session: &mut ServerSession,
        context: &mut RequestContext,
        (length, malformed): (Option<usize>, Option<Malformed>),
    ) -> Result<bool, Box<Error>> {
        let shared = &self.shared;
        let arrival = Arrival {
            head: session.req_header(),
            length,
            malformed,
            started_at: context.started_at,
            nth: context.nth,
        };
        let admission = admit(shared, &context.config, arrival, &mut context.facts).await;
        context.end_admission(session.req_header());
        let refusal = match admission {
            Admission::Forward => return Ok(true),
            Admission::BufferBody(batch, charges) => {
                // Boxed, so that the future of other requests is smaller.
                match Box::pin(buffering::buffer(shared, session, context, (batch, charges))).await
                {
                    Ok(()) => return Ok(true),
                    Err(Unread::Refused(refusal)) => refusal,
                    Err(Unread::Broken(error)) => return Err(error),
                }
            }
            Admission::Answer(reply) => {
                context.response.status = Some(reply.status);
                respond::charge_answer(shared, context).await;
                respond::send(reply, session, context).await?;
                return Ok(false);
            }
            Admission::Refuse(refusal) => refusal,
        };
        respond::refuse(shared, session, context, refusal).await?;
        Ok(false)
    }
}

/// Sets how long the request's client may take, and whether its connection is kept.
fn begin(shared: &Shared, session: &mut ServerSession, context: &RequestContext) {
    if !shared.ready.load(Ordering::Relaxed) {
        // A stop has started: this connection closes after this response.
        context.exchange.close();
    }
    let body_timeout = context.config.settings.server.body_timeout;
    // A tunnel's client may be silent: no body is awaited.
    let switches = may_switch(session);
    session.set_read_timeout(Some(body_timeout).filter(|_| !switches));
    upload::begin(awaits_continue(session));
    if session.req_header().version == Version::HTTP_2 {
        // For a stream whose client opens no window; `Connection` times all other writes.
        session.set_write_timeout(Some(body_timeout));
    }
}

/// Whether a request asks to switch protocols, and has no body. One with a body is timed as any
/// other: a client that withholds its body must not count as a server's silence.
pub(super) fn may_switch(session: &ServerSession) -> bool {
    let headers = &session.req_header().headers;
    let has_body = || {
        let length = headers.get(header::CONTENT_LENGTH).map(|length| length.as_bytes());
        headers.contains_key(header::TRANSFER_ENCODING)
            || length.is_some_and(|length| length.iter().any(|digit| *digit != b'0'))
    };
    session.is_upgrade_req() && !has_body()
}
