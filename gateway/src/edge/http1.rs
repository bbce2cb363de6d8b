//! Serves one client's HTTP/1 connection: reads a head, passes the request on, and again.
//!
//! Pingora's own loop has no deadline for a whole head, keeps an idle connection forever, repairs
//! malformed request lines, accepts malformed chunked bodies, and builds what only a forwarded
//! request needs before anybody may refuse it.
//!
//! # Invariants
//!
//! 1. One request at a time; the next head is read when the response has been sent.
//! 2. Where the next request starts is known, or the connection ends.
//! 3. A connection ends after `requests_max` requests, and on a stop after the one in progress.
//!
//! # Not here
//!
//! Reading and sending (`http1::buffered_connection`), a request's body and response
//! (`http1::session`), what happens to a request (`proxy`).

pub mod body;
mod buffered_connection;
mod chunks;
mod frames;
pub mod head;
pub mod piece;
mod response;
mod returned;
pub mod session;
mod traits;
mod tunnel;

use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::date::get_cached_date;
use tokio::sync::watch;

use crate::edge::connection::Connection;
use crate::edge::drain::wait_until_true;
use crate::edge::exchange::Exchange;
use crate::edge::http1::buffered_connection::{BufferedConnection, NoHead};
use crate::edge::http1::returned::{Returned, Slot, Then};
use crate::edge::http1::session::Http1Session;
use crate::edge::incoming::{Handler, Incoming};
use crate::request::upload::Upload;
use crate::response::reply::Reply;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http1Bounds {
    /// Time for a whole request head.
    pub head_timeout: Duration,
    /// Bytes of a request head.
    pub head_bytes_max: u64,
    /// Time without a request.
    pub idle_timeout: Duration,
    /// Requests in total.
    pub requests_max: u32,
}

/// What a connection needs beside its bytes.
pub struct Http1<H> {
    /// Handles each request.
    pub handler: Arc<H>,
    /// Defers a server's timeout while a body arrives.
    pub upload: Arc<Upload>,
    /// When true, a connection without a request ends.
    pub close_idle: watch::Receiver<bool>,
    /// When true, tunnels get a close frame.
    pub close_tunnels: watch::Receiver<bool>,
}

/// Serves a connection until it ends.
pub async fn serve<H: Handler>(mut http1: Http1<H>, connection: Connection, bounds: Http1Bounds) {
    let client = connection.client().clone();
    let upload = http1.upload.clone();
    let (buffer, outgoing) = (BytesMut::new(), Vec::new());
    let mut buffered = Box::new(BufferedConnection { connection, buffer, outgoing, upload });
    let mut cut = pin!(wait_until_true(&mut http1.close_idle));
    let slot = Slot::default();
    let mut served = 0_u32;
    loop {
        let head = match buffered.head(&bounds, cut.as_mut()).await {
            Ok(head) => head,
            Err(NoHead::Closed) => return,
            Err(NoHead::Idle) => return buffered.close().await,
            Err(NoHead::Refused(refusal)) => {
                let answer = http1.handler.refuse_unread(&client, &refusal).await;
                return answer_and_close(buffered, answer).await;
            }
        };
        served = served.saturating_add(1);
        let exchange = Arc::new(Exchange::default());
        if !head.keeps || served >= bounds.requests_max {
            exchange.close();
        }
        let (length, malformed) = (Some(head.length), head.malformed);
        let close_tunnels = http1.close_tunnels.clone();
        let session =
            Http1Session::new(buffered, head, slot.clone(), exchange.clone(), close_tunnels);
        let session = ServerSession::new_custom(Box::new(session));
        let client = client.clone();
        let arrived_at = None;
        let incoming = Incoming { session, exchange, client, length, arrived_at, malformed };
        http1.handler.handle(incoming).await;
        let returned = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Returned { buffered: back, then }) = returned else { return };
        buffered = back;
        match then {
            // A client that sends requests ahead waits for those of others in between.
            Then::Keep if !buffered.buffer.is_empty() => tokio::task::yield_now().await,
            Then::Keep => {}
            Then::Close | Then::Linger => {
                if then == Then::Linger || buffered.has_unread().await {
                    buffered.connection.leaves_body();
                }
                return buffered.close().await;
            }
            Then::BreakOff => return,
            Then::Reset => return buffered.connection.reset(),
        }
    }
}

/// Answers what is no request, and closes the connection. The client may still be sending.
async fn answer_and_close(mut buffered: Box<BufferedConnection>, answer: Reply) {
    let date = get_cached_date();
    buffered.outgoing = answer.to_http1(date.to_str().unwrap_or_default(), false, true);
    buffered.connection.leaves_body();
    buffered.close().await;
}
