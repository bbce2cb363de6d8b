//! A delivery whose reused connection was closed is sent again once, on a new connection.

use crate::worker::tests::stories::{COUNTED, FAST, SLOW};
use crate::worker::tests::*;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_connection_swallowed_is_sent_again_at_once_in_the_pace_and_is_no_attempt() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.receiver.hangs_up.store(true, Ordering::SeqCst);
    stage.start().await;
    let ids = stage.events(4).await;
    // Five starts deliver three; the sixth gets no response, and the rate limit refuses a seventh.
    stage.rate_limited(&webhook, &ids[3..]).await;
    assert_eq!(stage.receiver.events(), ["evt_1", "evt_2", "evt_2", "evt_3", "evt_3", "evt_4"]);
    until("all six starts are written", async || {
        stage.store.starts_since(START).await.unwrap().len() == 6
    })
    .await;
    assert_eq!(stage.stop().await, Drained::Yes);
    stage.start().await;
    stage.rate_limited(&webhook, &ids[3..]).await;
    assert_eq!(stage.receiver.count(), 6, "seven have started within a minute");
    stage.turn(COUNTED).await;
    for id in ids {
        until("it is delivered", async || {
            stage.nudge().await;
            stage.state(id).await == (DeliveryState::Delivered, 1)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_dead_connection_is_the_receivers_failure() {
    let mut stage = Stage::new(FAST).await;
    stage.webhook().await;
    stage.receiver.block();
    stage.start().await;
    let first = stage.events(2).await;
    stage.received(2).await;
    stage.receiver.release();
    for id in first {
        until("its connection waits to be used again", async || {
            stage.state(id).await == (DeliveryState::Delivered, 1)
        })
        .await;
    }
    // From now on the receiver closes every connection without a response.
    stage.receiver.drops.store(true, Ordering::SeqCst);
    let last = stage.event().await;
    until("the second start is an attempt", async || {
        stage.state(last).await == (DeliveryState::Waiting, 1)
    })
    .await;
    assert_eq!(stage.receiver.events()[2..], ["evt_3", "evt_3"], "not on the other one that waits");
}
