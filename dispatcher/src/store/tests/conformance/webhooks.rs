//! Promises about webhooks.

use crate::domain::webhook::client_certificate::{CertificateId, ClientCertificate};
use crate::domain::webhook::headers::value_of;
use crate::domain::webhook::options::{
    CertificateChange, OptionsChange, OptionsError, WebhookOptions,
};
use crate::domain::webhook::signing_key::{SEED_BYTES, SigningKey};
use crate::domain::webhook::stop::Stop;
use crate::domain::webhook::{Probe, WebhookState};
use crate::store::tests::conformance::*;
use crate::store::types::{Changed, KeyChange, WebhookChange};

pub(super) async fn a_webhook_is_read_back_as_it_was_registered(store: &dyn Store) {
    let made = webhook_of(store, WS, URL).await;
    assert_eq!(*made.url, *URL);
    assert_eq!(*made.workspace, *WS);
    assert_eq!(made.created_at, t(0));
    assert_eq!(made.events, EventSet::of([EventType::new("user.created")]));
    assert_eq!(made.secrets.current.secret.expose(), "whsec_first");
    assert_eq!(made.secrets.current.created_at, Some(made.created_at));
    assert_eq!(made.secrets.others, []);
    assert_eq!(made.state(), WebhookState::Delivering);
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(made.clone()));
    let loaded = store.load(made.id).await.unwrap().unwrap();
    assert_eq!((loaded.webhook, loaded.due), (made, None));
}

pub(super) async fn a_workspace_has_no_more_webhooks_than_it_may(store: &dyn Store) {
    let new = || NewWebhook { webhooks_max: 2, ..new_webhook(WS, URL, &[]) };
    let first = webhook_of(store, WS, URL).await;
    assert!(matches!(store.create_webhook(new(), t(1)).await.unwrap(), Created::Webhook(_)));
    assert!(matches!(store.create_webhook(new(), t(2)).await.unwrap(), Created::TooMany));
    let other = NewWebhook { workspace: OTHER_WS.into(), ..new() };
    assert!(matches!(store.create_webhook(other, t(3)).await.unwrap(), Created::Webhook(_)));
    assert!(store.delete_webhook(WS, first.id).await.unwrap());
    assert!(matches!(store.create_webhook(new(), t(4)).await.unwrap(), Created::Webhook(_)));
}

pub(super) async fn a_workspace_sees_no_other_ones_webhooks(store: &dyn Store) {
    let theirs = webhook_of(store, OTHER_WS, URL).await;
    assert_eq!(store.webhook(WS, theirs.id).await.unwrap(), None);
    assert_eq!(store.webhooks(WS, None, 10).await.unwrap().items, []);
    let change = WebhookChange { url: Some("https://evil.example/".into()), ..Default::default() };
    assert_eq!(store.change_webhook(WS, theirs.id, change, t(1)).await.unwrap(), Changed::Absent);
    assert!(!store.delete_webhook(WS, theirs.id).await.unwrap());
    pause(store, &theirs, t(1)).await;
    assert_eq!(store.reactivate(WS, theirs.id, t(2)).await.unwrap(), None);
    assert_eq!(store.ping(WS, theirs.id, event("evt_1"), t(3)).await.unwrap(), None);
    let still = store.webhook(OTHER_WS, theirs.id).await.unwrap().unwrap();
    assert_eq!((still.paused_at, &*still.url), (Some(t(1)), URL));
}

pub(super) async fn webhooks_are_listed_oldest_first_page_by_page(store: &dyn Store) {
    let mut made = Vec::new();
    for name in ["a", "b", "c", "d"] {
        made.push(webhook(store, name).await.id);
        webhook_of(store, OTHER_WS, URL).await;
    }
    assert!(store.delete_webhook(WS, made.remove(1)).await.unwrap());
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.webhooks(WS, after, 2).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.iter().map(|webhook| webhook.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, made);
}

pub(super) async fn webhooks_of_one_url_share_an_endpoint(store: &dyn Store) {
    let one = webhook_of(store, WS, URL).await;
    let other = webhook_of(store, OTHER_WS, URL).await;
    let elsewhere = webhook(store, "elsewhere").await;
    assert_eq!(one.endpoint, other.endpoint);
    assert_ne!(one.endpoint, elsewhere.endpoint);
    // The endpoint, and with it its rate limit, outlives its webhooks.
    store.delete_webhook(WS, one.id).await.unwrap();
    store.delete_webhook(OTHER_WS, other.id).await.unwrap();
    while sweep(store, t(3_600), t(3_600), 100).await {}
    assert_eq!(webhook_of(store, WS, URL).await.endpoint, one.endpoint);
}

