//! Attempts from a chosen address, and without an address of a family.

use std::process::Command;

use super::*;

/// A client that calls from these addresses.
fn from(names: &[(&str, &str)], source: &[&str]) -> DeliveryClient {
    let mut egress = egress_of(2_000);
    egress.source = source.iter().map(|one| one.parse().expect("an address")).collect();
    build(names, egress).0
}

#[tokio::test]
async fn a_receiver_is_called_from_the_source_of_its_family_or_not_at_all() {
    let (peer, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::on("127.0.0.1", move |mut stream| {
        let _ = peer.send(stream.peer_addr().expect("it is connected").ip());
        async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await;
    let client = from(&[], &["::1", "127.0.0.9"]);
    assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
    assert_eq!(peers.recv().await, Some([127, 0, 0, 9].into()));
    let other_family = from(&[], &["::1"]).deliver(request(&receiver.url("http"))).await;
    assert_eq!(other_family.outcome, Outcome::Failed(Failure::Refused));
    let not_ours = from(&[], &["192.0.2.1"]).deliver(request(&receiver.url("http"))).await;
    assert_eq!(not_ours.outcome, Outcome::Internal(Fault::Resources));
    assert_eq!(receiver.accepted(), 1);
}

#[tokio::test]
async fn a_source_that_is_not_ours_closes_no_idle_connection() {
    let receiver = Receiver::answering(OK).await;
    let client = from(&[], &["127.0.0.1", "2001:db8::1"]);
    for _ in 0..2 {
        let response = client.deliver(request(&receiver.url("http"))).await;
        assert_eq!((response.outcome, receiver.accepted()), (DELIVERED, 1));
        let not_ours = client.deliver(request("http://[2606:4700:4700::1111]/")).await;
        assert_eq!(not_ours.outcome, Outcome::Internal(Fault::Resources));
    }
}

#[tokio::test]
async fn without_an_address_of_a_family_its_addresses_are_refused() {
    // A new network namespace has no address.
    const INSIDE: &str = "WEIR_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        let here = std::env::current_exe().expect("a test has a program");
        let this = "families::without_an_address";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]).arg(here).env(INSIDE, "yes");
        let output = command.arg(this).output().expect("unshare runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("1 passed"), "{printed}{error}");
        return;
    }
    let names = [("dual.example", "127.0.0.1 2606:4700:4700::1111")];
    let client = client(&names, 2_000).0;
    for url in ["http://[2606:4700:4700::1111]/", "http://dual.example/"] {
        let response = client.deliver(request(url)).await;
        assert_eq!(response.outcome, Outcome::Failed(Failure::Refused), "{url}");
    }
}
