//! Pingora's phases of a request, one by one: the table of contents of the gateway.
//!
//! Each phase is a short method that calls another file, and applies what it returns. The meaning
//! of the `bool`s that Pingora expects differs between phases; they are translated only here.
//!
//! # Not here
//!
//! Decisions (`admission`), texts of refusals (`refusal`), headers (`report`, `forwarding`).

pub mod access_line;
pub mod arrival;
pub mod body;
pub mod buffering;
pub mod context;
pub mod forwarding;
pub mod respond;
pub mod retry;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version, header};
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::admission::Admission;
use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::proxy::access_line::LineFacts;
use crate::proxy::body::Unread;
use crate::proxy::context::{InFlight, RequestContext};
use crate::request::target::Malformed;
use crate::request::upload;
use crate::response::grpc::{self, Dialect};
use crate::response::refusal::Refusal;

/// The methods that Pingora calls.
pub struct Proxy {
    /// What all requests share.
    pub shared: Arc<Shared>,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        let shared = &self.shared;
        let (id, nth) = shared.next_request();
        let in_flight = InFlight::new(&shared.metrics.in_flight);
        RequestContext::new(shared.clock.now(), shared.active.load_full(), id, nth, in_flight)
    }

    /// No modules: the one that Pingora would add compresses, which we never do.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(
        &self,
        session: &mut Session,
        context: &mut RequestContext,
    ) -> Result<()> {
        let requests_max = context.config.settings.server.caps.requests_per_connection_max;
        let mut is_last = !self.shared.ready.load(Ordering::Relaxed);
        if let Some(connection) = Connection::of(session.stream()) {
            connection.head_is_read(session.downstream_session.as_http1());
            is_last |= connection.requests() >= requests_max;
        }
        if is_last {
            session.set_keepalive(None);
        }
        let body_timeout = context.config.settings.server.body_timeout;
        // A tunnel's client may be silent: no body is awaited.
        let switches = may_switch(session);
        session.set_read_timeout(Some(body_timeout).filter(|_| !switches));
        upload::begin(session.req_header().headers.contains_key(header::EXPECT));
        if session.req_header().version == Version::HTTP_2 {
            // For a stream whose client opens no window; `Connection` times all other writes.
            session.set_write_timeout(Some(body_timeout));
        }
        Ok(())
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        context: &mut RequestContext,
    ) -> Result<bool> {
        let refusal = match arrival::decide(&self.shared, session, context).await {
            Admission::Forward => return Ok(false), // Pingora: go on.
            Admission::BufferBody(batch) => {
                match buffering::buffer(&self.shared, session, context, batch).await {
                    Ok(()) => return Ok(false),
                    Err(Unread::Refused(refusal)) => refusal,
                    Err(Unread::Broken(error)) => return Err(error),
                }
            }
            Admission::Preflight(reply) => {
                context.response.status = Some(reply.status);
                respond::send(reply, session, context).await?;
                return Ok(true);
            }
            Admission::Refuse(refusal) => refusal,
        };
        self.refuse(session, context, refusal).await?;
        Ok(true) // Pingora: an answer was written, stop here.
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        context: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        let upstream = context.upstream_of_route().ok_or_else(retry::no_server)?.clone();
        let now = self.shared.clock.now().tick;
        context.upstream.picked_at.get_or_insert(now);
        let pick = upstream.pick(&context.upstream.tried, now).ok_or_else(retry::no_server)?;
        if context.upstream.tried.is_full() {
            context.upstream.tried.remove(0);
        }
        context.upstream.tried.push(pick.address);
        context.upstream.server = Some(pick.server);
        context.upstream.failed = false;
        context.upstream.unconnected = false;
        let switches = may_switch(session);
        if let Some(connection) = Connection::of(session.stream()).filter(|_| switches) {
            connection.set_silence_max(upstream.settings.read_timeout, now);
        }
        Ok(upstream.peer(pick, switches))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        context: &mut RequestContext,
    ) -> Result<()> {
        forwarding::to_upstream(session.req_header(), head, context)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        _exchange: &mut RequestContext,
    ) -> Result<()> {
        if Connection::of(session.stream()).is_some_and(Connection::has_broken_body) {
            return Err(retry::broken_body());
        }
        // cloudflare/pingora#935: an empty last chunk would end a chunked body twice, and the
        // second end would be parsed as the start of the next request.
        if end && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        context: &mut RequestContext,
    ) -> Result<()> {
        forwarding::check_size(head)?;
        if retry::is_interim(head.status) {
            retry::interim(context)?;
            upload::invited();
            forwarding::remove_limits_of(head);
            return Ok(());
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS && !session.is_upgrade_req() {
            return Error::e_explain(
                ErrorType::InvalidHTTPHeader,
                "a 101 without a request for it",
            )
            .map_err(|error: Box<Error>| error.into_up());
        }
        if !self.shared.ready.load(Ordering::Relaxed) {
            // A stop has started: this connection closes after this response.
            session.set_keepalive(None);
        }
        context.response.status = Some(head.status.as_u16());
        context.upstream.answered_at = Some(self.shared.clock.now().tick);
        retry::answered(&self.shared, context, head.status);
        if head.status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(connection) = Connection::of(session.stream())
            && let Some(upstream) = context.upstream_of_route()
        {
            let now = self.shared.clock.now().tick;
            connection.set_silence_max(upstream.settings.tunnel_timeout, now);
            connection.follow_frames(session.downstream_session.as_http1(), head);
        }
        // The version is this hop's own, whatever the upstream speaks (RFC 9110, 2.5).
        head.set_version(Version::HTTP_11);
        let client = session.req_header().version;
        forwarding::end_hop(head, client);
        forwarding::to_client(Connection::of(session.stream()), client, head, context)
    }

    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        _exchange: &mut RequestContext,
    ) -> Result<Option<Bytes>> {
        forwarding::remove_limits(trailers);
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        context: &mut RequestContext,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // Nothing was sent: another server may be tried, whatever the method.
        let again = context.upstream.tried.len() < retry::tries(context);
        retry::unconnected(&self.shared, context, &error, again);
        error.set_retry(again);
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        context: &mut RequestContext,
        reused: bool,
    ) -> Box<Error> {
        context.upstream.sent = true;
        retry::connected(context);
        let facts = retry::AttemptFacts {
            reused,
            idempotent: session.req_header().method.is_idempotent(),
            replayable: !session.as_ref().retry_buffer_truncated(),
            begun: context.upstream.answered,
        };
        let tries = retry::tries_after(&error, facts, retry::tries(context));
        let again = retry::may_repeat(&error, facts) && context.upstream.tried.len() < tries;
        let silent = Connection::of(session.stream()).is_some_and(Connection::was_silent);
        if retry::is_fault(&error, facts) || (silent && !context.upstream.answered) {
            retry::failed(&self.shared, context);
        }
        // Pingora panics if the error is left at `RetryType::ReusedOnly`.
        error.set_retry(again);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        context: &mut RequestContext,
    ) -> FailToProxy {
        let silent = Connection::of(session.stream()).is_some_and(Connection::was_silent)
            && !context.upstream.answered;
        let broken = Connection::of(session.stream()).is_some_and(Connection::has_broken_body);
        let refusal = match broken {
            true => Some(Refusal::Malformed(Malformed::Framing)),
            false => retry::refusal(error, context, silent),
        };
        let of_server = matches!(refusal, Some(Refusal::BadGateway(_) | Refusal::GatewayTimeout))
            && !context.upstream.unconnected;
        if let Some(upstream) = context.upstream_of_route().filter(|_| of_server) {
            let failures = &self.shared.metrics.upstream_failures;
            failures.with_label_values(&[upstream.name.as_str(), "answer"]).inc();
        }
        let is_answer = |status: StatusCode| !retry::is_interim(status);
        let begun = session.response_written().is_some_and(|head| is_answer(head.status));
        if let Some(buffered) = context.buffered.take() {
            buffering::unwrap(&mut session.downstream_session, &buffered.slot);
        }
        let Some(refusal) = refusal.filter(|_| !begun) else {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        };
        let error_code = refusal.status();
        // Pingora closes the connection after a failure; the response announces that.
        session.set_keepalive(None);
        let mut written = self.refuse(session, context, refusal).await;
        if written.is_ok() {
            written = session.downstream_session.finish_body().await;
        }
        FailToProxy {
            error_code: if written.is_ok() { error_code } else { 0 },
            can_reuse_downstream: false,
        }
    }

    async fn logging(
        &self,
        session: &mut Session,
        error: Option<&Error>,
        context: &mut RequestContext,
    ) {
        if let Some(buffered) = context.buffered.take() {
            buffering::unwrap(&mut session.downstream_session, &buffered.slot);
        }
        retry::ended(&self.shared, context);
        let now = self.shared.clock.now();
        if let Some(connection) = Connection::of(session.stream()) {
            connection.request_is_over(now.tick);
        }
        let seconds = now.tick.since(context.started_at.tick).as_secs_f64();
        if let Some(meter) =
            context.facts.tenant.plane.and_then(|plane| context.config.planes.get(plane))
        {
            meter.count(context.response.status.unwrap_or(499), seconds);
        }
        if let Some(log) = &self.shared.access_log {
            log.add(&access_line::line(context, &LineFacts::of(session, error), now));
        }
        if error.is_none() || context.response.refusal.is_some() {
            respond::close(session).await; // An answer that broke off does not end in order.
        }
    }

    fn suppress_error_log(
        &self,
        _session: &Session,
        _exchange: &RequestContext,
        _error: &Error,
    ) -> bool {
        true // The access log has it, without the query.
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _exchange: &RequestContext,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}

