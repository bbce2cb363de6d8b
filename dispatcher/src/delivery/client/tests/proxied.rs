//! Attempts through a proxy.

use std::sync::Mutex;

use weir_common::secret::Secret;

use super::*;
use crate::config::settings::ProxyAddress;

/// A proxy that answers with these bytes, and opens the tunnel if they are a 200; with the heads of
/// the requests that it got.
async fn proxy(answer: &'static str) -> (Receiver, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    let proxy = Receiver::on("127.0.0.1", move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
                    return;
                }
            }
            let head = String::from_utf8(head).expect("text");
            let target = head.split(' ').nth(1).expect("a target").to_owned();
            seen.lock().expect("no test has panicked").push(head);
            if stream.write_all(answer.as_bytes()).await.is_ok()
                && answer.starts_with("HTTP/1.1 200")
                && let Ok(mut there) = TcpStream::connect(target).await
            {
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
            }
        }
    });
    (proxy.await, heads)
}

const OPEN: &str = "HTTP/1.1 200 Connection established\r\nX-Proxy: 1\r\n\r\n";

fn proxied(names: &[(&str, &str)], proxy: SocketAddr) -> DeliveryClient {
    through(names, &proxy.ip().to_string(), proxy.port(), |_| {})
}

fn through(
    names: &[(&str, &str)],
    host: &str,
    port: u16,
    change: impl FnOnce(&mut Egress),
) -> DeliveryClient {
    let mut egress = egress_of(2_000);
    egress.proxy = Some(ProxyAddress { host: host.to_owned(), port });
    change(&mut egress);
    build(names, egress).0
}

#[tokio::test]
async fn the_proxy_is_asked_for_the_checked_address_and_the_host_stays() {
    let (proxy, heads) = proxy(OPEN).await;
    let (head, mut got) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::on("127.0.0.1", move |mut stream| {
        let head = head.clone();
        async move {
            while let Some(request) = read_request(&mut stream).await {
                let _ = head.send(request);
                let _ = stream.write_all(OK.as_bytes()).await;
            }
        }
    })
    .await;
    let port = receiver.address.port();
    let client = through(&[("here.example", "127.0.0.1")], "127.0.0.1", proxy.address.port(), {
        |egress| egress.proxy_credentials = Some(Secret::new("weir:p:w".to_owned()))
    });
    for _ in 0..2 {
        let response = client.deliver(request(&format!("http://here.example:{port}/hook"))).await;
        assert_eq!(response.outcome, DELIVERED);
    }
    let request = got.recv().await.expect("it was called").to_lowercase();
    assert!(request.contains(&format!("\r\nhost: here.example:{port}\r\n")), "{request}");
    assert!(!request.contains("proxy"), "{request}");
    let expected = format!(
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
         Proxy-Authorization: Basic d2VpcjpwOnc=\r\n\r\n"
    );
    assert_eq!(*heads.lock().unwrap(), [expected], "one tunnel for both");
}

#[tokio::test]
async fn a_proxy_that_is_a_name_is_looked_up_and_may_be_private() {
    let (proxy, _) = proxy(OPEN).await;
    let receiver = Receiver::answering(OK).await;
    let names = [("proxy.internal", "127.0.0.1"), ("private.example", "10.0.0.7")];
    let client = through(&names, "proxy.internal", proxy.address.port(), |_| {});
    assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
    let private = client.deliver(request("http://private.example/")).await;
    assert_eq!((private.outcome, proxy.accepted()), (NO_NAME, 1), "the rules still hold");
}

#[tokio::test]
async fn tls_is_spoken_through_the_tunnel() {
    let (proxy, heads) = proxy(OPEN).await;
    let receiver = Receiver::on("127.0.0.1", |mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = stream.read(&mut [0; 4096]).await;
    })
    .await;
    let response = proxied(&[], proxy.address).deliver(request(&receiver.url("https"))).await;
    assert_eq!(response.outcome, Outcome::Failed(Failure::Tls));
    assert_eq!(heads.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_status_of_the_proxy_is_a_failure_if_it_is_about_the_receiver() {
    let fault = Outcome::Internal(Fault::Proxy);
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\n", BLOCKED),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", BROKEN),
        ("HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n", BROKEN),
        ("HTTP/1.1 504 Gateway Timeout\r\n\r\n", SILENT),
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", fault.clone()),
        ("HTTP/1.1 500 Oh\r\n\r\n", fault.clone()),
        ("HTTP/1.1 301 Moved\r\n\r\n", fault.clone()),
        ("SSH-2.0-OpenSSH_9.6\r\n\r\n", fault.clone()),
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 7\r\n\r\n<html/>", BLOCKED),
        ("HTTP/1.1 503 Oh\r\nContent-Length: 9\r\n\r\nconnect: ", BROKEN),
    ] {
        let (proxy, _) = proxy(answer).await;
        let receiver = Receiver::answering(OK).await;
        let response = proxied(&[], proxy.address).deliver(request(&receiver.url("http"))).await;
        assert_eq!((response.outcome, receiver.accepted()), (expected, 0), "{answer}");
    }
}

#[tokio::test]
async fn a_tunnel_begins_with_nothing_from_the_proxy() {
    let proxy = Receiver::on("127.0.0.1", |mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(format!("{OPEN}HTTP/1.1 200 OK\r\n\r\n").as_bytes()).await;
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await;
    let receiver = Receiver::answering(OK).await;
    let response = proxied(&[], proxy.address).deliver(request(&receiver.url("http"))).await;
    assert_eq!(response.outcome, Outcome::Internal(Fault::Proxy));
}

#[tokio::test]
async fn a_proxy_that_is_away_or_endless_is_no_failure_of_the_receiver() {
    let fault = Outcome::Internal(Fault::Proxy);
    let endless = Receiver::on("127.0.0.1", |mut stream| async move {
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let closing = Receiver::on("127.0.0.1", |mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let receiver = Receiver::answering(OK).await;
    for proxy in [endless.await, closing.await] {
        let response = proxied(&[], proxy.address).deliver(request(&receiver.url("http"))).await;
        assert_eq!(response.outcome, fault);
    }
    // A port that nothing listens on.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let response = proxied(&[], gone).deliver(request(&receiver.url("http"))).await;
    assert_eq!((response.outcome, receiver.accepted()), (fault.clone(), 0));
    let unknown = through(&[], "unknown.example", 3128, |_| {});
    assert_eq!(unknown.deliver(request(&receiver.url("http"))).await.outcome, fault);
}
