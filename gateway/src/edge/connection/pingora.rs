//! The traits that Pingora requires of a stream, beside reading and writing: HTTP/2 is read by its
//! code.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};

use crate::edge::connection::Connection;

#[async_trait]
impl Shutdown for Connection {
    async fn shutdown(&mut self) {
        // Fails where the client has closed already, which leaves nothing to close.
        let _ = tokio::io::AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Connection {
    fn id(&self) -> UniqueIDType {
        self.socket.as_raw_fd()
    }
}

impl Ssl for Connection {
    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.is_http2().then_some(ALPN::H2)
    }
}

impl Peek for Connection {}

impl GetProxyDigest for Connection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetTimingDigest for Connection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetSocketDigest for Connection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(self.digest.clone())
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}
