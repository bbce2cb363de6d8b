//! Errors of forwarding, and the refusals by which clients hear of them.
//!
//! # Not here
//!
//! Whether a request is sent again instead (`retry`), the texts (`refusal`), and how they are sent
//! (`respond`).

use pingora_core::{Error, ErrorSource, ErrorType};

use crate::admission;
use crate::edge::http1::session::BROKEN_BODY;
use crate::proxy::context::RequestContext;
use crate::request::target::Malformed;
use crate::response::refusal::{Refusal, UpstreamFailure};

/// The error where no server can be tried.
#[must_use]
pub fn no_server() -> Box<Error> {
    Error::explain(ErrorType::HTTPStatus(503), "no server is healthy")
}

/// The error of a body that turns out to be larger than its route accepts.
#[must_use]
pub fn body_too_large() -> Box<Error> {
    Error::explain(ErrorType::HTTPStatus(413), "a body that is too large").into_down()
}

/// The refusal for a failure; none where the client has disconnected. `silent` is set where a
/// server that was to switch protocols did not respond, which the client's connection times.
#[must_use]
pub fn refusal(error: &Error, context: &RequestContext, silent: bool) -> Option<Refusal> {
    if *error.etype() == ErrorType::HTTPStatus(413) {
        let bytes_max = context.body_bytes_max().unwrap_or_default();
        return Some(Refusal::BodyTooLarge { bytes_max });
    }
    match refusal_of(error) {
        None if silent => Some(Refusal::GatewayTimeout),
        Some(Refusal::NoServer { .. }) => {
            Some(admission::no_server(context.upstream_of_route().map(|upstream| &**upstream)))
        }
        Some(Refusal::BadGateway(_)) if context.upstream.unconnected && !context.upstream.sent => {
            Some(Refusal::BadGateway(UpstreamFailure::Unreachable))
        }
        refusal => refusal,
    }
}

fn refusal_of(error: &Error) -> Option<Refusal> {
    if *error.etype() == BROKEN_BODY {
        return Some(Refusal::Malformed(Malformed::Framing));
    }
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(503), _) => Some(Refusal::NoServer { retry_after: 1 }),
        (ErrorType::ReadTimedout, ErrorSource::Downstream) => Some(Refusal::BodyTimeout),
        (
            ErrorType::WriteError
            | ErrorType::ReadError
            | ErrorType::ConnectionClosed
            | ErrorType::H2Error
            | ErrorType::WriteTimedout,
            ErrorSource::Downstream,
        ) => None,
        (_, ErrorSource::Downstream) => Some(Refusal::NotHttp),
        (ErrorType::ReadTimedout | ErrorType::ConnectTimedout | ErrorType::WriteTimedout, _) => {
            Some(Refusal::GatewayTimeout)
        }
        (kind, ErrorSource::Upstream) => Some(Refusal::BadGateway(no_answer(kind))),
        _ => Some(Refusal::Internal),
    }
}

fn no_answer(kind: &ErrorType) -> UpstreamFailure {
    match kind {
        ErrorType::InvalidHTTPHeader | ErrorType::InvalidH2 | ErrorType::H2Downgrade => {
            UpstreamFailure::Invalid
        }
        _ => UpstreamFailure::BrokenOff,
    }
}
