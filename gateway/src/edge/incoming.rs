//! A request that has arrived, over whatever version of HTTP, and what handles it.
//!
//! Not here: how it arrived (`http1`, `http2`), what happens to it (`proxy`).

use std::pin::Pin;
use std::sync::Arc;

use pingora_core::protocols::http::ServerSession;
use weir_common::time::Moment;

use crate::edge::connection::Client;
use crate::edge::exchange::Exchange;
use crate::request::target::Malformed;
use crate::response::refusal::Refusal;
use crate::response::reply::Reply;

/// A request whose head has been read.
pub struct Incoming {
    /// The request, its body and its response.
    pub session: ServerSession,
    /// What the phases of the request set for the session.
    pub exchange: Arc<Exchange>,
    /// Who sent it.
    pub client: Client,
    /// The length of its head as received, over HTTP/1.
    pub length: Option<usize>,
    /// When it arrived, if it has waited for a permit since then.
    pub arrived_at: Option<Moment>,
    /// Why it is refused, if two parsers could read it differently.
    pub malformed: Option<Malformed>,
}

/// The work on one request.
pub type Handling<'h> = Pin<Box<dyn Future<Output = ()> + Send + 'h>>;

/// Handles requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request.
    fn handle(&self, incoming: Incoming) -> Handling<'_>;

    /// The answer to what is no request.
    fn refuse_unread<'h>(
        &'h self,
        client: &Client,
        refusal: &'h Refusal,
    ) -> Pin<Box<dyn Future<Output = Reply> + Send + 'h>>;
}
