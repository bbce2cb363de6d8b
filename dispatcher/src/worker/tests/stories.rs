//! Kills and failing writes lose no delivery, and cause no starts beyond the rate limit.

use crate::mailbox::Mailbox;
use crate::state::reload;
use crate::worker::tests::*;

/// A rate limit of six a minute, which allows one attempt in flight.
pub(super) const SLOW: &str = r#"
[egress]
requests = 6
allow_http = true
allow_networks = ["127.0.0.0/8"]
ports = []
"#;

/// For how long a request counts in it.
pub(super) const COUNTED: Duration = Duration::from_millis(60_100);

/// A rate limit that no test reaches.
pub(super) const FAST: &str = r#"
[egress]
requests = 4_000
allow_http = true
allow_networks = ["127.0.0.0/8"]
ports = []
"#;

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_that_cannot_be_written_are_kept_and_nothing_is_sent_twice() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.block();
    let ids = stage.events(3).await;
    stage.received(1).await;
    let failing = block_writes(&stage.store).await;
    stage.receiver.release();
    until("writing fails", async || stage.failures() > 0).await;
    for _ in 0..5 {
        let before = stage.failures();
        // Neither time nor another read of the webhook releases a slot whose result is not stored.
        stage.state.mailbox.changed(webhook.id);
        stage.turn(MINUTE).await;
        until("it is tried again", async || {
            stage.turn(STORE_PAUSE).await;
            stage.failures() > before
        })
        .await;
        assert!(stage.status(&webhook, ids[0]).await.in_flight);
        assert_eq!(stage.receiver.count(), 1, "its place is free only when it is on disk");
    }
    drop(failing);
    until("all are delivered", async || {
        stage.turn(STORE_PAUSE).await;
        stage.state(ids[2]).await == (DeliveryState::Delivered, 1)
    })
    .await;
    assert_eq!(stage.receiver.events(), ["evt_1", "evt_2", "evt_3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pace_is_kept_after_a_kill_and_a_stop() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.events(2).await;
    stage.received(2).await;
    stage.receiver.block();
    let waiting = stage.events(20).await;
    stage.received(3).await;
    // Two starts are on disk; the third is in flight, and leaves no record.
    until("two are written", async || stage.store.starts_since(START).await.unwrap().len() == 2)
        .await;
    stage.kill().await;
    stage.receiver.release();
    stage.start().await;
    stage.rate_limited(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 6);
    // This shutdown is clean, but the unrecorded starts before it still count.
    assert_eq!(stage.stop().await, Drained::Yes);
    stage.start().await;
    stage.rate_limited(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 6, "seven have started within a minute");
    stage.turn(COUNTED).await;
    stage.received(12).await;
    stage.rate_limited(&webhook, &waiting).await;
    assert_eq!(stage.stop().await, Drained::Yes);
    stage.start().await;
    stage.rate_limited(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pace_is_kept_after_a_kill_and_a_stop_with_a_clock_that_was_set_ahead() {
    for stopped in [true, false] {
        let mut stage = Stage::new(SLOW).await;
        let webhook = stage.webhook().await;
        stage.start().await;
        let ids = stage.events(20).await;
        stage.received(6).await;
        let written = async || stage.store.starts_since(START).await.unwrap().len();
        until("all are written", async || written().await == 6).await;
        let mut running = stage.running.take().unwrap();
        if stopped {
            running.stop.send(true).unwrap();
            assert_eq!(running.worker.join_next().await.unwrap().unwrap(), Drained::Yes);
            stage.store.close().await.unwrap();
        }
        drop(running);
        stage.clock.set(START.plus(60 * MINUTE));
        stage.open_again().await;
        stage.start().await;
        stage.turn(MINUTE / 2).await;
        stage.rate_limited(&webhook, &ids[6..]).await;
        assert_eq!(stage.receiver.count(), 6, "seven have started within a minute");
        stage.turn(COUNTED - MINUTE / 2).await;
        stage.received(12).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pace_is_kept_after_repeated_kills() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.receiver.block();
    let waiting = stage.events(3).await;
    // Each process leaves one start without a record.
    for kills in 1..=6 {
        stage.start().await;
        stage.received(kills).await;
        stage.kill().await;
    }
    for _ in 0..2 {
        stage.start().await;
        stage.rate_limited(&webhook, &waiting).await;
        assert_eq!(stage.receiver.count(), 6, "seven have started within a minute");
        stage.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_arrive_while_their_webhook_is_changed_are_delivered() {
    let mut stage = Stage::new(FAST).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    const ROUNDS: u32 = 100;
    for round in 0..ROUNDS {
        // Event and change are one commit or two, and are committed and reported in any order.
        let (store, worker) = (stage.store.clone(), stage.state.mailbox.clone());
        let (now, id) = (stage.clock.now().unix, webhook.id);
        let mut both = JoinSet::new();
        both.spawn(async move { worker.arrived(accept(&store, round, now).await) });
        let (store, worker) = (stage.store.clone(), stage.state.mailbox.clone());
        both.spawn(async move {
            let change = WebhookChange { events: None, ..WebhookChange::default() };
            store.change_webhook(WS, id, change, now).await.unwrap();
            worker.changed(id);
        });
        while let Some(ended) = both.join_next().await {
            ended.unwrap();
        }
    }
    stage.received(ROUNDS as usize).await;
    let different: BTreeSet<String> = stage.receiver.events().into_iter().collect();
    assert_eq!(different.len(), ROUNDS as usize);
}

/// A webhook that has failed for 40 minutes; it is paused after 60.
async fn failed_for_40_minutes() -> (Stage, Webhook) {
    let health = "[health]\nwarn_for = \"30m\"\npause_after = \"1h\"\n\
        [retry]\ndelays = [\"20m\", \"20m\", \"5h\"]\n\
        [mail]\nsmtp = \"smtp://127.0.0.1\"\nfrom = \"weir@example.com\"\n";
    let mut stage = Stage::new(&format!("{FAST}{health}")).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.answer_with(500);
    let id = stage.event().await;
    for attempt in 1..=3 {
        until("it fails", async || {
            stage.nudge().await;
            stage.state(id).await.1 == attempt
        })
        .await;
        if attempt < 3 {
            stage.turn(20 * MINUTE).await;
        }
    }
    (stage, webhook)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_has_the_outcome_of_the_last_attempt_after_a_restart_too() {
    let (mut stage, webhook) = failed_for_40_minutes().await;
    stage.kill().await;
    stage.start().await;
    stage.turn(20 * MINUTE).await;
    until("it is paused", async || {
        stage.nudge().await;
        stage.store.webhook(WS, webhook.id).await.unwrap().unwrap().paused_at.is_some()
    })
    .await;
    assert_eq!(stage.receiver.count(), 3, "nothing was tried since the restart");
    let mails =
        stage.store.claim_mails(10, stage.clock.now().unix, Default::default()).await.unwrap();
    let paused = mails.iter().find(|mail| mail.mail.subject.contains("paused")).unwrap();
    let last = "Last attempt: answered 500, which is not 2xx\n";
    assert!(paused.mail.text.contains(last), "{}", paused.mail.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_withdraws_the_warning_that_waits_also_while_no_mail_is_configured() {
    let (stage, webhook) = failed_for_40_minutes().await;
    let file = stage.folder.path("dispatcher.toml");
    let text = fs::read_to_string(&file).unwrap();
    let (without, _) = text.split_once("[mail]\n").unwrap();
    fs::write(&file, without).unwrap();
    assert_eq!(reload(&stage.state).await, Reload::Applied);
    stage.turn(20 * MINUTE).await;
    until("it is paused", async || {
        // A change of the policy, which may come now, looks at the health a little later.
        stage.turn(Duration::from_micros(1)).await;
        stage.store.webhook(WS, webhook.id).await.unwrap().unwrap().paused_at.is_some()
    })
    .await;
    let now = stage.clock.now().unix;
    assert_eq!(stage.store.claim_mails(10, now, Default::default()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_cannot_be_written_at_first_is_written_later() {
    let (stage, webhook) = failed_for_40_minutes().await;
    let failing = block_writes(&stage.store).await;
    stage.turn(20 * MINUTE).await;
    until("the pause is not written", async || {
        stage.turn(STORE_PAUSE).await;
        stage.failures() > 0
    })
    .await;
    // Its queue is idle, and is evicted.
    for _ in 0..5 {
        stage.turn(MINUTE).await;
    }
    drop(failing);
    until("the pause is written", async || {
        stage.turn(STORE_PAUSE).await;
        stage.store.webhook(WS, webhook.id).await.unwrap().unwrap().paused_at.is_some()
    })
    .await;
    let mails =
        stage.store.claim_mails(10, stage.clock.now().unix, Default::default()).await.unwrap();
    let paused = mails.iter().filter(|mail| mail.mail.subject.contains("paused")).count();
    assert_eq!(paused, 1, "{mails:?}");
    let stored = stage.store.webhook(WS, webhook.id).await.unwrap().unwrap();
    let late = stored.paused_at.unwrap().since(START.plus(60 * MINUTE));
    assert!(late < MINUTE, "it was paused an hour after the first failure");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patience_that_a_reload_shortens_is_over_at_once() {
    let (stage, webhook) = failed_for_40_minutes().await;
    let file = stage.folder.path("dispatcher.toml");
    let text =
        fs::read_to_string(&file).unwrap().replace("pause_after = \"1h\"", "pause_after = \"30m\"");
    fs::write(&file, text).unwrap();
    assert_eq!(reload(&stage.state).await, Reload::Applied);
    until("it is paused", async || {
        stage.turn(Duration::from_millis(1)).await;
        stage.store.webhook(WS, webhook.id).await.unwrap().unwrap().paused_at.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_across_a_clock_jump_is_not_counted_and_its_start_is_on_disk() {
    let mut stage = Stage::new(&format!("{SLOW}deadline = \"200ms\"\n")).await;
    stage.webhook().await;
    stage.start().await;
    stage.receiver.block();
    let id = stage.event().await;
    stage.received(1).await;
    // For the attempt's timer, the process was suspended for a minute.
    stage.clock.advance(MINUTE);
    let started = async || stage.store.starts_since(START).await.unwrap().len();
    until("its start is written", async || started().await == 1).await;
    assert_eq!(stage.state(id).await, (DeliveryState::Waiting, 0));
}

/// A webhook that was just reactivated, with `waiting` deliveries.
async fn reactivated(stage: &mut Stage, waiting: usize) -> (Webhook, Vec<DeliveryId>) {
    let made = stage.webhook().await;
    let ids = stage.events(waiting).await;
    let paused = WebhookUpdate {
        webhook: made.id,
        paused_total: made.paused_total,
        health: Health::default(),
        last_outcome: None,
        look_at: None,
        paused_at: Some(START),
        probing: None,
    };
    stage.store.record(vec![], vec![paused], vec![], vec![]).await.unwrap();
    stage.clock.advance(MINUTE);
    let webhook = stage.store.reactivate(WS, made.id, stage.clock.now().unix).await.unwrap();
    (webhook.unwrap(), ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_probe_is_retried_until_it_succeeds_and_then_all_are_sent_in_order() {
    let mut stage = Stage::new(FAST).await;
    let (_, ids) = reactivated(&mut stage, 4).await;
    stage.receiver.answer_with(503);
    stage.start().await;
    stage.received(1).await;
    until("it fails", async || stage.state(ids[0]).await.1 == 1).await;
    // A delivery that arrives during probing waits as well, also after a restart.
    stage.event().await;
    stage.kill().await;
    stage.start().await;
    stage.turn(MINUTE).await;
    stage.received(2).await;
    until("it fails", async || stage.state(ids[0]).await.1 == 2).await;
    stage.receiver.answer_with(200);
    stage.turn(5 * MINUTE).await;
    stage.received(7).await;
    let events = stage.receiver.events();
    assert_eq!(events[..3], ["evt_1", "evt_1", "evt_1"]);
    let rest: BTreeSet<&str> = events[3..].iter().map(String::as_str).collect();
    assert_eq!(rest, BTreeSet::from(["evt_2", "evt_3", "evt_4", "evt_5"]));
    let all = stage.store.deliveries(WS, &Filter::default(), Paging::first(10)).await.unwrap();
    assert_eq!(all.items.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_deleted_while_an_attempt_is_under_way_leaves_nothing_behind() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.block();
    stage.events(3).await;
    stage.received(1).await;
    assert!(stage.store.delete_webhook(WS, webhook.id).await.unwrap());
    stage.state.mailbox.changed(webhook.id);
    let other = stage.webhook().await;
    let id = stage.event().await;
    stage.receiver.release();
    until("the other one's is delivered", async || {
        stage.nudge().await;
        stage.state(id).await == (DeliveryState::Delivered, 1)
    })
    .await;
    assert_ne!(other.id, webhook.id);
    assert_eq!(stage.receiver.events().last().map(String::as_str), Some("evt_4"));
    assert_eq!(stage.stop().await, Drained::Yes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_is_redelivered_in_flight_is_sent_again_once_its_attempt_fails() {
    let mut stage = Stage::new(FAST).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.block();
    stage.receiver.answer_with(500);
    let id = stage.event().await;
    stage.received(1).await;
    stage.store.redeliver(WS, id, stage.clock.now().unix).await.unwrap();
    stage.state.mailbox.changed(webhook.id);
    stage.receiver.release();
    // Without a step of the clock.
    stage.received(2).await;
    until("the second attempt decides", async || {
        let waits = stage.store.fetch_one(id).await.unwrap().expect("it waits");
        waits.attempts == 2 && waits.step == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_beyond_the_mailboxs_memory_are_sent_too() {
    for room in [0, 2_000] {
        let mut stage = Stage::new(FAST).await;
        stage.webhook().await;
        stage.start_with(Mailbox::with_room(room)).await;
        let first = stage.events(40).await;
        stage.received(40).await;
        // The worker has the first webhook in memory, and has not read the second.
        stage.webhook().await;
        stage.events(40).await;
        until("all are delivered", async || {
            stage.nudge().await;
            stage.store.figures().await.unwrap().waiting == 0
        })
        .await;
        assert_eq!(stage.state(first[0]).await, (DeliveryState::Delivered, 1));
        assert_eq!(stage.receiver.count(), 120, "each is sent once");
    }
}
