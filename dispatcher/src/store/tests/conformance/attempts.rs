//! Promises to the worker.

use crate::domain::attempt::EarlierStart;
use crate::domain::health::{Observation, Policy};
use crate::domain::id::EndpointId;
use crate::domain::trace::Reason;
use crate::domain::webhook::Probe;
use crate::store::tests::conformance::*;
use crate::store::types::WebhookChange;

pub(super) async fn deliveries_are_fetched_in_the_order_in_which_they_are_due(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for (name, at) in [("evt_1", 1), ("evt_2", 2), ("evt_3", 2)] {
        ids.push(arrival(store, name, t(at)).await.delivery.id);
    }
    let again = NextState::Again { due: t(60), step: 1 };
    record(store, vec![ended(&made, ids[0], t(3), again)]).await;
    let order = |fetched: crate::domain::delivery::Fetched| -> (Vec<DeliveryId>, bool) {
        (fetched.deliveries.iter().map(|delivery| delivery.id).collect(), fetched.more)
    };
    let fetch = |limit| store.fetch(made.id, &[], limit);
    assert_eq!(order(fetch(3).await.unwrap()), (vec![ids[1], ids[2], ids[0]], false));
    assert_eq!(order(fetch(2).await.unwrap()), (vec![ids[1], ids[2]], true));
}

pub(super) async fn a_waiting_delivery_is_found_by_its_id_until_it_has_ended(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let delivery = arrival(store, "evt_1", t(1)).await.delivery;
    assert_eq!(store.fetch_one(delivery.id).await.unwrap().as_ref(), Some(&delivery));
    record(store, vec![ended(&made, delivery.id, t(2), NextState::Delivered)]).await;
    assert_eq!(store.fetch_one(delivery.id).await.unwrap(), None);
    assert_eq!(store.fetch_one(DeliveryId(4_711)).await.unwrap(), None);
    assert!(store.fetch(made.id, &[], 10).await.unwrap().deliveries.is_empty());
}

pub(super) async fn a_failure_waits_and_remembers_its_schedule(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let before = arrival(store, "evt_1", t(1)).await.delivery;
    let again = AttemptRecord {
        since: Some(t(4)),
        first_attempt_at: Some(t(3)),
        paused_before: secs(9),
        ..ended(&made, before.id, t(2), NextState::Again { due: t(62), step: 2 })
    };
    record(store, vec![again]).await;
    let after = store.fetch_one(before.id).await.unwrap().unwrap();
    assert_eq!((after.due, after.step, after.attempts), (t(62), 2, 1));
    assert_eq!((after.first_attempt_at, after.since), (Some(t(3)), Some(t(4))));
    assert_eq!((after.paused_before, after.created_at), (secs(9), t(1)));
    assert_eq!(after.body, before.body);
}

pub(super) async fn what_has_ended_is_shown_with_its_attempts(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let first = ended(&made, id, t(2), NextState::Again { due: t(62), step: 1 });
    let mut second = ended(&made, id, t(62), NextState::FailedPermanent);
    second.attempt.number = 2;
    let attempts = vec![first.attempt.clone(), second.attempt.clone()];
    record(store, vec![first]).await;
    record(store, vec![second]).await;
    let (delivery, shown) = store.delivery(WS, id).await.unwrap().unwrap();
    let shown: Vec<Attempt> = shown.into_iter().map(|one| one.attempt).collect();
    assert_eq!(shown, attempts);
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::FailedPermanent, 2));
    assert_eq!(delivery.ended_at, Some(t(63)));
    let over = over(store, &made, "evt_2", t(70), NextState::Delivered).await;
    assert_eq!(
        crate::store::tests::conformance::delivery(store, over).await.state,
        DeliveryState::Delivered
    );
}

