//! TLS handshakes with receivers.

use rustls::HandshakeKind;
use tokio::sync::mpsc;

use super::*;
use crate::delivery::client::tests::read_limit::{acceptor, has_request};

#[tokio::test]
async fn every_connection_to_a_receiver_verifies_its_certificate() {
    let (seen, mut handshakes) = mpsc::unbounded_channel();
    let acceptor = acceptor();
    let receiver = Receiver::on("127.0.0.1", move |stream| {
        let (acceptor, seen) = (acceptor.clone(), seen.clone());
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = seen.send(stream.get_ref().1.handshake_kind());
            if has_request(&mut stream).await {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            }
        }
    })
    .await;
    let (client, _) = client(&[], 20_000);
    let url = receiver.url("https");
    for _ in 0..3 {
        assert_eq!(client.deliver(request(&url)).await.outcome, Outcome::of_status(200));
        assert_eq!(handshakes.recv().await, Some(Some(HandshakeKind::Full)));
    }
}
