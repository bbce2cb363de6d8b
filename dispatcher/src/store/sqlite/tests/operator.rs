//! The operator's webhook, and the room for its events.

use serde_json::json;

use crate::config::settings::OperatorEndpoint;
use crate::domain::operator_event::{About, OperatorEvent, Recorded, WORKSPACE};
use crate::domain::webhook::Webhook;
use crate::store::mail::NewMail;
use crate::store::sqlite::operator::{EXHAUSTED_MAX, WAITING_MAX};
use crate::store::sqlite::tests::*;

fn endpoint(url: &str, secret: &str) -> Option<OperatorEndpoint> {
    Some(OperatorEndpoint { url: url.into(), secret: Secret::new(secret.to_owned()) })
}

fn events(kind: EventType, numbers: std::ops::Range<usize>) -> Vec<OperatorEvent> {
    let about = About::Webhook(WebhookId(4_711));
    numbers.map(|nth| OperatorEvent::new(kind, about, NOW, &json!({"nth": nth}))).collect()
}

async fn record(store: &SqliteStore, events: Vec<OperatorEvent>) -> Recorded {
    store.record(vec![], vec![], vec![], events).await.unwrap()
}

async fn webhooks(store: &SqliteStore) -> Vec<Webhook> {
    store.webhooks(WORKSPACE, None, 9).await.unwrap().items
}

#[tokio::test]
async fn the_operators_webhook_follows_the_settings_and_is_not_counted() {
    let (folder, store) = fresh();
    let set =
        async |store: &SqliteStore, endpoint| store.set_operator(endpoint, NOW).await.unwrap();
    assert_eq!(set(&store, None).await, None);
    assert_eq!(record(&store, events(EventType::PAUSED, 0..1)).await, Recorded::default());
    let id = set(&store, endpoint("https://ops.example/", "whsec_a")).await.expect("it is new");
    assert_eq!(set(&store, endpoint("https://ops.example/", "whsec_a")).await, None);
    let recorded = record(&store, events(EventType::PAUSED, 1..2)).await;
    assert_eq!(recorded.arrivals.iter().map(|one| one.webhook).collect::<Vec<_>>(), [id]);
    assert_eq!(recorded.arrivals[0].delivery.kind, EventType::PAUSED);
    assert_eq!(set(&store, endpoint("https://new.example/", "whsec_a")).await, Some(id));
    assert_eq!(set(&store, endpoint("https://new.example/", "whsec_b")).await, Some(id));
    assert_eq!(store.figures().await.unwrap().webhooks, 0);
    store.close().await.unwrap();
    drop(store);
    let store = open(&folder).unwrap();
    let found = webhooks(&store).await;
    assert_eq!((found.len(), &*found[0].url), (1, "https://new.example/"));
    let signing: Vec<&str> = found[0].secrets.signing(NOW).collect();
    assert_eq!(signing, ["whsec_b"], "the earlier one signs no more");
    assert_eq!(
        store.fetch(id, &[], 9).await.unwrap().deliveries.len(),
        1,
        "it is sent to the new URL"
    );
    assert_eq!(set(&store, None).await, Some(id));
    assert_eq!(webhooks(&store).await, []);
    assert_eq!(store.figures().await.unwrap().webhooks, 0);
    assert_ne!(set(&store, endpoint("https://ops.example/", "whsec_a")).await, Some(id));
}

#[tokio::test]
async fn a_mass_failure_leaves_room_for_what_happens_to_webhooks() {
    let (_folder, store) = fresh();
    store.set_operator(endpoint("https://ops.example/", "whsec_a"), NOW).await.unwrap();
    let (few, kind) = (WAITING_MAX - EXHAUSTED_MAX, EventType::EXHAUSTED);
    let recorded = record(&store, events(kind, 0..EXHAUSTED_MAX + 3)).await;
    assert_eq!((recorded.arrivals.len(), recorded.dropped), (EXHAUSTED_MAX, 3));
    let recorded = record(&store, events(kind, 0..1)).await;
    assert_eq!((recorded.arrivals.len(), recorded.dropped), (0, 1));
    let recorded = record(&store, events(EventType::PAUSED, 0..few + 2)).await;
    assert_eq!((recorded.arrivals.len(), recorded.dropped), (few, 2));
}

#[tokio::test]
async fn an_event_and_the_change_that_it_is_about_are_one_commit() {
    let (_folder, store) = fresh();
    store.set_operator(endpoint("https://ops.example/", "whsec_a"), NOW).await.unwrap();
    let commits = async || store.figures().await.unwrap().commits;
    let before = commits().await;
    let mail = NewMail {
        webhook: WebhookId(1),
        to: "owner@example.com".to_owned(),
        subject: "Paused".to_owned(),
        text: "It is.".to_owned(),
        key: "one".to_owned(),
    };
    store.record(vec![], vec![], vec![mail.into()], events(EventType::PAUSED, 0..1)).await.unwrap();
    assert_eq!(commits().await, before + 1);
}