pub(super) async fn the_trace_of_an_attempt_is_stored_with_it(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(62), step: 1 };
    let mut first = answered(ended(&made, id, t(2), again), "no");
    first.attempt.trace = Trace {
        address: Some([203, 0, 113, 7].into()),
        connect: Some(secs(1)),
        reason: Some(Reason::Closed(17)),
        ..Trace::default()
    };
    let second = ended(&made, id, t(62), NextState::Delivered);
    let expected = [&first, &second].map(|record| RecordedAttempt {
        attempt: record.attempt.clone(),
        url: Some("https://one.example.com/".into()),
        transcript: record.transcript.as_deref().cloned(),
    });
    record(store, vec![first]).await;
    record(store, vec![second]).await;
    assert_eq!(store.delivery(WS, id).await.unwrap().unwrap().1, expected);
}

pub(super) async fn the_latest_attempts_are_shown_with_their_transcripts(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(62), step: 1 };
    let all = (0..40).map(|nth| answered(ended(&made, id, t(nth), again), &nth.to_string()));
    record(store, all.collect()).await;
    let shown = answers(store, id).await;
    assert_eq!((shown.len(), shown.iter().flatten().count()), (40, 32));
    assert_eq!(shown.last(), Some(&Some("39".to_owned())));
}

pub(super) async fn the_outcome_of_the_last_attempt_is_stored_with_the_delivery(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let last = async || delivery(store, id).await.last_outcome;
    assert_eq!(last().await, None);
    let refused = Outcome::Failed(Failure::Refused);
    let mut first = ended(&made, id, t(2), NextState::Again { due: t(62), step: 1 });
    first.attempt.outcome = refused.clone();
    record(store, vec![first]).await;
    assert_eq!(last().await.as_ref(), Some(&refused));
    let listed = store.deliveries(WS, &Filter::default(), Paging::first(10)).await.unwrap().items;
    assert_eq!(listed[0].last_outcome.as_ref(), Some(&refused));
    let again = store.redeliver(WS, id, t(3)).await.unwrap().unwrap();
    assert_eq!(again.last_outcome, Some(refused), "nothing has come since");
    let timeout = Outcome::Failed(Failure::Timeout);
    let mut second = ended(&made, id, t(62), NextState::FailedPermanent);
    second.attempt.number = 2;
    second.attempt.outcome = timeout.clone();
    record(store, vec![second]).await;
    assert_eq!(last().await, Some(timeout));
}

pub(super) async fn the_outcome_of_the_last_attempt_is_stored_with_the_webhook(store: &dyn Store) {
    let made = webhook(store, "one").await;
    assert_eq!(made.last_outcome, None);
    let last_outcome = Some(Outcome::Failed(Failure::Tls));
    let update = WebhookUpdate { last_outcome: last_outcome.clone(), ..webhook_update(&made) };
    store.record(vec![], vec![update], vec![], vec![]).await.unwrap();
    let read = async || store.load(made.id).await.unwrap().unwrap().webhook.last_outcome;
    assert_eq!(read().await, last_outcome);
    let moved = async |url: &str| {
        let change = WebhookChange { url: Some(url.into()), ..WebhookChange::default() };
        store.change_webhook(WS, made.id, change, t(1)).await.unwrap();
    };
    moved(&made.url).await;
    assert_eq!(read().await, last_outcome, "it has the URL that it had");
    moved("https://two.example.com/").await;
    assert_eq!(read().await, None);
}