impl Proxy {
    /// Sends a refusal in the client's protocol (HTTP or gRPC), with CORS lines for its page.
    async fn refuse(
        &self,
        session: &mut Session,
        context: &mut RequestContext,
        refusal: Refusal,
    ) -> Result<()> {
        self.shared.metrics.refusals.with_label_values(&[refusal.reason()]).inc();
        context.response.status = Some(refusal.status());
        let head = session.req_header();
        let dialect = Dialect::of(&head.method, &head.headers);
        let mut reply = dialect.map_or_else(|| refusal.reply(), |d| grpc::reply(d, &refusal));
        if let Some(cors) = context.cors(head) {
            let exposed = if dialect.is_some() { grpc::EXPOSED } else { &[] };
            reply.lines.push_str(&cors.lines(&head.headers, exposed));
        }
        reply.closes = refusal.closes();
        respond::send(reply, session, context).await?;
        context.response.refusal = Some(refusal);
        Ok(())
    }
}

/// Whether a request asks to switch protocols, and has no body. One with a body is timed as any
/// other: a client that withholds its body must not count as a server's silence.
fn may_switch(session: &Session) -> bool {
    let headers = &session.req_header().headers;
    let length = headers.get(header::CONTENT_LENGTH).map(|length| length.as_bytes());
    let has_body = headers.contains_key(header::TRANSFER_ENCODING)
        || length.is_some_and(|length| length.iter().any(|digit| *digit != b'0'));
    session.is_upgrade_req() && !has_body
}
