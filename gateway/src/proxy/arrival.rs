//! Passes a request whose head has been read to admission, with the facts of its connection.
//!
//! Not here: the decision (`admission`).

use std::sync::Arc;

use pingora_proxy::Session;

use crate::admission::{Admission, Arrival, admit};
use crate::config::shared::Shared;
use crate::edge::connection::Connection;
use crate::proxy::context::RequestContext;

/// Decides about a request that has arrived.
pub async fn decide(
    shared: &Shared,
    session: &mut Session,
    context: &mut RequestContext,
) -> Admission {
    let raw_head = session.downstream_session.as_http1().map(|h1| h1.get_headers_raw_bytes());
    let client = &mut context.facts.client;
    let repaired = match Connection::of(session.stream()) {
        Some(connection) => {
            client.peer = Some(connection.peer().ip());
            client.secure = connection.is_secure();
            client.certificate = connection.client_certificate().cloned();
            connection.was_repaired()
        }
        // An HTTP/2 request has no access to its connection, which is always TLS here.
        None => {
            client.peer = session.client_addr().and_then(|a| a.as_inet()).map(|a| a.ip());
            client.secure = true;
            // Not a digest: `edge::connection` puts the value of `Client-Cert` there.
            let digest = session.digest().and_then(|digest| digest.ssl_digest.as_ref());
            let shown = digest.and_then(|tls| String::from_utf8(tls.cert_digest.clone()).ok());
            client.certificate = shown.map(Arc::from);
            false
        }
    };
    let arrival = Arrival {
        head: session.req_header(),
        raw_head: raw_head.as_deref(),
        repaired,
        started_at: context.started_at,
        nth: context.nth,
    };
    admit(shared, &context.config, arrival, &mut context.facts).await
}
