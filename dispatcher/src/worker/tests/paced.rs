//! A receiver whose answers take longer than the window of its pace.

use crate::worker::tests::*;

const BRISK: &str = r#"
[egress]
requests = 10
window = "1s"
deadline = "1m"
allow_http = true
allow_networks = ["127.0.0.0/8"]
ports = []
"#;

#[tokio::test]
async fn a_receiver_gets_its_pace_while_its_answers_take_longer_than_the_window() {
    let mut stage = Stage::new(BRISK).await;
    stage.webhook().await;
    stage.start().await;
    stage.receiver.block();
    stage.events(40).await;
    stage.received(10).await;
    for count in [20, 30, 40] {
        let began = stage.clock.now().tick;
        until("the next ones are received", async || {
            // Each turn is longer than a request takes to be sent, and to be reported.
            stage.turn(Duration::from_millis(10)).await;
            stage.receiver.count() >= count
        })
        .await;
        let took = stage.clock.now().tick.since(began);
        assert!(stage.receiver.count() == count && took > Duration::from_millis(500), "{took:?}");
    }
    stage.receiver.release();
}