pub(super) async fn what_is_not_changed_stays(store: &dyn Store) {
    let made = webhook(store, "a").await;
    let change = async |change| changed(store, made.id, change, t(1)).await;
    let same = change(WebhookChange::default()).await;
    assert_eq!(same, made);
    let url = Some(URL.into());
    let moved = change(WebhookChange { url, ..Default::default() }).await;
    assert_eq!((&*moved.url, moved.events), (URL, made.events));
    assert_ne!(moved.endpoint, made.endpoint);
    let events = EventSet::of([EventType::new("plan.changed")]);
    let changed = WebhookChange { events: Some(events.clone()), ..Default::default() };
    let changed = change(changed).await;
    assert_eq!(changed, Webhook { events, ..moved });
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(changed));
}

/// Changes a webhook within its limits.
async fn changed(
    store: &dyn Store,
    id: WebhookId,
    change: WebhookChange,
    now: UnixTime,
) -> Webhook {
    match store.change_webhook(WS, id, change, now).await.unwrap() {
        Changed::Webhook(webhook) => *webhook,
        other => panic!("{other:?}"),
    }
}

fn header(name: &str, value: &str) -> (http::HeaderName, Option<http::HeaderValue>) {
    (name.parse().unwrap(), Some(value_of(value).unwrap()))
}

pub(super) async fn a_change_that_was_made_up_before_another_changes_nothing(store: &dyn Store) {
    let new = new_webhook(WS, URL, &[]);
    let Created::Webhook(made) = store.create_webhook(new, t(0)).await.unwrap() else {
        panic!("there was room");
    };
    let described = |text: &str, seen: &Webhook| {
        let description = Some(text.to_owned());
        let options = OptionsChange { description, ..OptionsChange::default() };
        WebhookChange { options, seen: Some(Box::new(seen.clone())), ..Default::default() }
    };
    let first = changed(store, made.id, described("first", &made), t(1)).await;
    let late = store.change_webhook(WS, made.id, described("second", &made), t(2)).await;
    assert_eq!(late.unwrap(), Changed::Overtaken);
    assert_eq!(store.webhook(WS, made.id).await.unwrap().as_ref(), Some(&first));
    let again = changed(store, made.id, described("second", &first), t(3)).await;
    assert_ne!(again, first);
}

pub(super) async fn options_are_read_back_and_change_one_by_one(store: &dyn Store) {
    let pem = ("-- chain --".to_owned(), "-- hidden key --".to_owned());
    let certificate = ClientCertificate::new(pem, "CN=a".to_owned(), t(9), CertificateId([7; 32]));
    let set = OptionsChange {
        description: Some("Orders".to_owned()),
        metadata: [("team".to_owned(), Some("a".to_owned()))].into(),
        headers: vec![header("authorization", "Bearer hidden"), header("x-route", "7")],
        all_answers: Some(true),
        requests_per_minute: Some(30),
        client_certificate: CertificateChange::Set(certificate),
    };
    let options = WebhookOptions::default().changed(set).unwrap();
    let new = NewWebhook { options: options.clone(), ..new_webhook(WS, URL, &[]) };
    let Created::Webhook(made) = store.create_webhook(new, t(0)).await.unwrap() else {
        panic!("there was room");
    };
    assert_eq!(made.options, options);
    let change = OptionsChange {
        headers: vec![header("x-route", "8"), ("authorization".parse().unwrap(), None)],
        ..OptionsChange::default()
    };
    let expected = options.changed(change.clone()).unwrap();
    let change = WebhookChange { options: change, ..Default::default() };
    assert_eq!(changed(store, made.id, change, t(1)).await.options, expected);
    let many = (0..20).map(|nth| header(&format!("x-{nth}"), "1")).collect();
    let many = OptionsChange { headers: many, ..OptionsChange::default() };
    let url = Some("https://elsewhere.example/".into());
    let change = WebhookChange { url, options: many, ..Default::default() };
    let refused = store.change_webhook(WS, made.id, change, t(2)).await.unwrap();
    assert_eq!(refused, Changed::Refused(OptionsError::Headers));
    let after = store.webhook(WS, made.id).await.unwrap().unwrap();
    assert_eq!((after.options, &*after.url), (expected, URL), "nothing changed");
    let loaded = store.load(made.id).await.unwrap().unwrap().webhook;
    assert_eq!(loaded.options.headers.count(), 1);
    let kept = loaded.options.client_certificate.expect("it is kept");
    assert_eq!((kept.chain(), kept.key()), ("-- chain --", "-- hidden key --"));
    let client_certificate = CertificateChange::Remove;
    let options = OptionsChange { client_certificate, ..OptionsChange::default() };
    let change = WebhookChange { options, ..Default::default() };
    assert_eq!(changed(store, made.id, change, t(3)).await.options.client_certificate, None);
}