pub(super) async fn at_another_url_the_health_begins_anew_and_its_mails_are_not_sent(
    store: &dyn Store,
) {
    let policy = Policy { warn_share: 0.05, warn_for: secs(1_800), pause_after: secs(86_400) };
    let failed = Health::default().after(&policy, Observation::Failed, t(1)).0;
    for (name, paused_at, left) in [("one", None, &[][..]), ("two", Some(t(2)), &["paused:two"])] {
        let made = webhook(store, name).await;
        let update = WebhookUpdate {
            health: failed.clone(),
            look_at: Some(t(90)),
            paused_at,
            last_outcome: Some(Outcome::Failed(Failure::Tls)),
            ..webhook_update(&made)
        };
        let first = NewMail { webhook: made.id, ..mail(&format!("paused:{name}")) };
        store.record(vec![], vec![update.clone()], vec![first.into()], vec![]).await.unwrap();
        let read = async || store.webhook(WS, made.id).await.unwrap().unwrap();
        assert_eq!(read().await.health, failed);
        let url = format!("https://{name}.example.com/repaired");
        let change = WebhookChange { url: Some(url.into()), ..WebhookChange::default() };
        store.change_webhook(WS, made.id, change, t(3)).await.unwrap();
        // What the earlier URL has shown may be written after.
        let stale = WebhookUpdate { paused_at: None, ..update };
        let late = NewMail { webhook: made.id, ..mail(&format!("warning:{name}")) };
        store.record(vec![], vec![stale], vec![late.into()], vec![]).await.unwrap();
        let moved = read().await;
        assert_eq!((moved.health, moved.last_outcome), (Health::default(), None), "{name}");
        assert_eq!(moved.paused_at, paused_at, "{name}");
        let mails = store.claim_mails(9, t(4), Default::default()).await.unwrap();
        let keys: Vec<&str> = mails.iter().map(|one| one.mail.key.as_str()).collect();
        assert_eq!(keys, left, "{name}");
    }
    assert_eq!(queues(store).await, [], "no health is to be checked");
}

pub(super) async fn at_another_url_a_webhook_probes_anew_and_at_once(store: &dyn Store) {
    let made = webhook(store, "one").await;
    pause(store, &made, t(2)).await;
    store.reactivate(WS, made.id, t(3)).await.unwrap();
    assert!(store.reorder(made.id, 9).await.unwrap());
    let id = arrival(store, "evt_1", t(4)).await.delivery.id;
    let probing = store.webhook(WS, made.id).await.unwrap().unwrap();
    let probe = Some(Probe::This(id));
    let failed = WebhookUpdate { probing: probe, ..webhook_update(&probing) };
    let again = NextState::Again { due: t(90_000), step: 3 };
    let ended = vec![ended(&made, id, t(5), again)];
    store.record(ended, vec![failed.clone()], vec![], vec![]).await.unwrap();
    let moved = async |url: &str| {
        let change = WebhookChange { url: Some(url.into()), ..WebhookChange::default() };
        store.change_webhook(WS, made.id, change, t(6)).await.unwrap();
        store.webhook(WS, made.id).await.unwrap().unwrap()
    };
    assert_eq!(moved(&made.url).await.probing, probe, "it has the URL that it had");
    let there = moved("https://two.example.com/").await;
    assert_eq!((there.probing, there.reordering), (Some(Probe::Any), true));
    assert!(store.reorder(made.id, 9).await.unwrap());
    let next = store.fetch_one(id).await.unwrap().unwrap();
    assert_eq!((next.due, next.step, next.attempts), (t(4), 0, 1));
    // The end of the probe at the earlier URL ends no probing at this one.
    let delivered = WebhookUpdate { probing: None, ..failed };
    store.record(vec![], vec![delivered], vec![], vec![]).await.unwrap();
    let after = store.webhook(WS, made.id).await.unwrap().unwrap();
    assert_eq!((after.probing, after.reordering), (Some(Probe::Any), false));
    // Away and back.
    assert_ne!(moved(&made.url).await.paused_total, there.paused_total);
}

/// The starts since then, in order.
pub(super) async fn starts(store: &dyn Store, since: UnixTime) -> Vec<(EndpointId, UnixTime)> {
    let found = store.starts_since(since).await.unwrap();
    let mut found: Vec<_> = found.iter().map(|one| (one.endpoint, one.sent_at)).collect();
    found.sort();
    found
}

