//! Promises about lists of deliveries, and the redelivery of one.

use crate::domain::delivery::Cursor;
use crate::domain::outcome::OutcomeClass;
use crate::store::tests::conformance::attempts::starts;
use crate::store::tests::conformance::*;
use crate::store::types::Order;

const FAILED: DeliveryState = DeliveryState::FailedPermanent;

pub(super) async fn deliveries_are_listed_newest_first_page_by_page(store: &dyn Store) {
    webhook(store, "one").await;
    webhook_of(store, OTHER_WS, URL).await;
    let mut made = Vec::new();
    for number in 0..7 {
        let theirs = NewEvent { workspace: OTHER_WS.into(), ..event(&format!("evt_x{number}")) };
        accept(store, vec![theirs], t(number)).await;
        made.insert(0, arrival(store, &format!("evt_{number}"), t(number)).await.delivery.id);
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .deliveries(WS, &Filter::default(), Paging { after, ..Paging::first(3) })
            .await
            .unwrap();
        assert!(page.items.len() <= 3);
        seen.extend(page.items.iter().map(|one| one.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, made);
}

pub(super) async fn a_list_shows_what_its_filter_selects_and_nothing_else(store: &dyn Store) {
    let users = webhook(store, "users").await;
    let plans = new_webhook(WS, URL, &[EventType::new("plan.changed")]);
    let Created::Webhook(plans) = store.create_webhook(plans, t(0)).await.unwrap() else {
        panic!("there was room");
    };
    over(store, &users, "evt_delivered", t(10), NextState::Delivered).await;
    over(store, &users, "evt_failed", t(20), NextState::FailedPermanent).await;
    arrival(store, "evt_waiting", t(30)).await;
    let tenant = Some("tn_2".into());
    let plan = NewEvent { kind: EventType::new("plan.changed"), tenant, ..event("evt_plan") };
    let (_, arrivals) = accept(store, vec![plan], t(40)).await;
    let fails = ended(&plans, arrivals[0].delivery.id, t(41), NextState::FailedPermanent);
    record(store, vec![fails]).await;
    let any = Filter::default;
    for (filter, expected) in [
        (any(), "evt_plan evt_waiting evt_failed evt_delivered"),
        (in_state(DeliveryState::Waiting), "evt_waiting"),
        (in_state(DeliveryState::Delivered), "evt_delivered"),
        (in_state(FAILED), "evt_plan evt_failed"),
        (Filter { webhook: Some(plans.id), ..any() }, "evt_plan"),
        (Filter { webhook: Some(users.id), ..in_state(FAILED) }, "evt_failed"),
        (Filter { kind: Some(EventType::new("plan.changed")), ..in_state(FAILED) }, "evt_plan"),
        (Filter { kind: Some(EventType::PING), ..any() }, ""),
        (Filter { since: Some(t(20)), until: Some(t(40)), ..any() }, "evt_waiting evt_failed"),
        (Filter { webhook: Some(WebhookId(4_711)), ..any() }, ""),
        (Filter { event: Some("evt_failed".into()), ..any() }, "evt_failed"),
        (Filter { event: Some("evt_failed".into()), until: Some(t(20)), ..any() }, ""),
        (Filter { event: Some("evt_none".into()), ..any() }, ""),
        (Filter { tenant: Some("tn_2".into()), ..any() }, "evt_plan"),
        (Filter { tenant: Some("tn_1".into()), ..in_state(FAILED) }, "evt_failed"),
        (Filter { status: Some(204), ..any() }, "evt_delivered"),
        (Filter { outcome: OutcomeClass::of_name("status_5xx"), ..any() }, "evt_plan evt_failed"),
        (Filter { outcome: OutcomeClass::of_name("timeout"), ..any() }, ""),
    ] {
        assert_eq!(listed(store, filter.clone()).await.join(" "), expected, "{filter:?}");
    }
    store.delete_webhook(WS, plans.id).await.unwrap();
    assert_eq!(listed(store, in_state(FAILED)).await, ["evt_failed"]);
}

pub(super) async fn a_workspace_sees_no_other_ones_deliveries(store: &dyn Store) {
    let made = webhook(store, "one").await;
    webhook_of(store, OTHER_WS, URL).await;
    let id = over(store, &made, "evt_1", t(1), NextState::FailedPermanent).await;
    assert_eq!(store.delivery(OTHER_WS, id).await.unwrap(), None);
    assert_eq!(store.redeliver(OTHER_WS, id, t(2)).await.unwrap(), None);
    let page = store.deliveries(OTHER_WS, &Filter::default(), Paging::first(10)).await.unwrap();
    assert_eq!(page.items, []);
    assert_eq!(delivery(store, id).await.state, FAILED);
}

pub(super) async fn deliveries_ahead_are_counted_up_to_the_limit(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut last = arrival(store, "evt_0", t(1)).await.delivery;
    for number in 1..6 {
        last = arrival(store, &format!("evt_{number}"), t(1)).await.delivery;
    }
    let ahead = |most| store.ahead_of(made.id, last.due, last.id, most);
    assert_eq!(ahead(100).await.unwrap(), 5);
    assert_eq!(ahead(3).await.unwrap(), 3);
    assert_eq!(store.ahead_of(made.id, t(0), last.id, 100).await.unwrap(), 0);
    assert_eq!(store.ahead_of(made.id, t(2), DeliveryId(0), 100).await.unwrap(), 6);
}

pub(super) async fn a_redelivered_delivery_restarts_its_schedule_and_keeps_its_attempts(
    store: &dyn Store,
) {
    let made = webhook(store, "one").await;
    for (name, after) in [("evt_1", NextState::FailedPermanent), ("evt_2", NextState::Delivered)] {
        let id = over(store, &made, name, t(1), after).await;
        let again = store.redeliver(WS, id, t(50)).await.unwrap().unwrap();
        assert_eq!((again.state, again.due), (DeliveryState::Waiting, t(50)));
        assert_eq!((again.first_attempt_at, again.ended_at, again.attempts), (None, None, 1));
        assert_eq!(delivery(store, id).await, again);
        let delivery = store.fetch_one(id).await.unwrap().unwrap();
        assert_eq!((delivery.step, delivery.since, delivery.first_attempt_at), (0, None, None));
        assert_eq!(store.delivery(WS, id).await.unwrap().unwrap().1.len(), 1);
    }
    assert_eq!(store.figures().await.unwrap().waiting, 2);
    assert_eq!(store.redeliver(WS, DeliveryId(4_711), t(50)).await.unwrap(), None);
}

pub(super) async fn a_delivery_keeps_its_latest_attempts_however_often_it_is_redelivered(
    store: &dyn Store,
) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(900), step: 1 };
    let attempt = |nth: u32| {
        let mut one = answered(ended(&made, id, t(nth.into()), again), "no");
        one.attempt.number = nth;
        one
    };
    record(store, (1..=250).map(attempt).collect()).await;
    let shown = async || {
        let shown = store.delivery(WS, id).await.unwrap().unwrap().1;
        shown.iter().map(|one| one.attempt.number).collect::<Vec<_>>()
    };
    let latest: Vec<u32> = (51..=250).collect();
    assert_eq!(shown().await, latest);
    store.redeliver(WS, id, t(300)).await.unwrap();
    assert_eq!(shown().await, latest);
    // The starts of the others count until they are old.
    assert_eq!(starts(store, t(0)).await.len(), 250);
    sweep(store, t(300), t(300), 900).await;
    assert_eq!(starts(store, t(0)).await.len(), 250);
    sweep(store, t(301), t(301), 900).await;
    assert_eq!(starts(store, t(0)).await.len(), 200);
    assert_eq!((shown().await, delivery(store, id).await.attempts), (latest, 250));
}

