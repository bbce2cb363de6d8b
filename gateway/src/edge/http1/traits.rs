//! The trait that Pingora requires of a session.
//!
//! Not here: what the session does (`http1::session`).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use pingora_core::Result;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::HttpTask;
use pingora_core::protocols::http::custom::CustomMessageWrite;
use pingora_core::protocols::http::custom::server::Session as CustomSession;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_http::{RequestHeader, ResponseHeader};

use crate::edge::http1::body::RetryBuffer;
use crate::edge::http1::session::Http1Session;
use crate::edge::session::{Messages, no_messages};

#[async_trait]
impl CustomSession for Http1Session {
    fn req_header(&self) -> &RequestHeader {
        self.head()
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.request.request
    }

    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        self.read().await
    }

    async fn read_body_or_idle(&mut self, no_body_expected: bool) -> Result<Option<Bytes>> {
        if no_body_expected || self.is_body_done() {
            return self.await_close().await;
        }
        self.read().await
    }

    async fn drain_request_body(&mut self) -> Result<()> {
        while self.read().await?.is_some() {}
        Ok(())
    }

    fn is_body_done(&mut self) -> bool {
        match self.replayed() {
            Some(body) => self.replay.is_over(body),
            None => self.is_read(),
        }
    }

    fn is_body_empty(&mut self) -> bool {
        match self.replayed() {
            Some(body) => body.is_empty(),
            None => self.has_no_body(),
        }
    }

    fn enable_retry_buffering(&mut self) {
        self.retry_buffer.get_or_insert_default();
    }

    fn retry_buffer_truncated(&self) -> bool {
        self.replayed().is_none()
            && self.retry_buffer.as_ref().is_some_and(RetryBuffer::is_truncated)
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        match self.replayed() {
            Some(body) => self.replay.again(body),
            None => self.retry_buffer.as_ref().and_then(RetryBuffer::bytes),
        }
    }

    async fn write_response_header(&mut self, head: Box<ResponseHeader>, end: bool) -> Result<()> {
        self.write(vec![HttpTask::Header(head, end)]).await.map(drop)
    }

    async fn write_response_header_ref(&mut self, head: &ResponseHeader, end: bool) -> Result<()> {
        self.write(vec![HttpTask::Header(Box::new(head.clone()), end)]).await.map(drop)
    }

    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.write(vec![HttpTask::Body(Some(data), end)]).await.map(drop)
    }

    /// Trailers of a response are not forwarded over HTTP/1.
    async fn write_trailers(&mut self, _trailers: HeaderMap) -> Result<()> {
        Ok(())
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.write(tasks).await
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    fn get_read_timeout(&self) -> Option<Duration> {
        self.read_timeout
    }

    /// `Connection` times writes.
    fn set_write_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_write_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_total_drain_timeout(&mut self, _timeout: Option<Duration>) {}

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        None
    }

    fn request_summary(&self) -> String {
        String::new()
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.response.as_deref()
    }

    /// A session that is dropped unfinished breaks off its connection.
    async fn shutdown(&mut self, _code: u32, _context: &str) {}

    async fn finish(&mut self) -> Result<()> {
        Self::finish(self).await
    }

    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }

    fn body_bytes_sent(&self) -> usize {
        self.sent
    }

    fn body_bytes_read(&self) -> usize {
        self.received
    }

    fn digest(&self) -> Option<&Digest> {
        None
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        None
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        None
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        None
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        Bytes::new()
    }

    fn is_upgrade_req(&self) -> bool {
        self.is_upgrade()
    }

    fn was_upgraded(&self) -> bool {
        Self::was_upgraded(self)
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _reader: Messages) -> Result<()> {
        no_messages()
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(
        &mut self,
        _writer: Box<dyn CustomMessageWrite>,
    ) -> Result<()> {
        no_messages()
    }
}