pub(super) async fn results_for_deleted_rows_are_skipped(store: &dyn Store) {
    let gone = webhook(store, "gone").await;
    let lost = arrival(store, "evt_1", t(1)).await.delivery.id;
    store.delete_webhook(WS, gone.id).await.unwrap();
    let kept = webhook(store, "kept").await;
    let id = arrival(store, "evt_2", t(2)).await.delivery.id;
    let batch = vec![
        ended(&gone, lost, t(3), NextState::Delivered),
        ended(&kept, DeliveryId(4_711), t(3), NextState::Delivered),
        ended(&kept, id, t(3), NextState::Delivered),
    ];
    let updates =
        vec![webhook_update(&gone), WebhookUpdate { look_at: Some(t(9)), ..webhook_update(&kept) }];
    store.record(batch, updates, vec![], vec![]).await.unwrap();
    assert_eq!(delivery(store, id).await.state, DeliveryState::Delivered);
    // Their starts are recorded anyway: they count in the rate limit of their endpoints.
    let expected = [(gone.endpoint, t(4)), (kept.endpoint, t(4)), (kept.endpoint, t(4))];
    assert_eq!(starts(store, t(0)).await, expected);
    assert!(store.load(gone.id).await.unwrap().is_none());
}

pub(super) async fn a_record_pauses_and_never_ends_a_pause(store: &dyn Store) {
    let made = webhook(store, "one").await;
    pause(store, &made, t(10)).await;
    pause(store, &made, t(20)).await;
    let probe = Some(Probe::This(DeliveryId(3)));
    let later = WebhookUpdate { probing: probe, ..webhook_update(&made) };
    store.record(vec![], vec![later], vec![], vec![]).await.unwrap();
    let after = store.load(made.id).await.unwrap().unwrap().webhook;
    assert_eq!((after.paused_at, after.probing), (Some(t(10)), probe));
}

pub(super) async fn health_from_before_a_reactivation_is_skipped(store: &dyn Store) {
    let made = webhook(store, "one").await;
    pause(store, &made, t(10)).await;
    store.reactivate(WS, made.id, t(40)).await.unwrap();
    // An attempt that started before the reactivation ends now, with the state of that time.
    pause(store, &made, t(10)).await;
    let after = store.load(made.id).await.unwrap().unwrap().webhook;
    assert_eq!((after.paused_at, after.probing), (None, Some(Probe::Any)));
}

pub(super) async fn a_webhook_with_work_has_a_queue(store: &dyn Store) {
    let idle = webhook(store, "idle").await;
    let looked_at = webhook(store, "looked-at").await;
    let reordered = webhook(store, "reordered").await;
    assert_eq!(queues(store).await, []);
    let look = WebhookUpdate { look_at: Some(t(50)), ..webhook_update(&looked_at) };
    store.record(vec![], vec![look], vec![], vec![]).await.unwrap();
    pause(store, &reordered, t(1)).await;
    store.reactivate(WS, reordered.id, t(2)).await.unwrap();
    let found = queues(store).await;
    assert_eq!(found, [(looked_at.id, None), (reordered.id, None)]);
    let (_, arrivals) = accept(store, vec![event("evt_1"), event("evt_2")], t(5)).await;
    let mine = arrivals.iter().find(|one| one.webhook == idle.id).unwrap().delivery.id;
    let again = NextState::Again { due: t(65), step: 1 };
    record(store, vec![ended(&idle, mine, t(6), again)]).await;
    let found = queues(store).await;
    let due = Some(t(5));
    assert_eq!(found, [(idle.id, due), (looked_at.id, due), (reordered.id, due)]);
    assert_eq!(store.load(idle.id).await.unwrap().unwrap().due, due);
}