pub(super) async fn a_signing_key_stays_until_it_is_removed(store: &dyn Store) {
    let [first, second] = [1, 2].map(|byte| SigningKey::of_seed([byte; SEED_BYTES]));
    let new = NewWebhook { signing_key: Some(first.clone()), ..new_webhook(WS, URL, &[]) };
    let Created::Webhook(made) = store.create_webhook(new, t(0)).await.unwrap() else {
        panic!("there was room");
    };
    assert_eq!(made.secrets.signing_key.as_ref(), Some(&first));
    let have = || KeyChange::Have(second.clone());
    for (signing_key, expected) in [
        (KeyChange::Keep, Some(&first)),
        (have(), Some(&first)),
        (KeyChange::Remove, None),
        (KeyChange::Keep, None),
        (have(), Some(&second)),
    ] {
        let what = format!("{signing_key:?}");
        let change = WebhookChange { signing_key, ..Default::default() };
        let after = changed(store, made.id, change, t(1)).await;
        assert_eq!(after.secrets.signing_key.as_ref(), expected, "{what}");
    }
    let loaded = store.load(made.id).await.unwrap().unwrap().webhook;
    assert_eq!(loaded.secrets.signing_key, Some(second));
}

/// Disables or enables a webhook.
async fn disable(store: &dyn Store, id: WebhookId, disabled: bool, now: UnixTime) -> Webhook {
    let change = WebhookChange { disabled: Some(disabled), ..Default::default() };
    changed(store, id, change, now).await
}

pub(super) async fn a_disabled_webhook_resumes_like_a_paused_one(store: &dyn Store) {
    let made = webhook(store, "a").await;
    assert_eq!(disable(store, made.id, false, t(5)).await, made, "it was not disabled");
    let disabled = disable(store, made.id, true, t(10)).await;
    assert_eq!((disabled.state(), disabled.disabled_at), (WebhookState::Disabled, Some(t(10))));
    assert_eq!(disable(store, made.id, true, t(20)).await, disabled, "it is disabled since then");
    assert_eq!(store.reactivate(WS, made.id, t(25)).await.unwrap(), Some(disabled));
    let enabled = disable(store, made.id, false, t(30)).await;
    let expected = Webhook {
        paused_total: secs(20),
        probing: Some(Probe::Any),
        reordering: true,
        ..made.clone()
    };
    assert_eq!(enabled, expected);
    // What was decided before it was disabled does not undo that.
    let stale = webhook_update(&made);
    let stale = WebhookUpdate { paused_at: Some(t(9)), ..stale };
    store.record(Vec::new(), vec![stale], Vec::new(), Vec::new()).await.unwrap();
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(enabled));
}

pub(super) async fn the_latest_times_without_deliveries_are_kept(store: &dyn Store) {
    let made = webhook(store, "a").await;
    let other = webhook(store, "b").await;
    pause(store, &made, t(10)).await;
    assert_eq!(store.stops(made.id, t(0)).await.unwrap(), [], "it goes on");
    store.reactivate(WS, made.id, t(15)).await.unwrap();
    for nth in 1..=100 {
        disable(store, made.id, true, t(nth * 20)).await;
        disable(store, made.id, false, t(nth * 20 + 5)).await;
    }
    let all = store.stops(made.id, t(0)).await.unwrap();
    let expected = |nth: u64| Stop { from: t(nth * 20), until: t(nth * 20 + 5) };
    assert_eq!(all, (1..=100).map(expected).collect::<Vec<_>>(), "the first is kept no longer");
    // One that ended then is over.
    assert_eq!(store.stops(made.id, t(1_985)).await.unwrap(), [expected(100)]);
    assert_eq!(store.stops(made.id, t(1_984)).await.unwrap().len(), 2);
    assert_eq!(store.stops(other.id, t(0)).await.unwrap(), []);
}

