//! Requests of our own: to a server, whether it is well, and to the admin listener.
//!
//! One request, one connection, one deadline over all of it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use pingora_core::connectors::http::v1::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;

/// An answer's body is read up to this; what is beyond is of no use to us.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The method.
    pub method: &'r str,
    /// The `Host`.
    pub host: &'r str,
    /// Path and query.
    pub path: &'r str,
    /// The bearer token, where there is one.
    pub token: Option<&'r str>,
    /// The body.
    pub body: &'r [u8],
}

/// A `GET` of `/`, to be filled in.
pub const GET: Request<'static> =
    Request { method: "GET", host: "localhost", path: "/", token: None, body: b"" };

/// What is answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Asks, and waits for the whole answer no longer than `timeout`.
pub async fn call(address: SocketAddr, request: &Request<'_>, timeout: Duration) -> Result<Answer> {
    let answer = tokio::time::timeout(timeout, exchange(address, request)).await;
    answer.unwrap_or_else(|_| Error::e_explain(ErrorType::ReadTimedout, "no answer in time"))
}

async fn exchange(address: SocketAddr, request: &Request<'_>) -> Result<Answer> {
    let peer = HttpPeer::new(address, false, String::new());
    let (mut session, _) = Connector::new(None).get_http_session(&peer).await?;
    let mut head = RequestHeader::build(request.method, request.path.as_bytes(), Some(4))?;
    head.insert_header("Host", request.host)?;
    head.insert_header("Connection", "close")?;
    if let Some(token) = request.token {
        head.insert_header("Authorization", format!("Bearer {token}"))?;
    }
    if !request.body.is_empty() {
        head.insert_header("Content-Length", request.body.len())?;
    }
    session.write_request_header(Box::new(head)).await?;
    if !request.body.is_empty() {
        session.write_body(&Bytes::copy_from_slice(request.body)).await?;
    }
    session.finish_body().await?;
    session.read_response().await?;
    let status = session.resp_header().map_or(0, |head| head.status.as_u16());
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX {
        let Some(chunk) = session.read_body_bytes().await? else { break };
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, body })
}