pub(super) async fn a_waiting_delivery_is_due_at_once_when_it_is_redelivered(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = over(store, &made, "evt_1", t(1), NextState::Again { due: t(900), step: 4 }).await;
    let again = store.redeliver(WS, id, t(50)).await.unwrap().unwrap();
    assert_eq!((again.state, again.due), (DeliveryState::Waiting, t(50)));
    assert_eq!(store.fetch_one(id).await.unwrap().unwrap().step, 0);
    assert_eq!(store.figures().await.unwrap().waiting, 1);
}

pub(super) async fn a_failure_that_began_before_a_redelivery_decides_nothing(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let again = NextState::Again { due: t(900), step: 4 };
    for (name, after) in [("evt_1", again), ("evt_2", NextState::FailedPermanent)] {
        let id = arrival(store, name, t(1)).await.delivery.id;
        let redelivered = store.redeliver(WS, id, t(50)).await.unwrap().unwrap();
        let stale = ended(&made, id, t(2), after);
        let recorded = store.record(vec![stale.clone()], vec![], vec![], vec![]).await.unwrap();
        assert_eq!(recorded.redelivered, [id].into());
        let last_outcome = Some(stale.attempt.outcome);
        let expected = Delivery { attempts: 1, last_outcome, ..redelivered };
        assert_eq!(delivery(store, id).await, expected, "it waits as before");
        let next = store.fetch_one(id).await.unwrap().unwrap();
        assert_eq!((next.step, next.since, next.redeliveries), (0, None, 1));
        let current = AttemptRecord { redeliveries: 1, ..ended(&made, id, t(51), after) };
        let recorded = store.record(vec![current], vec![], vec![], vec![]).await.unwrap();
        assert!(recorded.redelivered.is_empty());
        assert_eq!(delivery(store, id).await.state, after.state());
    }
}