pub(super) async fn a_webhook_is_paused_and_disabled_at_one_time(store: &dyn Store) {
    let made = webhook(store, "a").await;
    pause(store, &made, t(10)).await;
    disable(store, made.id, true, t(20)).await;
    let still = disable(store, made.id, false, t(30)).await;
    assert_eq!((still.paused_at, still.disabled_at), (Some(t(10)), None));
    assert_eq!((still.state(), still.paused_total), (WebhookState::Paused, secs(0)));
    disable(store, made.id, true, t(40)).await;
    let still = store.reactivate(WS, made.id, t(50)).await.unwrap().unwrap();
    assert_eq!((still.paused_at, still.disabled_at), (None, Some(t(50))));
    assert_eq!((still.state(), still.paused_total), (WebhookState::Disabled, secs(40)));
    let free = disable(store, made.id, false, t(60)).await;
    assert_eq!((free.state(), free.paused_total), (WebhookState::Delivering, secs(50)));
    // The attempt that paused it may have ended after it was disabled.
    disable(store, made.id, true, t(70)).await;
    pause(store, &free, t(71)).await;
    assert_eq!(disable(store, made.id, false, t(80)).await.paused_at, Some(t(70)));
}

pub(super) async fn a_deleted_webhook_is_removed_with_its_waiting_deliveries(store: &dyn Store) {
    let made = webhook(store, "a").await;
    let waiting = arrival(store, "evt_1", t(1)).await.delivery.id;
    assert!(store.delete_webhook(WS, made.id).await.unwrap());
    assert!(!store.delete_webhook(WS, made.id).await.unwrap());
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), None);
    assert!(store.load(made.id).await.unwrap().is_none());
    assert_eq!(queues(store).await, []);
    assert!(store.fetch(made.id, &[], 10).await.unwrap().deliveries.is_empty());
    assert_eq!(store.fetch_one(waiting).await.unwrap(), None);
    assert_eq!(store.delivery(WS, waiting).await.unwrap(), None);
    assert_eq!(store.redeliver(WS, waiting, t(2)).await.unwrap(), None);
    assert_eq!(listed(store, Filter::default()).await, Vec::<String>::new());
    assert_eq!(accept(store, vec![event("evt_2")], t(3)).await.1, []);
    assert_eq!(store.ping(WS, made.id, event("evt_3"), t(4)).await.unwrap(), None);
}

pub(super) async fn a_reactivation_ends_the_pause_and_counts_it(store: &dyn Store) {
    let made = webhook(store, "a").await;
    for (paused, reactivated, total) in [(t(10), t(40), 30), (t(100), t(107), 37)] {
        let made = store.webhook(WS, made.id).await.unwrap().unwrap();
        pause(store, &made, paused).await;
        let before = store.webhook(WS, made.id).await.unwrap().unwrap();
        assert_eq!(before.state(), WebhookState::Paused);
        let after = store.reactivate(WS, made.id, reactivated).await.unwrap().unwrap();
        assert_eq!(after.paused_at, None);
        assert_eq!(after.paused_total, secs(total));
        assert_eq!(after.probing, Some(Probe::Any));
        assert_eq!(after.health, Health::default());
        assert!(after.reordering);
        assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(after));
    }
}

pub(super) async fn a_reactivation_counts_for_something_however_the_clock_was_set(
    store: &dyn Store,
) {
    let made = webhook(store, "a").await;
    pause(store, &made, t(100)).await;
    let after = store.reactivate(WS, made.id, t(10)).await.unwrap().unwrap();
    assert_ne!(after.paused_total, made.paused_total);
    // An update from before the reactivation that is written after it does not pause again.
    pause(store, &made, t(100)).await;
    assert_eq!(store.webhook(WS, made.id).await.unwrap().unwrap().paused_at, None);
}

pub(super) async fn a_webhook_that_is_not_paused_is_not_reactivated(store: &dyn Store) {
    let made = webhook(store, "a").await;
    assert_eq!(store.reactivate(WS, made.id, t(9)).await.unwrap(), Some(made.clone()));
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(made));
}
