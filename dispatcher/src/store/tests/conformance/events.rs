//! Promises about accepted events.

use crate::store::tests::conformance::*;
use crate::store::types::WebhookChange;

pub(super) async fn an_event_waits_for_every_webhook_that_subscribed_to_it(store: &dyn Store) {
    let one = webhook(store, "one").await;
    let two = webhook(store, "two").await;
    let deaf = new_webhook(WS, URL, &[EventType::new("plan.changed")]);
    store.create_webhook(deaf, t(0)).await.unwrap();
    webhook_of(store, OTHER_WS, URL).await;
    let (new, arrivals) = accept(store, vec![event("evt_1")], t(5)).await;
    assert_eq!(new, [true]);
    let notified: Vec<WebhookId> = arrivals.iter().map(|one| one.webhook).collect();
    assert_eq!(notified, [one.id, two.id]);
    for arrival in arrivals {
        let delivery = &arrival.delivery;
        assert_eq!((delivery.due, delivery.created_at), (t(5), t(5)));
        assert_eq!((delivery.attempts, delivery.step, delivery.first_attempt_at), (0, 0, None));
        assert_eq!((&*delivery.event_id, delivery.kind), ("evt_1", EventType::new("user.created")));
        assert_eq!(delivery.body, event("evt_1").body);
        let fetched = store.fetch(arrival.webhook, &[], 10).await.unwrap();
        assert_eq!(fetched.deliveries, [arrival.delivery]);
    }
}

pub(super) async fn an_event_that_was_there_is_not_new_and_not_delivered_again(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let first = arrival(store, "evt_1", t(1)).await;
    let batch = vec![event("evt_2"), event("evt_1")];
    let (new, arrivals) = accept(store, batch, t(2)).await;
    assert_eq!(new, [true, false]);
    assert_eq!(arrivals.len(), 1);
    assert_eq!(&*arrivals[0].delivery.event_id, "evt_2");
    let waiting = store.fetch(made.id, &[], 10).await.unwrap().deliveries;
    assert_eq!(waiting, [first.delivery, arrivals[0].delivery.clone()]);
}

pub(super) async fn another_event_of_the_same_identifier_stops_its_whole_batch(store: &dyn Store) {
    webhook(store, "one").await;
    arrival(store, "evt_1", t(1)).await;
    let other = |id| NewEvent { digest: [8; 32], ..event(id) };
    let batch =
        vec![event("evt_2"), other("evt_1"), event("evt_3"), other("evt_3"), event("evt_1")];
    match store.accept(batch, t(2)).await.unwrap() {
        Accepted::Conflict(places) => assert_eq!(places, [1, 3]),
        Accepted::Stored { new, .. } => panic!("stored {new:?}"),
    }
    assert_eq!(listed(store, Filter::default()).await, ["evt_1"]);
    assert_eq!(accept(store, vec![other("evt_2"), other("evt_3")], t(3)).await.0, [true, true]);
}

pub(super) async fn an_event_may_be_in_a_batch_twice_and_is_stored_once(store: &dyn Store) {
    webhook(store, "one").await;
    let (new, arrivals) = accept(store, vec![event("evt_1"), event("evt_1")], t(1)).await;
    assert_eq!(new, [true, false]);
    assert_eq!(arrivals.len(), 1);
    assert_eq!(listed(store, Filter::default()).await, ["evt_1"]);
}

pub(super) async fn an_event_is_known_wherever_its_name_sorts(store: &dyn Store) {
    accept(store, vec![event("evt_3")], t(1)).await;
    for (names, expected) in [
        (["evt_1", "evt_3"], [true, false]),
        (["evt_5", "evt_3"], [true, false]),
        (["evt_2", "evt_4"], [true, true]),
        (["evt_0", "evt_6"], [true, true]),
        (["evt_6", "evt_0"], [false, false]),
    ] {
        let (new, _) = accept(store, names.map(event).to_vec(), t(2)).await;
        assert_eq!(new, expected, "{names:?}");
    }
}

pub(super) async fn one_identifier_in_two_workspaces_is_two_events(store: &dyn Store) {
    let one = webhook(store, "one").await;
    let two = webhook_of(store, OTHER_WS, URL).await;
    let other = |id| NewEvent { workspace: OTHER_WS.into(), digest: [8; 32], ..event(id) };
    arrival(store, "evt_1", t(1)).await;
    let (new, arrivals) = accept(store, vec![other("evt_1")], t(2)).await;
    assert_eq!((new, arrivals[0].webhook), (vec![true], two.id));
    // Also within one batch: each workspace recognises only its own.
    let batch = vec![event("evt_2"), other("evt_2"), other("evt_1"), event("evt_2")];
    let (new, arrivals) = accept(store, batch, t(3)).await;
    assert_eq!(new, [true, true, false, false]);
    assert_eq!(arrivals.iter().map(|one| one.webhook).collect::<Vec<_>>(), [one.id, two.id]);
    let other_workspace = NewEvent { workspace: "ws_new".into(), ..event("evt_1") };
    let another = NewEvent { digest: [9; 32], ..other("evt_2") };
    match store.accept(vec![other_workspace, another], t(4)).await.unwrap() {
        Accepted::Conflict(places) => assert_eq!(places, [1]),
        Accepted::Stored { new, .. } => panic!("stored {new:?}"),
    }
}