pub(super) async fn a_failure_that_began_before_a_reactivation_keeps_its_delivery_due(
    store: &dyn Store,
) {
    let made = webhook(store, "one").await;
    let again = |due| NextState::Again { due, step: 4 };
    let ids = [
        over(store, &made, "evt_1", t(1), again(t(800))).await,
        over(store, &made, "evt_2", t(2), again(t(900))).await,
    ];
    pause(store, &made, t(20)).await;
    store.reactivate(WS, made.id, t(30)).await.unwrap();
    assert!(store.reorder(made.id, 9).await.unwrap());
    for (id, after) in ids.into_iter().zip([again(t(9_000)), NextState::FailedPermanent]) {
        let reordered = store.fetch_one(id).await.unwrap().unwrap();
        let stale = ended(&made, id, t(19), after);
        let recorded = store.record(vec![stale], vec![], vec![], vec![]).await.unwrap();
        assert_eq!(recorded.redelivered, [id].into());
        let waits = store.fetch_one(id).await.unwrap().unwrap();
        assert_eq!((waits.due, waits.step), (reordered.created_at, 0));
        let current =
            AttemptRecord { redeliveries: waits.redeliveries, ..ended(&made, id, t(51), after) };
        record(store, vec![current]).await;
        assert_eq!(delivery(store, id).await.state, after.state());
    }
}

pub(super) async fn a_2xx_to_an_attempt_from_before_a_redelivery_delivers(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    store.redeliver(WS, id, t(50)).await.unwrap();
    record(store, vec![ended(&made, id, t(2), NextState::Delivered)]).await;
    assert_eq!(delivery(store, id).await.state, DeliveryState::Delivered);
    assert_eq!(store.figures().await.unwrap().waiting, 0);
}

/// Accepts `count` events of a workspace in one call.
async fn arrive(store: &dyn Store, workspace: &str, name: &str, count: u64, now: UnixTime) {
    let one = |nth| NewEvent { workspace: workspace.into(), ..event(&format!("evt_{name}_{nth}")) };
    accept(store, (0..count).map(one).collect(), now).await;
}