pub(super) async fn starts_are_counted_by_endpoint_from_their_moment_on(store: &dyn Store) {
    let one = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(500), step: 1 };
    let other_endpoint = EndpointId(one.endpoint.0 + 1);
    // Attempts are recorded in the order of their ends: a slow one after some that started later.
    let slow = {
        let mut slow = ended(&one, id, t(105), again);
        slow.attempt.took = secs(10);
        slow.attempt.trace.first_byte = Some(secs(8));
        AttemptRecord { endpoint: other_endpoint, ..slow }
    };
    let mut all: Vec<AttemptRecord> = (0..2_000).map(|_| ended(&one, id, t(10), again)).collect();
    all.extend([t(99), t(100), t(110)].map(|start| ended(&one, id, start, again)));
    all.push(slow);
    record(store, all).await;
    // Each counts from the latest time at which its request can have been sent.
    let of_one = [t(100), t(101), t(111)].map(|sent| (one.endpoint, sent));
    let expected = [of_one[0], of_one[1], of_one[2], (other_endpoint, t(107))];
    assert_eq!(starts(store, t(100)).await, expected);
    let found = store.starts_since(t(100)).await.unwrap();
    let of_one = |start: &EarlierStart| {
        (start.webhook, start.workspace.as_deref()) == (Some(one.id), Some(WS))
    };
    assert!(found.iter().all(of_one), "{found:?}");
    let url_of =
        |endpoint| found.iter().find(|start| start.endpoint == endpoint).unwrap().url.clone();
    assert_eq!([one.endpoint, other_endpoint].map(url_of), [Some(one.url), None]);
    assert_eq!(store.starts_since(t(0)).await.unwrap().len(), 2_004);
    assert_eq!(store.starts_since(t(112)).await.unwrap(), []);
}

pub(super) async fn a_reactivated_webhook_is_reordered_in_steps(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for (name, at) in [("evt_1", 1), ("evt_2", 2), ("evt_3", 3), ("evt_4", 4)] {
        ids.push(arrival(store, name, t(at)).await.delivery.id);
    }
    let due = |step| NextState::Again { due: t(900 - u64::from(step)), step };
    let failures = (1..=3).zip(&ids).map(|(step, id)| ended(&made, *id, t(10), due(step)));
    record(store, failures.collect()).await;
    pause(store, &made, t(20)).await;
    store.reactivate(WS, made.id, t(30)).await.unwrap();
    assert!(!store.reorder(made.id, 2).await.unwrap());
    assert!(store.load(made.id).await.unwrap().unwrap().webhook.reordering);
    assert!(store.reorder(made.id, 2).await.unwrap());
    assert!(!store.load(made.id).await.unwrap().unwrap().webhook.reordering);
    let deliveries = store.fetch(made.id, &[], 10).await.unwrap().deliveries;
    assert_eq!(deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), ids);
    for one in &deliveries {
        assert_eq!((one.due, one.step, one.since), (one.created_at, 0, None));
    }
    // The deadline still counts from the first attempt.
    assert_eq!(deliveries[0].first_attempt_at, Some(t(10)));
    assert_eq!(deliveries[0].attempts, 1);
    assert!(store.reorder(WebhookId(4_711), 2).await.unwrap());
    // A repeated call does not reset a delivery that failed since.
    let redeliveries = deliveries[0].redeliveries;
    let failed = AttemptRecord { redeliveries, ..ended(&made, ids[0], t(40), due(1)) };
    record(store, vec![failed]).await;
    assert!(store.reorder(made.id, 2).await.unwrap());
    assert_eq!(store.fetch_one(ids[0]).await.unwrap().unwrap().due, t(899));
}

pub(super) async fn excluded_deliveries_do_not_count_toward_a_fetchs_limit(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for name in ["evt_1", "evt_2", "evt_3", "evt_4"] {
        let large = NewEvent { body: vec![b'x'; 300 << 10].into(), ..event(name) };
        ids.push(accept(store, vec![large], t(1)).await.1[0].delivery.id);
    }
    let found = store.fetch(made.id, &ids[..2], 2).await.unwrap();
    assert_eq!(found.deliveries[0].id, ids[2]);
    let found = store.fetch(made.id, &ids[..3], 2).await.unwrap();
    assert_eq!((found.deliveries.len(), found.deliveries[0].id, found.more), (1, ids[3], false));
    assert!(store.fetch(made.id, &ids, 2).await.unwrap().deliveries.is_empty());
}