pub(super) async fn an_event_without_subscribers_is_deduplicated_too(store: &dyn Store) {
    assert_eq!(accept(store, vec![event("evt_1")], t(1)).await, (vec![true], vec![]));
    // A webhook gets no event from before its registration.
    webhook(store, "late").await;
    assert_eq!(accept(store, vec![event("evt_1")], t(2)).await, (vec![false], vec![]));
    // The event is recognised for as long as a delivered one would be.
    while sweep(store, t(1), t(1), 10).await {}
    assert_eq!(accept(store, vec![event("evt_1")], t(3)).await.0, [false]);
    while sweep(store, t(2), t(1), 10).await {}
    assert_eq!(accept(store, vec![event("evt_1")], t(4)).await.0, [true]);
}

pub(super) async fn an_envelope_is_read_back_by_its_workspace_alone(store: &dyn Store) {
    let none = event("evt_unneeded");
    accept(store, vec![none], t(1)).await;
    webhook(store, "one").await;
    arrival(store, "evt_1", t(1)).await;
    let read = async |workspace, id| store.event(workspace, id).await.unwrap();
    assert_eq!(read(WS, "evt_1").await, Some(event("evt_1").body));
    for (workspace, id) in [(OTHER_WS, "evt_1"), (WS, "evt_2"), (WS, "evt_unneeded")] {
        assert_eq!(read(workspace, id).await, None, "{workspace} {id}");
    }
}

pub(super) async fn a_ping_is_for_one_webhook_alone(store: &dyn Store) {
    let one = webhook(store, "one").await;
    let two = webhook(store, "two").await;
    let ping = NewEvent { kind: EventType::PING, ..event("evt_1") };
    let arrival = store.ping(WS, one.id, ping, t(1)).await.unwrap().unwrap();
    assert_eq!((arrival.webhook, arrival.delivery.kind), (one.id, EventType::PING));
    assert_eq!(store.fetch(one.id, &[], 10).await.unwrap().deliveries, [arrival.delivery]);
    assert!(store.fetch(two.id, &[], 10).await.unwrap().deliveries.is_empty());
    assert_eq!(store.ping(WS, WebhookId(4_711), event("evt_2"), t(2)).await.unwrap(), None);
}

pub(super) async fn a_type_is_known_from_its_first_use_on(store: &dyn Store) {
    let names = async || {
        let types = store.event_types().await.unwrap();
        types.into_iter().map(EventType::name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["webhook.ping"]);
    let [paid, sent, seen] = ["order.paid", "order.sent", "page.seen"].map(EventType::new);
    let shop = store.create_webhook(new_webhook(WS, URL, &[paid, seen]), t(0)).await.unwrap();
    let Created::Webhook(shop) = shop else { panic!("there was room") };
    assert_eq!(shop.events, EventSet::of([seen, paid]));
    let of = |kind, id| NewEvent { kind, ..event(id) };
    let events = vec![of(sent, "evt_1"), of(paid, "evt_2"), of(paid, "evt_3"), of(seen, "evt_4")];
    let (_, arrivals) = accept(store, events, t(1)).await;
    let arrived: Vec<_> = arrivals.iter().map(|one| one.delivery.kind).collect();
    assert_eq!(arrived, [paid, paid, seen]);
    assert_eq!(store.fetch(shop.id, &[], 10).await.unwrap().deliveries.len(), 3);
    assert_eq!(names().await, ["webhook.ping", "order.paid", "page.seen", "order.sent"]);
    let filter = Filter { kind: Some(seen), ..Filter::default() };
    let listed = store.deliveries(WS, &filter, Paging::first(9)).await.unwrap().items;
    assert_eq!(listed.iter().map(|one| &*one.event_id).collect::<Vec<_>>(), ["evt_4"]);
    let events = Some(EventSet::of([EventType::new("page.left")]));
    let change = WebhookChange { events, ..WebhookChange::default() };
    store.change_webhook(WS, shop.id, change, t(1)).await.unwrap();
    assert_eq!(names().await.last(), Some(&"page.left"));
}
