//! A failed delivery is retried by the schedule, with the same body, until its deadline.

use weir_tests::answer::Answer;
use weir_tests::timestamp;
use weir_tests::wait;

use super::{Stage, attempts, text, time};

#[test]
fn every_attempt_has_the_same_body_and_a_fresh_signature() {
    let stage = Stage::with(|config| {
        config.with("[retry]", "delays = [\"600ms\", \"600ms\"]\ngive_up_after = \"1500ms\"")
    });
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("failed_permanent", 1);
    let deliveries = stage.receiver.deliveries();
    assert_eq!(deliveries.len(), 4, "at 0, 0.6, 1.2 and 1.5 s");
    for delivery in &deliveries {
        assert_eq!(delivery.body, deliveries[0].body);
        assert_eq!(delivery.id(), id);
        delivery.verify(&webhook.secret);
        let t = delivery.signed().t;
        assert!(t.abs_diff(delivery.at_ms / 1_000) <= 1, "{t} at {}", delivery.at_ms);
    }
    assert!(deliveries[3].signed().t > deliveries[0].signed().t);
}

#[test]
fn no_attempt_is_earlier_than_its_delay_and_the_last_is_at_the_deadline() {
    let stage = Stage::new();
    stage.receiver.status(503);
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "failed_permanent");
    let log = attempts(&delivery);
    // Attempts at 0, 0.1, 0.3, 0.7 and 1.5 s; the last is brought forward to 2 s.
    assert_eq!(log.len(), 6, "{delivery}");
    assert_eq!(delivery["attempts"], 6);
    for (pair, delay) in log.windows(2).zip([100, 200, 400, 800]) {
        let gap = pair[1].0 - pair[0].0;
        assert!(gap + 2 >= delay, "{gap} ms instead of {delay}: {log:?}");
        assert!(gap < delay + 2_000, "{gap} ms instead of {delay}: {log:?}");
    }
    let whole = log[5].0 - log[0].0;
    assert!(whole + 2 >= 2_000, "given up after {whole} ms");
    assert!(log.iter().all(|(_, outcome)| outcome == "status_503"), "{log:?}");
    assert_eq!(time(&delivery, "first_attempt_at"), log[0].0);
    assert!(delivery["deadline_at"].is_null(), "it has ended: {delivery}");
    assert!(time(&delivery, "ended_at") >= log[5].0);
    assert!(delivery["next_attempt_at"].is_null() && delivery["waiting_for"].is_null());
    let failed = acme.deliveries("state=failed_permanent");
    assert_eq!(failed.len(), 1);
    assert_eq!(text(&failed[0], "event_id"), id);
    assert_eq!(failed[0]["last_outcome"], "status_503");
    stage.receiver.assert_quiet(std::time::Duration::from_millis(500));
}

#[test]
fn each_attempt_writes_one_log_line() {
    let stage = Stage::new();
    let first = std::sync::atomic::AtomicBool::new(true);
    stage.receiver.answer(move |_| {
        let again = first.swap(false, std::sync::atomic::Ordering::SeqCst);
        Answer::status(if again { 500 } else { 204 })
    });
    let webhook = stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let delivery =
        stage.dispatcher.acme().wait_for_delivery(&id, |one| one["state"] == "delivered");
    let second = stage.dispatcher.attempt_log().wait("the second", |line| line["attempt"] == 2);
    let lines = stage.dispatcher.attempts();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["outcome"], &lines[0]["status"]), (&"status_500".into(), &500.into()));
    assert_eq!((&second["outcome"], &second["status"]), (&"status_204".into(), &204.into()));
    for line in &lines {
        assert!(line["message"].is_null(), "{line}");
        assert_eq!(line["webhook"], webhook.id.as_str());
        assert_eq!(line["event"], id.as_str());
        assert_eq!(line["delivery"], delivery["id"]);
        assert_eq!(line["type"], "user.created");
        assert!(line["duration_ms"].is_number(), "{line}");
        timestamp::millis(text(line, "time"));
    }
}

#[test]
fn a_retry_after_is_honoured() {
    let stage = Stage::with(|config| config.with("[retry]", "give_up_after = \"20s\""));
    let answers = std::sync::atomic::AtomicU32::new(0);
    stage.receiver.answer(move |_| {
        match answers.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Answer::status(429).field("Retry-After", "2"),
            _ => Answer::status(200),
        }
    });
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let log = attempts(&delivery);
    assert_eq!(log.len(), 2, "{delivery}");
    assert!(log[1].0 - log[0].0 >= 2_000, "{log:?}");
}

#[test]
fn a_retry_after_never_extends_beyond_the_deadline() {
    let stage = Stage::new();
    stage.receiver.upstream().always(Answer::status(503).field("Retry-After", "86400"));
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "failed_permanent");
    let log = attempts(&delivery);
    assert_eq!(log.len(), 2, "{delivery}");
    assert!(log[1].0 - log[0].0 < 10_000, "{log:?}");
}

#[test]
fn a_retry_after_beyond_its_maximum_is_shortened() {
    let stage = Stage::with(|config| {
        config.with("[retry]", "give_up_after = \"1h\"\nretry_after_max = \"1s\"")
    });
    let first = std::sync::atomic::AtomicBool::new(true);
    stage.receiver.answer(move |_| match first.swap(false, std::sync::atomic::Ordering::SeqCst) {
        true => Answer::status(503).field("Retry-After", "86400"),
        false => Answer::status(200),
    });
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let log = attempts(&delivery);
    assert!(log.len() == 2 && log[1].0 - log[0].0 >= 1_000, "{log:?}");
}

#[test]
fn a_receiver_that_recovers_in_time_gets_its_event() {
    let mut stage = Stage::with(|config| config.with("[retry]", "give_up_after = \"30s\""));
    stage.receiver.stop();
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let waiting = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(2));
    assert!(waiting["ended_at"].is_null(), "{waiting}");
    assert_eq!(waiting["last_outcome"], "refused", "{waiting}");
    let deadline = time(&waiting, "first_attempt_at") + 30_000;
    assert_eq!(time(&waiting, "deadline_at"), deadline, "{waiting}");
    assert_eq!(attempts(&waiting)[0].1, "refused", "{waiting}");
    stage.receiver.start_again();
    stage.receiver.wait(1);
    acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
}

#[test]
fn response_headers_in_time_are_a_success() {
    let stage = Stage::with(|config| {
        config
            .with("[egress]", "deadline = \"1s\"")
            .with("[retry]", "delays = [\"60s\"]\ngive_up_after = \"48h\"")
    });
    stage.receiver.answer(|request| {
        let slow = |ms| Answer::script().pause(std::time::Duration::from_millis(ms));
        match request.target().as_slice() {
            b"/in-time" => slow(300).and(Answer::status(200)),
            _ => slow(1_500).and(Answer::status(200)),
        }
    });
    let in_time = stage.webhook("/in-time", &["user.created"]);
    let late = stage.webhook("/late", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let attempted = |id: &str| {
        let filter = format!("webhook={id}");
        let found = wait::until("an attempt that has ended", || {
            acme.deliveries(&filter).into_iter().find(|one| one["attempts"] == 1)
        });
        (text(&found, "state").to_owned(), attempts(&acme.delivery(text(&found, "id"))).remove(0).1)
    };
    assert_eq!(attempted(&in_time.id), ("delivered".to_owned(), "status_200".to_owned()));
    assert_eq!(attempted(&late.id), ("waiting".to_owned(), "timeout".to_owned()));
}