/// The number of items on each page, for at most `most` pages.
async fn pages(store: &dyn Store, filter: &Filter, limit: usize, most: usize) -> Vec<usize> {
    let (mut counts, mut after) = (Vec::new(), None);
    while counts.len() < most {
        let page =
            store.deliveries(WS, filter, Paging { after, ..Paging::first(limit) }).await.unwrap();
        counts.push(page.items.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    counts
}

pub(super) async fn a_page_is_full_unless_it_is_the_last(store: &dyn Store) {
    let quiet = webhook(store, "quiet").await;
    arrive(store, WS, "old", 5, t(1)).await;
    let gone = webhook(store, "gone").await;
    let all = EventSet::of([EventType::new("plan.changed")]);
    let change = crate::store::types::WebhookChange { events: Some(all), ..Default::default() };
    store.change_webhook(WS, quiet.id, change, t(0)).await.unwrap();
    for call in 0..7 {
        arrive(store, WS, &format!("{call}"), 1_000, t(2 + call)).await;
    }
    let of = |webhook: &Webhook| Filter { webhook: Some(webhook.id), ..Filter::default() };
    assert_eq!(pages(store, &of(&quiet), 2, 9).await, [2, 2, 1], "behind those of another");
    let until = Filter { until: Some(t(2)), ..Filter::default() };
    assert_eq!(pages(store, &until, 3, 9).await, [3, 2], "behind newer ones");
    let since = Filter { since: Some(t(8)), ..Filter::default() };
    assert_eq!(pages(store, &since, 600, 9).await, [600, 400]);
    assert!(store.delete_webhook(WS, gone.id).await.unwrap());
    assert_eq!(pages(store, &Filter::default(), 2, 9).await, [2, 2, 1], "behind deleted ones");
    assert_eq!(pages(store, &in_state(FAILED), 2, 9).await, [0]);
}

pub(super) async fn failed_deliveries_are_listed_on_full_pages(store: &dyn Store) {
    let made = webhook(store, "one").await;
    for number in 0..3 {
        over(store, &made, &format!("evt_{number}"), t(1), NextState::FailedPermanent).await;
    }
    for call in 0..6 {
        arrive(store, WS, &format!("{call}"), 1_000, t(2)).await;
    }
    assert_eq!(pages(store, &in_state(FAILED), 2, 9).await, [2, 1]);
}

pub(super) async fn a_list_is_ordered_by_when_events_were_accepted(store: &dyn Store) {
    for name in ["one", "two", "three"] {
        webhook(store, name).await;
    }
    // The clock is set back between calls; all events of a call have the same time.
    for (name, now) in [("a", 50), ("b", 20), ("c", 20), ("d", 60), ("e", 40)] {
        arrive(store, WS, name, 4, t(now)).await;
    }
    let list = async |order| {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let paging = Paging { order, after, limit: 7 };
            let page = store.deliveries(WS, &Filter::default(), paging).await.unwrap();
            seen.extend(page.items.iter().map(|one| (one.created_at, one.id)));
            after = page.next;
            if after.is_none() {
                return seen;
            }
        }
    };
    let (seen, mut oldest_first) = (list(Order::Newest).await, list(Order::Oldest).await);
    assert_eq!(seen.len(), 5 * 4 * 3);
    assert!(seen.is_sorted_by(|one, next| one > next), "{seen:?}");
    oldest_first.reverse();
    assert_eq!(oldest_first, seen);
    // A cursor of an earlier version, which has only a number, continues at the same position.
    let earlier = Cursor { created_at: None, id: seen[30].1 };
    let page = store
        .deliveries(WS, &Filter::default(), Paging { after: Some(earlier), ..Paging::first(7) })
        .await
        .unwrap();
    let page: Vec<_> = page.items.iter().map(|one| (one.created_at, one.id)).collect();
    assert_eq!(page, seen[31..38]);
}
