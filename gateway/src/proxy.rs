//! Pingora's phases of a request that is forwarded, one by one.
//!
//! Each phase is a short method that calls another file, and applies what it returns. The meaning
//! of the `bool`s that Pingora expects differs between phases; they are translated only here.
//!
//! # Not here
//!
//! What happens before (`arrival`), decisions (`admission`), texts of refusals (`refusal`), headers
//! (`report`, `forwarding`).

pub mod access_line;
pub mod arrival;
pub mod body;
pub mod buffering;
pub mod context;
pub mod failure;
pub mod forwarding;
pub mod respond;
pub mod response_head;
pub mod retry;
pub mod server_results;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::config::shared::Shared;
use crate::proxy::arrival::may_switch;
use crate::proxy::context::RequestContext;
use crate::request::upload;

/// The methods that Pingora calls.
pub struct Proxy {
    /// What all requests share.
    pub shared: Arc<Shared>,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Box<RequestContext>;

    fn new_ctx(&self) -> Box<RequestContext> {
        arrival::passed()
    }

    /// No modules: the one that Pingora would add compresses, which we never do.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn upstream_peer(
        &self,
        session: &mut Session,
        context: &mut Box<RequestContext>,
    ) -> Result<Box<HttpPeer>> {
        let upstream = context.upstream_of_route().ok_or_else(failure::no_server)?.clone();
        let now = self.shared.clock.now().tick;
        context.upstream.picked_at.get_or_insert(now);
        let pick = upstream.pick(&context.upstream.tried, now).ok_or_else(failure::no_server)?;
        if context.upstream.tried.is_full() {
            context.upstream.tried.remove(0);
        }
        context.upstream.tried.push(pick.address);
        context.upstream.server = Some(pick.server);
        context.upstream.failed = false;
        context.upstream.unconnected = false;
        context.body_bytes = 0;
        let switches = may_switch(&session.downstream_session);
        if switches {
            context.exchange.set_silence_max(upstream.settings.read_timeout, now);
        }
        let mut peer = upstream.peer(pick, switches);
        if !forwarding::has_hop_fields(&session.req_header().headers) {
            // Nothing to remove: looking for each field by itself costs 3 % of a request.
            peer.options.http_upstream_request_policy = HttpUpstreamRequestPolicy::preserve();
        }
        Ok(peer)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        context: &mut Box<RequestContext>,
    ) -> Result<()> {
        forwarding::to_upstream(session.req_header(), head, context)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        context: &mut Box<RequestContext>,
    ) -> Result<()> {
        context.body_bytes += body.as_ref().map_or(0, |body| body.len() as u64);
        // A tunnel is no body.
        let is_body = context.response.status != Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
        if is_body && context.body_bytes_max().is_some_and(|most| context.body_bytes > most) {
            return Err(failure::body_too_large());
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
        context: &mut Box<RequestContext>,
    ) -> Result<()> {
        forwarding::check_size(head)?;
        forwarding::unify_length(head)?;
        if response_head::is_interim(head.status) {
            response_head::count_interim(context)?;
            upload::invited();
            forwarding::end_hop(head, session.req_header().version);
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
            context.exchange.close();
        }
        context.response.status = Some(head.status.as_u16());
        context.upstream.answered_at = Some(self.shared.clock.now().tick);
        server_results::record_response_head(&self.shared, context, head.status);
        if head.status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(upstream) = context.upstream_of_route()
        {
            let now = self.shared.clock.now().tick;
            context.exchange.set_silence_max(upstream.settings.tunnel_timeout, now);
        }
        // The version is this hop's own, whatever the upstream speaks (RFC 9110, 2.5).
        head.set_version(Version::HTTP_11);
        if context.holds_slot() && response_head::has_no_body(&session.req_header().method, head) {
            context.release();
        }
        let client = session.req_header().version;
        forwarding::end_hop(head, client);
        forwarding::to_client(session.req_header(), head, context)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        _body: &mut Option<Bytes>,
        end: bool,
        context: &mut Box<RequestContext>,
    ) -> Result<Option<Duration>> {
        if end {
            context.release();
        }
        Ok(None)
    }

    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        context: &mut Box<RequestContext>,
    ) -> Result<Option<Bytes>> {
        context.release();
        forwarding::remove_limits(trailers);
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Box<RequestContext>,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // Nothing was sent: another server may be tried, whatever the method.
        let again = context.upstream.tried.len() < retry::tries(context);
        server_results::record_connect_failure(&self.shared, context, &error, again);
        error.set_retry(again);
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        context: &mut Box<RequestContext>,
        reused: bool,
    ) -> Box<Error> {
        context.upstream.sent = true;
        let facts = retry::AttemptFacts {
            reused,
            idempotent: session.req_header().method.is_idempotent(),
            replayable: !session.as_ref().retry_buffer_truncated(),
            begun: context.upstream.answered,
        };
        let tries = retry::tries_after(&error, facts, retry::tries(context));
        let again = retry::may_repeat(&error, facts) && context.upstream.tried.len() < tries;
        server_results::record_broken_connection(&self.shared, context, &error, again);
        let silent = context.exchange.was_silent();
        let is_fault = retry::is_fault(&error, facts) || (silent && !context.upstream.answered);
        // A server may give up a client that withholds its body, or waits for a `100 Continue`.
        if is_fault && !upload::is_owed() {
            server_results::record_failure(&self.shared, context);
        }
        // Pingora panics if the error is left at `RetryType::ReusedOnly`.
        error.set_retry(again);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        context: &mut Box<RequestContext>,
    ) -> FailToProxy {
        let error_code =
            respond::fail(&self.shared, &mut session.downstream_session, error, context).await;
        FailToProxy { error_code, can_reuse_downstream: false }
    }

    async fn logging(
        &self,
        session: &mut Session,
        error: Option<&Error>,
        context: &mut Box<RequestContext>,
    ) {
        respond::finish(&self.shared, &mut session.downstream_session, error, context).await;
    }

    fn suppress_error_log(
        &self,
        _session: &Session,
        _context: &Box<RequestContext>,
        _error: &Error,
    ) -> bool {
        true // The access log has it, without the query.
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Box<RequestContext>,
        _error: &Error,
        _what: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}
