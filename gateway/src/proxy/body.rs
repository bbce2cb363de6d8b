//! Reads the bodies of requests: all of a batch's, and away what is left of a refused one.
//!
//! # Invariants
//!
//! 1. What all buffered bodies take together has a limit, and so has the time that each takes.
//!
//! # Not here
//!
//! Counting (`batch`), playing a body to the upstream (`buffering`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorType, Result};

use crate::edge::connection::Connection;
use crate::proxy::retry;
use crate::request::body_budget::{BodyBudget, BudgetPermit};
use crate::response::refusal::Refusal;

/// An unread body up to this size is read away, so that the connection can be kept.
const DRAIN_BYTES_MAX: usize = 64 * 1024;

/// And for no longer than this.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// How a body may be read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of this body.
    pub bytes_max: u64,
    /// Bytes of all bodies held.
    pub buffered_bytes_max: u64,
    /// Until all of it is here.
    pub timeout: Duration,
}

/// A body that was read.
#[derive(Debug)]
pub struct BufferedBody {
    /// All of it.
    pub body: Bytes,
    /// What it takes of the budget.
    pub permit: BudgetPermit,
}

/// Why a body was not read.
#[derive(Debug)]
pub enum Unread {
    /// We say no.
    Refused(Refusal),
    /// The client is gone, or what it sends is no body.
    Broken(Box<Error>),
}

/// Reads a whole body.
///
/// The timeout is one for all of it: a batch that is charged now must not be saved up.
pub async fn read(
    session: &mut ServerSession,
    budget: &Arc<BodyBudget>,
    limits: Limits,
) -> Result<BufferedBody, Unread> {
    let whole = tokio::time::timeout(limits.timeout, read_all(session, budget, limits)).await;
    whole.unwrap_or(Err(Unread::Refused(Refusal::BodyTimeout)))
}

async fn read_all(
    session: &mut ServerSession,
    budget: &Arc<BodyBudget>,
    limits: Limits,
) -> Result<BufferedBody, Unread> {
    let too_large = || Unread::Refused(Refusal::BodyTooLarge { bytes_max: limits.bytes_max });
    if announced(session).is_some_and(|bytes| bytes > limits.bytes_max) {
        return Err(too_large());
    }
    invite_body(session).await.map_err(Unread::Broken)?;
    let mut permit = BudgetPermit::of(budget.clone());
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
            Ok(None)
                if Connection::of(session.stream()).is_some_and(Connection::has_broken_body) =>
            {
                return Err(Unread::Broken(retry::broken_body()));
            }
            Ok(None) => return Ok(BufferedBody { body: body.freeze(), permit }),
            Err(error) if *error.etype() == ErrorType::ReadTimedout => {
                return Err(Unread::Refused(Refusal::BodyTimeout));
            }
            Err(error) => return Err(Unread::Broken(error)),
        }
    }
}

/// Sends `100 Continue` to a client that waits for it: the upstream cannot, for it is called only
/// once the body is here.
async fn invite_body(session: &mut ServerSession) -> Result<()> {
    let expect = session.req_header().headers.get(http::header::EXPECT);
    let waits = expect.is_some_and(|e| e.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    // A client of HTTP/1.0 knows no interim answer, and expects none (RFC 9110, 10.1.1).
    if waits && session.req_header().version == http::Version::HTTP_11 {
        session.write_continue_response().await?;
        // Pingora takes this for an answer before the end of the body, and would close.
        session.set_keepalive(Some(0));
    }
    Ok(())
}

/// The `Content-Length`, where there is one.
fn announced(session: &ServerSession) -> Option<u64> {
    let value = session.req_header().headers.get(http::header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// Reads a small body away. Where it is not small, or slow, or waits for a `100 Continue` that
/// it will not get, the connection closes after the answer, or the stream of HTTP/2 is reset.
pub async fn drain(session: &mut ServerSession) {
    let waits = session.req_header().headers.contains_key(http::header::EXPECT);
    if session.is_body_done() || (waits && session.req_header().version != http::Version::HTTP_2) {
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
    // Out of time is as good as too large: either way the body is left where it is.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, drained).await;
}

/// Waits for a moment until the client has ended its stream of HTTP/2, or has learnt that it is
/// answered: no more is read, so that it runs out of room to send.
pub async fn await_end(session: &mut ServerSession) {
    if session.req_header().version == http::Version::HTTP_2 && !session.is_body_done() {
        // Out of time, the stream is reset, which says the same.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, session.read_body_or_idle(true)).await;
    }
}
