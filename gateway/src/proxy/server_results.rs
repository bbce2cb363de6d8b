//! Records what a server did with a request: for its ejection, in the metrics and in the log.
//!
//! # Not here
//!
//! When a server is ejected (`upstream::ejection`), and whether an error is its fault (`retry`).

use std::io;

use http::StatusCode;
use log::Level;
use pingora_core::{Error, ErrorType};
use serde_json::json;
use weir_common::log::events;

use crate::config::shared::Shared;
use crate::proxy::context::RequestContext;
use crate::upstream::ejection::Change;
use crate::upstream::single_request;

/// Counts a failure of the upstream by its kind: `connect`, or `answer` after that.
pub fn count_failure(shared: &Shared, context: &RequestContext, kind: &str) {
    if let Some(upstream) = context.upstream_of_route() {
        let failures = &shared.metrics.upstream_failures;
        failures.with_label_values(&[upstream.name.as_str(), kind]).inc();
    }
}

/// Records that the server that was tried last failed the request.
pub fn record_failure(shared: &Shared, context: &mut RequestContext) {
    context.upstream.failed = true;
    let Some((upstream, pick)) = context.last_try() else { return };
    let change = upstream.failed(pick, shared.clock.now().tick);
    log_change(shared, context, change);
}

/// Records that connecting to the server that was tried last failed, and logs that unless another
/// try follows (`again`).
pub fn record_connect_failure(
    shared: &Shared,
    context: &mut RequestContext,
    error: &Error,
    again: bool,
) {
    context.upstream.unconnected = true;
    count_failure(shared, context, "connect");
    if !is_refused(error) {
        return;
    }
    record_unreachable(shared, context, error, again);
    record_failure(shared, context);
}

/// Whether connecting failed at the server, and not for a lack of sockets or ports of ours.
fn is_refused(error: &Error) -> bool {
    !matches!(error.etype(), ErrorType::SocketError | ErrorType::BindError)
}

/// Records that a connection to the server that was tried last failed after it was opened. One that
/// ends by a TLS alert counts as never opened: a server of TLS 1.3 refuses our certificate so.
pub fn record_broken_connection(
    shared: &Shared,
    context: &RequestContext,
    error: &Error,
    again: bool,
) {
    match is_tls_alert(error) {
        true => record_unreachable(shared, context, error, again),
        false => record_connected(context),
    }
}

/// Whether the server ended the connection by a TLS alert.
fn is_tls_alert(error: &Error) -> bool {
    let cause = error.root_cause();
    let of_http2 = || cause.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
    let of_socket = cause.downcast_ref::<io::Error>().or_else(of_http2);
    let of_tls = of_socket.and_then(io::Error::get_ref);
    let of_tls = of_tls.and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(of_tls, Some(rustls::Error::AlertReceived(_)))
}

/// Records that the server that was tried last accepts no connection, and logs that unless another
/// try follows (`again`).
fn record_unreachable(shared: &Shared, context: &RequestContext, error: &Error, again: bool) {
    let Some((upstream, pick)) = context.last_try() else { return };
    upstream.connected(pick, false);
    if !again && upstream.should_log(shared.clock.now().tick) {
        let fields = [
            ("upstream", json!(upstream.name)),
            ("address", json!(pick.address.to_string())),
            ("error", json!(single_request::cause(error))),
        ];
        events::event(Level::Warn, "upstream unreachable", &fields);
    }
}

/// Records that connecting to the server that was tried last succeeded.
fn record_connected(context: &RequestContext) {
    if let Some((upstream, pick)) = context.last_try() {
        upstream.connected(pick, true);
    }
}

/// Records the response head of the server that was tried last.
pub fn record_response_head(shared: &Shared, context: &mut RequestContext, status: StatusCode) {
    context.upstream.failed = false;
    context.upstream.answered = true;
    record_connected(context);
    let Some((upstream, pick)) = context.last_try() else { return };
    let is_gateway_error = matches!(status.as_u16(), 502..=504);
    if is_gateway_error && upstream.settings.ejection.gateway_errors {
        record_failure(shared, context);
    } else if upstream.is_ejected(pick) {
        // A server that works again returns now, and not at the end of a long response.
        let change = upstream.succeeded(pick);
        log_change(shared, context, change);
    }
}

/// Records the end of the request, as a success of its server unless that failed.
pub fn record_end(shared: &Shared, context: &RequestContext) {
    if !context.upstream.answered || context.upstream.failed {
        return;
    }
    if let Some((upstream, pick)) = context.last_try() {
        let change = upstream.succeeded(pick);
        log_change(shared, context, change);
    }
}

fn log_change(shared: &Shared, context: &RequestContext, change: Option<Change>) {
    let (Some(change), Some((upstream, pick))) = (change, context.last_try()) else { return };
    let Some(server) = upstream.servers.get(pick.server) else { return };
    let labels = [upstream.name.as_str(), server.name.as_str()];
    let of_server = [
        ("upstream", json!(upstream.name)),
        ("server", json!(server.name)),
        ("address", json!(pick.address.to_string())),
    ];
    match change {
        Change::Ejected(pause) => {
            shared.metrics.upstream_ejections.with_label_values(&labels).inc();
            let [upstream, server, address] = of_server;
            let fields = [upstream, server, address, ("seconds", json!(pause.as_secs_f64()))];
            events::event(Level::Warn, "upstream server ejected", &fields);
        }
        Change::Returned => {
            events::event(Level::Info, "upstream server returned", &of_server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_found_below_an_error_of_reading() {
        let of = |kind, cause: rustls::Error| {
            let cause = io::Error::new(io::ErrorKind::InvalidData, cause);
            is_tls_alert(&Error::because(kind, "reading a response", cause))
        };
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        assert!(of(ErrorType::ReadError, alert.clone()) && of(ErrorType::WriteError, alert));
        assert!(!of(ErrorType::ReadError, rustls::Error::DecryptError));
        assert!(!is_tls_alert(&Error::new(ErrorType::ConnectionClosed)));
    }
}
