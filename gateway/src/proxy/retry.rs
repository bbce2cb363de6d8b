//! Decides whether a request that a server has failed is sent again.
//!
//! # Invariants
//!
//! 1. A request that may have been carried out is sent again only where its method allows that
//!    (RFC 9110, 9.2.2), never once the head of its response has come, and only with its whole
//!    body.
//! 2. A kept connection that is found closed does not count as a failure of its server.
//! 3. A kept connection that its server ends by a GOAWAY without an error uses up none of the
//!    configured tries, since the next kept connection may end the same way. A request that it did
//!    not process is sent again up to `TRIES_MAX` times.
//!
//! # Not here
//!
//! Which server is tried next (`upstream`), what is recorded of the one that failed
//! (`server_results`), and what the client is told (`failure`).

use pingora_core::{Error, ErrorSource, ErrorType, RetryType};
use weir_common::http_client::is_reset;

use crate::proxy::context::{RequestContext, TRIES_MAX};

/// The facts of a try that failed.
#[derive(Clone, Copy, Debug)]
pub struct AttemptFacts {
    /// Whether its connection had served another request before.
    pub reused: bool,
    /// Whether its method is idempotent.
    pub idempotent: bool,
    /// Whether its whole body can be sent again.
    pub replayable: bool,
    /// Whether a response has started.
    pub begun: bool,
}

/// What a server may have done with a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// Nothing: it reported that (RFC 9113, 8.7).
    Nothing,
    /// Perhaps all of it, though the connection had most likely closed before, or was closed by us.
    Perhaps,
    /// It failed the request.
    Failed,
}

fn done(error: &Error, reused: bool) -> Done {
    match (error.etype(), error.retry) {
        _ if is_excluded(error) => Done::Nothing,
        // A stream that was refused.
        (ErrorType::H2Error, RetryType::Decided(true)) => Done::Nothing,
        // cloudflare/pingora#979: these are marked for a retry, but the request was sent.
        (ErrorType::InvalidH2 | ErrorType::H2Downgrade, RetryType::Decided(true)) => Done::Perhaps,
        (_, RetryType::ReusedOnly) if reused => Done::Perhaps,
        // pingora marks only errors of reading so.
        (ErrorType::WriteError, _) if reused && was_closed(error) => Done::Perhaps,
        _ if was_ended_by_us(error) => Done::Perhaps,
        _ => Done::Failed,
    }
}

/// Whether a request is beyond the last one in its server's GOAWAY. h2 reports the GOAWAY to these
/// alone, and to requests that it has not sent; Pingora knows it without an error only.
fn is_excluded(error: &Error) -> bool {
    let cause = error.root_cause().downcast_ref::<h2::Error>();
    cause.is_some_and(|cause| cause.is_go_away() && cause.is_remote())
}

/// Whether what was written met a connection that its server had closed.
fn was_closed(error: &Error) -> bool {
    error.root_cause().downcast_ref().is_some_and(is_reset)
}

