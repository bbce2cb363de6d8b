//! Reads a batch's whole body, and discards the rest of a refused request's.
//!
//! # Invariants
//!
//! 1. The bytes of all buffered bodies together are limited, those of one workspace to what it
//!    leaves to others, and so is the time to read each.
//!
//! # Not here
//!
//! Counting (`batch`), replaying a body to the upstream (`buffering`).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorType, Result};

use crate::admission::announced;
use crate::request::body_budget::BudgetPermit;
use crate::response::refusal::Refusal;

/// An unread body up to this size is discarded, so that the connection can be kept.
const DRAIN_BYTES_MAX: usize = 64 * 1024;

/// How long to wait for an unread body, or for the end of a stream.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// The limits of a body that is buffered.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of this body.
    pub bytes_max: u64,
    /// Bytes of all buffered bodies.
    pub buffered_bytes_max: u64,
    /// Time until all of it has arrived.
    pub timeout: Duration,
}

/// A body that was read.
#[derive(Debug)]
pub struct BufferedBody {
    /// All of it.
    pub body: Bytes,
    /// Its share of the budget, released on drop.
    pub permit: BudgetPermit,
}

/// Why a body was not read.
#[derive(Debug)]
pub enum Unread {
    /// The request is refused.
    Refused(Refusal),
    /// The client has disconnected, or the body is malformed.
    Broken(Box<Error>),
}

/// Reads a whole body, whose bytes `permit` reserves as they come.
///
/// One timeout applies to all of it: a client must not save up batches that are charged already.
pub async fn read(
    session: &mut ServerSession,
    permit: BudgetPermit,
    limits: Limits,
) -> Result<BufferedBody, Unread> {
    let whole = tokio::time::timeout(limits.timeout, read_all(session, permit, limits)).await;
    whole.unwrap_or(Err(Unread::Refused(Refusal::BodyTimeout)))
}

async fn read_all(
    session: &mut ServerSession,
    mut permit: BudgetPermit,
    limits: Limits,
) -> Result<BufferedBody, Unread> {
    let too_large = || Unread::Refused(Refusal::BodyTooLarge { bytes_max: limits.bytes_max });
    if announced(session.req_header()).is_some_and(|bytes| bytes > limits.bytes_max) {
        return Err(too_large());
    }
    invite_body(session).await.map_err(Unread::Broken)?;
    let mut body = BytesMut::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(chunk)) => {
                if (body.len() + chunk.len()) as u64 > limits.bytes_max {
                    return Err(too_large());
                }
                if !permit.reserve(chunk.len() as u64, limits.buffered_bytes_max) {
                    return Err(Unread::Refused(Refusal::Busy));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(None) => return Ok(BufferedBody { body: body.freeze(), permit }),
            Err(error) if *error.etype() == ErrorType::ReadTimedout => {
                return Err(Unread::Refused(Refusal::BodyTimeout));
            }
            Err(error) => return Err(Unread::Broken(error)),
        }
    }
}

/// Sends `100 Continue` to a client that waits for it: the upstream cannot, since it is called only
/// once the body has arrived.
async fn invite_body(session: &mut ServerSession) -> Result<()> {
    let waits = awaits_continue(session);
    // HTTP/1.0 has no interim responses, and `Expect` is ignored (RFC 9110, 10.1.1).
    if waits && session.req_header().version == http::Version::HTTP_11 {
        session.write_continue_response().await?;
    }
    Ok(())
}

/// Whether the client waits for a `100 Continue` before it sends its body.
pub(super) fn awaits_continue(session: &ServerSession) -> bool {
    let expect = session.req_header().headers.get(http::header::EXPECT);
    expect.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Discards a small body. Where it is large or slow, or its client waits for a `100 Continue` that
/// it will not get, the connection closes after the response, or the HTTP/2 stream is reset.
pub async fn drain(session: &mut ServerSession) {
    if session.is_body_done() {
        return;
    }
    let waits = session.req_header().headers.contains_key(http::header::EXPECT);
    if waits && session.req_header().version != http::Version::HTTP_2 {
        return;
    }
    let drained = async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = session.read_request_body().await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES_MAX {
                return;
            }
        }
    };
    // On a timeout, as for a large body, the rest is left unread.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, drained).await;
}

/// Waits briefly until the client has ended its HTTP/2 stream, or has noticed the response: nothing
/// more is read, so that its window to send runs out.
pub async fn await_end(session: &mut ServerSession) {
    if session.req_header().version == http::Version::HTTP_2 && !session.is_body_done() {
        // After a timeout the stream is reset, which stops the client, too.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, session.read_body_or_idle(true)).await;
    }
}
