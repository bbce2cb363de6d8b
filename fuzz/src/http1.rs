//! The bytes of an HTTP/1 connection, with Pingora's own session as the oracle.

use std::io::Cursor;
use std::iter;

use bytes::BytesMut;
use pingora_core::protocols::http::v1::server::HttpSession;
use pingora_http::RequestHeader;
use tokio::io::AsyncReadExt as _;
use weir_gateway::admission::request_head::read_target;
use weir_gateway::edge::http1::body::Body;
use weir_gateway::edge::http1::head::{Parsed, parse};
use weir_gateway::edge::http1::piece::Piece;

/// The bytes of a connection: how they arrive does not matter, and Pingora's own session, which is
/// the oracle, reads the same request from those that are accepted.
pub fn head(data: &[u8]) {
    let whole = Sent::read(data, data.len().max(1));
    assert_eq!(whole, Sent::read(data, 3), "it depends on how the bytes arrive");
    assert_eq!(whole, Sent::read(data, 1), "it depends on how the bytes arrive");
    let Some(ours) = whole else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let oracle = runtime.unwrap().block_on(Sent::by_pingora(data, &ours));
    assert_eq!(oracle.as_ref(), Some(&ours), "the oracle reads something else");
}

/// A request whose head is accepted, and as much of its body as has been sent.
#[derive(Debug, PartialEq)]
struct Sent {
    head: Vec<String>,
    /// Whether the next request on the connection is read.
    keeps: bool,
    body: Vec<u8>,
    is_whole: bool,
    /// What follows it, where it is whole.
    rest: Vec<u8>,
}

impl Sent {
    /// Reads it with our own parser, from pieces of `size` bytes.
    fn read(data: &[u8], size: usize) -> Option<Self> {
        let mut pieces = data.chunks(size);
        let mut buffer = BytesMut::new();
        let head = loop {
            match parse(&mut buffer) {
                Parsed::Whole(head) => break head,
                Parsed::Partial => buffer.extend_from_slice(pieces.next()?),
                Parsed::TooManyFields | Parsed::NotHttp => return None,
            }
        };
        if head.malformed.is_some() || read_target(&head.request).is_err() {
            return None;
        }
        let (mut body, mut bytes) = (Body::new(head.framing), Vec::new());
        let is_whole = loop {
            match body.next(&mut buffer) {
                Piece::Data(piece) => bytes.extend_from_slice(&piece),
                Piece::End => break true,
                Piece::Broken => return None,
                Piece::Partial => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => break false,
                },
            }
        };
        pieces.for_each(|piece| buffer.extend_from_slice(piece));
        let rest = if is_whole { buffer.to_vec() } else { Vec::new() };
        Some(Self { head: lines(&head.request), keeps: head.keeps, body: bytes, is_whole, rest })
    }

    /// Reads it with Pingora's session. Where the client accepts that the connection is kept, so
    /// must the oracle; we may close more.
    async fn by_pingora(data: &[u8], ours: &Self) -> Option<Self> {
        let mut session = HttpSession::new(Box::new(Cursor::new(data.to_vec())));
        session.set_pipelining_enabled(true);
        session.read_request().await.ok()??;
        let head = lines(session.req_header());
        let keeps = session.will_keepalive() && ours.keeps;
        let mut body = Vec::new();
        let is_whole = loop {
            match session.read_body_bytes().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break session.is_body_done(),
                Err(_) => break false,
            }
        };
        // What the session has read beyond the request can only be had with a kept connection.
        session.set_server_keepalive(Some(0));
        let mut rest = Vec::new();
        if is_whole && let Ok(Some(stream)) = session.reuse().await {
            let (mut stream, prefix) = stream.into_parts();
            rest.extend_from_slice(&prefix.unwrap_or_default());
            stream.read_to_end(&mut rest).await.unwrap();
        } else if is_whole {
            rest.clone_from(&ours.rest);
        }
        Some(Self { head, keeps, body, is_whole, rest })
    }
}

fn lines(head: &RequestHeader) -> Vec<String> {
    let target = head.raw_path().escape_ascii();
    let fields = head.headers.iter();
    let fields = fields.map(|(name, value)| format!("{name}: {}", value.as_bytes().escape_ascii()));
    let line = format!("{} {target} {:?}", head.method, head.version);
    iter::once(line).chain(fields).collect()
}