/// Whether our side ended an HTTP/2 connection, with all its requests, because some of them would
/// have cost too much memory: h2 counts responses in small frames that clients do not read, and
/// what arrives of responses that they cancelled.
fn was_ended_by_us(error: &Error) -> bool {
    error.root_cause().downcast_ref::<h2::Error>().is_some_and(|cause| {
        cause.is_go_away()
            && cause.is_library()
            && cause.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}

/// Whether a request that was sent may be sent again.
#[must_use]
pub fn may_repeat(error: &Error, facts: AttemptFacts) -> bool {
    let allowed = match done(error, facts.reused) {
        Done::Nothing => true,
        Done::Perhaps => facts.idempotent,
        Done::Failed => false,
    };
    allowed && facts.replayable && !facts.begun && *error.esource() == ErrorSource::Upstream
}

/// The configured number of tries for a request.
#[must_use]
pub fn tries(context: &RequestContext) -> usize {
    context.upstream_of_route().map_or(1, |upstream| upstream.settings.tries).min(TRIES_MAX)
}

/// The number of tries of a request after an error, where `set` are configured. A server that
/// refuses streams gets no more than those, since it may be overloaded.
#[must_use]
pub fn tries_after(error: &Error, facts: AttemptFacts, set: usize) -> usize {
    let reason = error.root_cause().downcast_ref().and_then(h2::Error::reason);
    let is_orderly = is_excluded(error) && reason == Some(h2::Reason::NO_ERROR);
    // A configuration of one try means that nothing is sent again.
    if is_orderly && facts.reused && set > 1 { TRIES_MAX } else { set }
}

/// Whether an error is the server's fault.
#[must_use]
pub fn is_fault(error: &Error, facts: AttemptFacts) -> bool {
    *error.esource() == ErrorSource::Upstream && done(error, facts.reused) == Done::Failed
}

#[cfg(test)]
mod tests {
    use std::io;

    use bytes::Bytes;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const SAFE: AttemptFacts =
        AttemptFacts { reused: true, idempotent: true, replayable: true, begun: false };

    fn error(kind: ErrorType, retry: RetryType) -> Box<Error> {
        let mut error = Error::new(kind).into_up();
        error.retry = retry;
        error
    }

    #[test]
    fn what_was_refused_unread_is_repeated_whatever_the_method() {
        let refused = error(ErrorType::H2Error, true.into());
        assert!(may_repeat(&refused, AttemptFacts { idempotent: false, reused: false, ..SAFE }));
        assert!(!may_repeat(&refused, AttemptFacts { replayable: false, ..SAFE }));
        assert!(!may_repeat(&refused, AttemptFacts { begun: true, ..SAFE }));
        assert!(!is_fault(&refused, SAFE));
    }

    /// The error of h2 for a request that its peer's GOAWAY excludes.
    async fn goaway_error(reason: h2::Reason) -> h2::Error {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut sender, connection) = h2::client::handshake(near).await.unwrap();
        let request = http::Request::get("http://control.test/").body(()).unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        // Empty SETTINGS, then GOAWAY with 0 as the last stream that was processed.
        far.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        far.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await.unwrap();
        far.write_all(&u32::from(reason).to_be_bytes()).await.unwrap();
        let (_, answer) = tokio::join!(connection, answer);
        answer.unwrap_err()
    }

    #[tokio::test]
    async fn only_a_kept_connection_that_ends_in_order_uses_up_no_try() {
        let refused = |cause: h2::Error, retry: bool| {
            let mut error = Error::because(ErrorType::H2Error, "", cause).into_up();
            error.retry = retry.into();
            error
        };
        let ended = refused(goaway_error(h2::Reason::NO_ERROR).await, true);
        assert_eq!(tries_after(&ended, SAFE, 3), TRIES_MAX);
        assert_eq!(tries_after(&ended, AttemptFacts { reused: false, ..SAFE }, 3), 3);
        assert_eq!(tries_after(&ended, SAFE, 1), 1);
        let angry = refused(goaway_error(h2::Reason::ENHANCE_YOUR_CALM).await, false);
        assert_eq!(tries_after(&angry, SAFE, 3), 3);
        assert!(may_repeat(&angry, AttemptFacts { idempotent: false, reused: false, ..SAFE }));
        assert!(!is_fault(&angry, SAFE));
        let busy = refused(h2::Reason::REFUSED_STREAM.into(), true);
        assert_eq!(tries_after(&busy, SAFE, 3), 3);
        let closed = error(ErrorType::ConnectionClosed, RetryType::ReusedOnly);
        assert_eq!(tries_after(&closed, SAFE, 3), 3);
    }

    /// Checks that a kept connection with this error was found closed.
    #[track_caller]
    fn check_found_closed(closed: &Error) {
        assert!(may_repeat(closed, SAFE));
        assert!(!may_repeat(closed, AttemptFacts { idempotent: false, ..SAFE }));
        assert!(!may_repeat(closed, AttemptFacts { reused: false, ..SAFE }));
        assert!(!may_repeat(closed, AttemptFacts { replayable: false, ..SAFE }));
        assert!(!may_repeat(closed, AttemptFacts { begun: true, ..SAFE }));
        assert!(!is_fault(closed, SAFE));
        assert!(is_fault(closed, AttemptFacts { reused: false, ..SAFE }));
    }

    #[test]
    fn a_kept_connection_found_closed_is_repeated_where_the_method_allows() {
        check_found_closed(&error(ErrorType::ConnectionClosed, RetryType::ReusedOnly));
    }

    #[test]
    fn a_kept_connection_that_breaks_as_the_request_is_written_was_closed() {
        let broken = |kind: io::ErrorKind| {
            let cause = io::Error::from(kind);
            Error::because(ErrorType::WriteError, "while writing body", cause).into_up()
        };
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
            check_found_closed(&broken(kind));
        }
        assert!(!may_repeat(&broken(io::ErrorKind::TimedOut), SAFE));
        let of_stream =
            Error::because(ErrorType::WriteError, "", h2::Error::from(h2::Reason::CANCEL));
        assert!(!may_repeat(&of_stream.into_up(), SAFE));
    }

    #[test]
    fn an_answer_that_is_no_http2_is_repeated_only_where_the_method_allows() {
        let invalid = error(ErrorType::InvalidH2, true.into());
        assert!(may_repeat(&invalid, SAFE));
        assert!(!may_repeat(&invalid, AttemptFacts { idempotent: false, ..SAFE }));
    }

    /// The error of h2 for a request whose connection it ends because of too many empty frames.
    async fn own_goaway() -> h2::Error {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (mut sender, connection) = h2::client::handshake(near).await.unwrap();
        let request = || http::Request::get("http://control.test/").body(()).unwrap();
        let (flooded, _) = sender.send_request(request(), true).unwrap();
        let (other, _) = sender.send_request(request(), true).unwrap();
        let server = async {
            let mut server = h2::server::handshake(far).await.unwrap();
            let (_, mut first) = server.accept().await.unwrap().unwrap();
            let mut body = first.send_response(http::Response::new(()), false).unwrap();
            (0..200).for_each(|_| body.send_data(Bytes::new(), false).unwrap());
            while server.accept().await.is_some() {}
        };
        let (_, _, other, ()) = tokio::join!(connection, flooded, other, server);
        other.unwrap_err()
    }

    #[tokio::test]
    async fn a_connection_that_we_ended_is_no_fault_of_its_server() {
        let ended = Error::because(ErrorType::H2Error, "", own_goaway().await).into_up();
        for reused in [false, true] {
            assert!(!is_fault(&ended, AttemptFacts { reused, ..SAFE }));
            assert!(may_repeat(&ended, AttemptFacts { reused, ..SAFE }));
            assert!(!may_repeat(&ended, AttemptFacts { reused, idempotent: false, ..SAFE }));
        }
    }

    #[test]
    fn what_timed_out_is_never_repeated_and_a_fault() {
        let late = error(ErrorType::ReadTimedout, false.into());
        assert!(!may_repeat(&late, SAFE));
        assert!(is_fault(&late, SAFE));
        assert!(!is_fault(&Error::new(ErrorType::ReadError).into_down(), SAFE));
    }
}
