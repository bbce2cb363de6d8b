//! Single requests that the gateway itself sends: health checks, and the command line's calls to
//! the admin listener.
//!
//! Each has a connection of its own, and one deadline over all of it.
//!
//! Not here: requests to identity servers and directories (`weir_common::http_client`).

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, OrErr, Result};
use pingora_http::RequestHeader;

/// A body is read up to about this size; the rest is ignored.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    pub method: &'r str,
    pub host: &'r str,
    /// Path and query.
    pub path: &'r str,
    /// The bearer token, where there is one.
    pub token: Option<&'r str>,
    pub body: &'r [u8],
}

/// A `GET` of `/`, as a base for other requests.
pub const GET: Request<'static> =
    Request { method: "GET", host: "localhost", path: "/", token: None, body: b"" };

/// The response to a request.
#[derive(Clone, Debug)]
pub struct ServerResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Sends a request over HTTP/1.1 without TLS, and waits up to `timeout` for the whole response.
pub async fn call(
    address: SocketAddr,
    request: &Request<'_>,
    timeout: Duration,
) -> Result<ServerResponse> {
    let peer = HttpPeer::new(address, false, String::new());
    send(&Connector::new(None), &peer, request, timeout).await
}

/// Sends a request to `peer`, and waits up to `timeout` for the whole response.
pub async fn send(
    connector: &Connector,
    peer: &HttpPeer,
    request: &Request<'_>,
    timeout: Duration,
) -> Result<ServerResponse> {
    let answer = tokio::time::timeout(timeout, exchange(connector, peer, request)).await;
    answer.unwrap_or_else(|_| Error::e_explain(ErrorType::ReadTimedout, "no answer in time"))
}

/// Why there is no response, in words for an operator: Pingora's own messages are repetitive.
#[must_use]
pub fn cause(error: &Error) -> String {
    let cause = error.root_cause();
    match (cause.downcast_ref::<io::Error>(), error.etype()) {
        (Some(why), _) if why.raw_os_error().is_none() => why.to_string(),
        (Some(why), ErrorType::ConnectError) => why.to_string(),
        (Some(why), _) => why.kind().to_string(),
        (None, ErrorType::ConnectRefused) => "connection refused".to_owned(),
        (None, ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout) => {
            "no connection in time".to_owned()
        }
        (None, ErrorType::ReadTimedout) => "no answer in time".to_owned(),
        (None, ErrorType::ConnectionClosed) => "closed without an answer".to_owned(),
        (None, kind) => match &error.context {
            Some(context) => format!("{}: {}", kind.as_str(), context.as_str()),
            None => kind.as_str().to_owned(),
        },
    }
}

async fn exchange(
    connector: &Connector,
    peer: &HttpPeer,
    request: &Request<'_>,
) -> Result<ServerResponse> {
    let (mut session, _) = connector.get_http_session(peer).await?;
    let mut head = RequestHeader::build(request.method, request.path.as_bytes(), Some(4))?;
    if session.as_http1().is_some() {
        head.insert_header("Host", request.host)?;
        head.insert_header("Connection", "close")?;
    } else {
        // HTTP/2 has the host in `:authority`, and some servers refuse a second `Host`.
        let scheme = if peer.is_tls() { "https" } else { "http" };
        let target = Uri::builder().scheme(scheme).authority(request.host);
        let target = target.path_and_query(request.path).build();
        head.set_uri(target.or_err(ErrorType::InvalidHTTPHeader, "the target of a request")?);
    }
    if let Some(token) = request.token {
        head.insert_header("Authorization", format!("Bearer {token}"))?;
    }
    if !request.body.is_empty() {
        head.insert_header("Content-Length", request.body.len())?;
    }
    session.write_request_header(Box::new(head)).await?;
    if !request.body.is_empty() {
        session.write_request_body(Bytes::copy_from_slice(request.body), false).await?;
    }
    session.finish_request_body().await?;
    session.read_response_header().await?;
    let status = session.response_header().map_or(0, |head| head.status.as_u16());
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX {
        let Some(chunk) = session.read_response_body().await? else { break };
        body.extend_from_slice(&chunk);
    }
    Ok(ServerResponse { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_connection_is_described_in_two_words() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let error = call(address, &GET, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(cause(&error), "connection refused");
    }
}
