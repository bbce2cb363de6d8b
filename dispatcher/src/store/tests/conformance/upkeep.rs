//! Promises about mails, retention, figures and closing.

use crate::domain::attempt::EarlierStart;
use crate::store::StoreError;
use crate::store::mail::{Addressing, NewMail, Posted, QueuedMail};
use crate::store::tests::conformance::attempts::starts;
use crate::store::tests::conformance::*;
use crate::store::types::{JobStep, WebhookChange};

pub(super) async fn a_mail_is_claimed_once_and_stored_once(store: &dyn Store) {
    assert_eq!(store.mail_due().await.unwrap(), None);
    let mails = ["one", "two", "one", "three"].map(|key| mail(key).into()).into();
    store.record(vec![], vec![], mails, vec![]).await.unwrap();
    store.record(vec![], vec![], vec![mail("two").into()], vec![]).await.unwrap();
    assert!(store.mail_due().await.unwrap().is_some_and(|due| due <= t(1)));
    let first = store.claim_mails(2, t(1), Default::default()).await.unwrap();
    assert_eq!(first[0].mail, mail("one"));
    assert_eq!((&*first[1].mail.key, first[1].failures), ("two", 0));
    let rest = store.claim_mails(9, t(1), Default::default()).await.unwrap();
    assert_eq!(rest.iter().map(|one| &*one.mail.key).collect::<Vec<_>>(), ["three"]);
    store.posted(first[0].id, Posted::Sent).await.unwrap();
    store.posted(first[1].id, Posted::Abandoned).await.unwrap();
    // Keys are kept for a month, whether the mail was sent or abandoned.
    store
        .record(vec![], vec![], ["one", "two", "three"].map(|key| mail(key).into()).into(), vec![])
        .await
        .unwrap();
    assert_eq!(store.claim_mails(9, t(9), Default::default()).await.unwrap(), []);
    assert_eq!(store.mail_due().await.unwrap(), None);
}

pub(super) async fn a_mail_that_was_not_sent_is_claimed_again_when_it_is_due(store: &dyn Store) {
    store.record(vec![], vec![], vec![mail("one").into()], vec![]).await.unwrap();
    let claimed = store.claim_mails(9, t(1), Default::default()).await.unwrap();
    store.posted(claimed[0].id, Posted::Again(t(60))).await.unwrap();
    assert_eq!(store.mail_due().await.unwrap(), Some(t(60)));
    assert_eq!(store.claim_mails(9, t(59), Default::default()).await.unwrap(), []);
    let again = store.claim_mails(9, t(60), Default::default()).await.unwrap();
    assert_eq!((again[0].id, again[0].failures), (claimed[0].id, 1));
    assert_eq!(again[0].mail, mail("one"));
}

pub(super) async fn a_mail_to_owners_waits_until_they_are_found_and_each_gets_one(
    store: &dyn Store,
) {
    let to_owners = |key: &str| QueuedMail::ToOwners("ws_a".into(), mail(key));
    let mails = vec![to_owners("one:"), to_owners("two:"), to_owners("one:")];
    store.record(vec![], vec![], mails, vec![]).await.unwrap();
    assert_eq!(store.claim_mails(9, t(1), Default::default()).await.unwrap(), []);
    let found = store.unaddressed_mails(9, t(1)).await.unwrap();
    assert_eq!((found.len(), &*found[0].workspace, found[0].failures), (2, "ws_a", 0));
    let [one, two] = [found[0].id, found[1].id];
    store.address_mail(one, Addressing::Again(t(60))).await.unwrap();
    store.address_mail(two, Addressing::Abandoned).await.unwrap();
    assert_eq!(store.unaddressed_mails(9, t(59)).await.unwrap(), []);
    assert_eq!(store.unaddressed_mails(9, t(60)).await.unwrap()[0].failures, 1);
    let owners = ["a@x.example", "b@x.example"].map(str::to_owned);
    store.address_mail(one, Addressing::To(owners.into())).await.unwrap();
    assert_eq!(store.unaddressed_mails(9, t(99)).await.unwrap(), []);
    let claimed = store.claim_mails(9, t(99), Default::default()).await.unwrap();
    let sent = claimed.iter().map(|one| (&*one.mail.to, &*one.mail.key, one.failures));
    let expected = [("a@x.example", "one:a@x.example", 0), ("b@x.example", "one:b@x.example", 0)];
    assert_eq!(sent.collect::<Vec<_>>(), expected);
    assert_eq!(claimed[0].mail.text, mail("one").text);
    // Its key is kept: the incident is not reported again.
    store.record(vec![], vec![], vec![to_owners("one:")], vec![]).await.unwrap();
    assert_eq!(store.unaddressed_mails(9, t(99)).await.unwrap(), []);
}

pub(super) async fn of_each_workspace_one_mail_is_claimed_at_a_time(store: &dyn Store) {
    let worst = webhook(store, "worst").await.id;
    let other = webhook_of(store, "ws_other", "https://other.example.com/").await.id;
    // Of each webhook one notice: its mails have the same key, up to the address.
    let about = |webhook, to: &str| {
        NewMail { webhook, to: to.to_owned(), ..mail(&format!("paused:{webhook:?}:{to}")) }.into()
    };
    let mails = vec![about(worst, "a"), about(worst, "b"), about(worst, "c"), about(other, "d")];
    store.record(vec![], vec![], mails, vec![]).await.unwrap();
    let claim = async |but: &[&str]| {
        let but = but.iter().map(|one| Box::from(*one)).collect();
        let claimed = store.claim_mails(9, t(1), but).await.unwrap();
        claimed.into_iter().map(|one| one.mail.to).collect::<Vec<_>>()
    };
    assert_eq!(claim(&[]).await, ["a", "d"]);
    assert!(claim(&[WS]).await.is_empty(), "one of its mails is being sent");
    assert_eq!(claim(&["ws_other"]).await, ["b"]);
}

pub(super) async fn a_mail_that_is_no_longer_true_is_not_sent(store: &dyn Store) {
    let id = webhook(store, "one").await.id;
    let about = |key: &str| NewMail { webhook: id, ..mail(&format!("{key}:owner@example.com")) };
    let record = async |mail: QueuedMail| {
        store.record(vec![], vec![], vec![mail], vec![]).await.unwrap();
    };
    let claim = async || {
        let claimed = store.claim_mails(9, t(1), Default::default()).await.unwrap();
        claimed.into_iter().map(|one| (one.id, one.mail.key)).collect::<Vec<_>>()
    };
    // A pause takes the place of a warning, also of one that the server defers meanwhile.
    record(about("warning").into()).await;
    let sending = claim().await;
    record(about("paused").into()).await;
    assert!(!store.posted(sending[0].0, Posted::Again(t(1))).await.unwrap());
    let paused = claim().await;
    assert_eq!(paused[0].1, "paused:owner@example.com");
    assert_eq!(paused.len(), 1);
    // The same notice again takes the place of nothing.
    record(about("paused").into()).await;
    assert!(store.posted(paused[0].0, Posted::Again(t(1))).await.unwrap());
    assert_eq!(claim().await, paused);
    // One that has recovered.
    record(about("warning:again").into()).await;
    record(QueuedMail::Withdrawn(id)).await;
    assert_eq!(claim().await, []);
    // One that its owner disables, which ends no pause.
    record(about("warning:disabled").into()).await;
    let disabled = |disabled| WebhookChange { disabled: Some(disabled), ..Default::default() };
    store.change_webhook(WS, id, disabled(true), t(1)).await.unwrap();
    assert_eq!(claim().await, []);
    record(about("paused:disabled").into()).await;
    store.change_webhook(WS, id, disabled(true), t(1)).await.unwrap();
    assert_eq!(claim().await.len(), 1);
    store.change_webhook(WS, id, disabled(false), t(1)).await.unwrap();
    // One whose owners are to be found, and that is deleted meanwhile.
    record(QueuedMail::ToOwners(WS.into(), NewMail { to: String::new(), ..about("paused:once") }))
        .await;
    let found = store.unaddressed_mails(9, t(1)).await.unwrap();
    assert!(store.delete_webhook(WS, id).await.unwrap());
    let owners = Addressing::To(["a@x.example".to_owned()].into());
    store.address_mail(found[0].id, owners).await.unwrap();
    assert_eq!(claim().await, []);
    // One that is reactivated.
    let webhook = webhook(store, "two").await;
    pause(store, &webhook, t(1)).await;
    record(NewMail { webhook: webhook.id, ..mail("paused:two") }.into()).await;
    // Its secret is still lost.
    record(NewMail { webhook: webhook.id, ..mail("secret-lost:two") }.into()).await;
    store.reactivate(WS, webhook.id, t(2)).await.unwrap();
    let left = claim().await;
    assert_eq!(left.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["secret-lost:two"]);
}

pub(super) async fn of_a_webhook_with_several_faults_each_has_its_mail(store: &dyn Store) {
    let id = webhook(store, "one").await.id;
    let about = |key: &str| NewMail { webhook: id, ..mail(key) }.into();
    let mails = ["warning:1", "paused:1", "secret-lost:1", "warning:2", "secret-lost:2"].map(about);
    for (mail, expected) in mails.into_iter().zip([
        &["warning:1"][..],
        &["paused:1"],
        &["paused:1", "secret-lost:1"],
        &["secret-lost:1", "warning:2"],
        &["secret-lost:2"],
    ]) {
        store.record(vec![], vec![], vec![mail], vec![]).await.unwrap();
        let mut found = Vec::new();
        // One of the workspace at a time.
        while let [one] = &*store.claim_mails(9, t(1), Default::default()).await.unwrap() {
            found.push(one.clone());
        }
        let mut keys: Vec<_> = found.iter().map(|one| one.mail.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        for one in found {
            store.posted(one.id, Posted::Again(t(1))).await.unwrap();
        }
    }
}

/// Sweeps until nothing is left to drop.
async fn sweep(store: &dyn Store, delivered_before: UnixTime, failed_before: UnixTime) {
    for _ in 0..100 {
        if !crate::store::tests::conformance::sweep(store, delivered_before, failed_before, 2).await
        {
            return;
        }
    }
    panic!("a sweep has no end");
}

pub(super) async fn what_ended_long_ago_is_dropped_with_its_event(store: &dyn Store) {
    let made = webhook(store, "one").await;
    over(store, &made, "evt_old", t(10), NextState::Delivered).await;
    over(store, &made, "evt_new", t(20), NextState::Delivered).await;
    over(store, &made, "evt_bad_old", t(10), NextState::FailedPermanent).await;
    over(store, &made, "evt_bad_new", t(20), NextState::FailedPermanent).await;
    // They ended a second after they started.
    sweep(store, t(11), t(11)).await;
    assert_eq!(listed(store, Filter::default()).await.len(), 4);
    sweep(store, t(12), t(11)).await;
    let left = listed(store, Filter::default()).await;
    assert_eq!(left, ["evt_bad_new", "evt_new", "evt_bad_old"]);
    sweep(store, t(12), t(12)).await;
    assert_eq!(listed(store, Filter::default()).await, ["evt_bad_new", "evt_new"]);
    assert_eq!(store.starts_since(t(0)).await.unwrap().len(), 2);
    let again = ["evt_old", "evt_bad_old", "evt_new"].map(event).to_vec();
    assert_eq!(accept(store, again, t(30)).await.0, [true, true, false]);
}

pub(super) async fn transcripts_have_a_retention_of_their_own(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(62), step: 1 };
    record(store, vec![answered(ended(&made, id, t(9), again), "one")]).await;
    record(store, vec![answered(ended(&made, id, t(10), again), "two")]).await;
    let sweep = async |answers| {
        let retention = Retention { delivered: secs(900), failed: secs(900), answers };
        while store.sweep(&retention, t(21), 7).await.unwrap() {}
    };
    // They ended a second after they started.
    sweep(secs(11)).await;
    assert_eq!(answers(store, id).await, [Some("one".to_owned()), Some("two".to_owned())]);
    sweep(secs(10)).await;
    assert_eq!(answers(store, id).await, [None, Some("two".to_owned())]);
    sweep(secs(9)).await;
    assert_eq!(answers(store, id).await, [None, None]);
}

pub(super) async fn transcripts_are_dropped_with_their_webhook_and_their_delivery(
    store: &dyn Store,
) {
    let gone = webhook(store, "gone").await;
    for number in 0..20 {
        let id = arrival(store, &format!("evt_{number}"), t(1)).await.delivery.id;
        let ended = ended(&gone, id, t(2), NextState::FailedPermanent);
        record(store, vec![answered(ended, "theirs")]).await;
    }
    store.delete_webhook(WS, gone.id).await.unwrap();
    // Nothing ended long enough ago, but the webhook is gone.
    sweep(store, t(0), t(0)).await;
    let made = webhook(store, "made").await;
    let id = arrival(store, "evt_made", t(3)).await.delivery.id;
    let last = answered(ended(&made, id, t(4), NextState::FailedPermanent), "ours");
    record(store, vec![last]).await;
    sweep(store, t(0), t(9)).await;
    // Numbers of attempts may be given again: a transcript that was left would be shown here.
    for number in 0..30 {
        let id = arrival(store, &format!("evt_again_{number}"), t(10)).await.delivery.id;
        record(store, vec![ended(&made, id, t(10), NextState::Delivered)]).await;
        assert_eq!(answers(store, id).await, [None], "{number}");
    }
}

pub(super) async fn what_still_waits_is_never_dropped(store: &dyn Store) {
    let made = webhook(store, "one").await;
    arrival(store, "evt_1", t(1)).await;
    over(store, &made, "evt_2", t(1), NextState::Again { due: t(60), step: 1 }).await;
    let id = over(store, &made, "evt_3", t(1), NextState::Delivered).await;
    store.redeliver(WS, id, t(2)).await.unwrap();
    sweep(store, t(9_000), t(9_000)).await;
    assert_eq!(store.fetch(made.id, &[], 10).await.unwrap().deliveries.len(), 3);
}

pub(super) async fn an_event_stays_until_its_last_delivery_is_deleted(store: &dyn Store) {
    let one = webhook(store, "one").await;
    let two = webhook(store, "two").await;
    let (_, arrivals) = accept(store, vec![event("evt_1")], t(1)).await;
    record(store, vec![ended(&one, arrivals[0].delivery.id, t(2), NextState::Delivered)]).await;
    sweep(store, t(100), t(100)).await;
    assert_eq!(store.fetch(two.id, &[], 10).await.unwrap().deliveries[0].body, event("evt_1").body);
    assert_eq!(accept(store, vec![event("evt_1")], t(3)).await.0, [false]);
    record(store, vec![ended(&two, arrivals[1].delivery.id, t(4), NextState::Delivered)]).await;
    sweep(store, t(100), t(100)).await;
    assert_eq!(accept(store, vec![event("evt_1")], t(5)).await.0, [true]);
}

pub(super) async fn a_sweep_drops_no_more_than_it_may_at_one_time(store: &dyn Store) {
    let made = webhook(store, "one").await;
    for number in 0..5 {
        over(store, &made, &format!("evt_{number}"), t(1), NextState::Delivered).await;
    }
    assert!(crate::store::tests::conformance::sweep(store, t(100), t(100), 3).await);
    assert_eq!(listed(store, Filter::default()).await.len(), 2);
    assert!(!crate::store::tests::conformance::sweep(store, t(100), t(100), 3).await);
    assert_eq!(listed(store, Filter::default()).await.len(), 0);
}

pub(super) async fn a_deleted_webhooks_waiting_deliveries_are_deleted_at_once(store: &dyn Store) {
    let gone = webhook(store, "gone").await;
    for number in 0..5 {
        arrival(store, &format!("evt_{number}"), t(1)).await;
    }
    over(store, &gone, "evt_over", t(1), NextState::Delivered).await;
    store.delete_webhook(WS, gone.id).await.unwrap();
    let kept = webhook(store, "kept").await;
    arrival(store, "evt_kept", t(2)).await;
    // No delivery ended long enough ago to be dropped.
    sweep(store, t(0), t(0)).await;
    assert_eq!(store.figures().await.unwrap().waiting, 1);
    assert_eq!(store.fetch(kept.id, &[], 10).await.unwrap().deliveries.len(), 1);
    // Ended deliveries are hidden, and all events recognised until their retention ends.
    assert_eq!(listed(store, Filter::default()).await, ["evt_kept"]);
    let again = ["evt_0", "evt_over", "evt_kept"].map(event).to_vec();
    assert_eq!(accept(store, again, t(3)).await.0, [false; 3]);
    assert_eq!(store.step_job(100, t(3)).await.unwrap(), JobStep::default());
    sweep(store, t(3), t(3)).await;
    let again = ["evt_0", "evt_over", "evt_kept"].map(event).to_vec();
    assert_eq!(accept(store, again, t(4)).await.0, [true, true, false]);
}

pub(super) async fn the_starts_of_a_deleted_webhook_count_until_they_are_old(store: &dyn Store) {
    let gone = webhook(store, "gone").await;
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    let again = NextState::Again { due: t(9), step: 1 };
    record(store, vec![ended(&gone, id, t(2), again)]).await;
    store.delete_webhook(WS, gone.id).await.unwrap();
    // The delivery is dropped, but the start still counts: another webhook may use the endpoint.
    sweep(store, t(2), t(2)).await;
    assert_eq!(store.figures().await.unwrap().waiting, 0);
    assert_eq!(starts(store, t(0)).await, [(gone.endpoint, t(3))]);
    // So does one that was in flight meanwhile, and both in the limits of its workspace and owner.
    record(store, vec![ended(&gone, id, t(2), again)]).await;
    let found = store.starts_since(t(0)).await.unwrap();
    let of = |start: &EarlierStart| (start.webhook, start.workspace.clone());
    assert_eq!(found.iter().map(of).collect::<Vec<_>>(), vec![(Some(gone.id), Some(WS.into())); 2]);
    sweep(store, t(4), t(4)).await;
    assert_eq!(store.starts_since(t(0)).await.unwrap(), []);
}

pub(super) async fn what_is_kept_of_one_deleted_webhook_delays_no_other(store: &dyn Store) {
    let one = webhook(store, "one").await;
    for number in 0..20 {
        over(store, &one, &format!("evt_{number}"), t(1), NextState::Delivered).await;
    }
    store.delete_webhook(WS, one.id).await.unwrap();
    let two = webhook(store, "two").await;
    arrival(store, "evt_waits", t(2)).await;
    store.delete_webhook(WS, two.id).await.unwrap();
    crate::store::tests::conformance::sweep(store, t(0), t(0), 8).await;
    assert_eq!(store.figures().await.unwrap().waiting, 0);
}

pub(super) async fn a_sweep_has_a_share_for_everything_that_is_dropped(store: &dyn Store) {
    accept(store, vec![event("evt_unneeded")], t(1)).await;
    let gone = webhook(store, "gone").await;
    arrival(store, "evt_waits", t(1)).await;
    store.delete_webhook(WS, gone.id).await.unwrap();
    let made = webhook(store, "made").await;
    for number in 0..20 {
        let after = if number % 2 == 0 { NextState::Delivered } else { NextState::FailedPermanent };
        over(store, &made, &format!("evt_{number}"), t(1), after).await;
    }
    assert!(crate::store::tests::conformance::sweep(store, t(9), t(9), 8).await);
    let left = |state| listed(store, in_state(state));
    let (delivered, failed) =
        (left(DeliveryState::Delivered).await, left(DeliveryState::FailedPermanent).await);
    assert!(delivered.len() < 10 && failed.len() < 10, "{delivered:?} {failed:?}");
    assert!(delivered.len() + failed.len() >= 12, "no more than it may");
    assert_eq!(store.figures().await.unwrap().waiting, 0);
    assert_eq!(accept(store, vec![event("evt_unneeded")], t(10)).await.0, [true]);
}

pub(super) async fn figures_report_how_much_there_is(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let gone = webhook(store, "two").await;
    store.delete_webhook(WS, gone.id).await.unwrap();
    let before = store.figures().await.unwrap();
    assert_eq!((before.webhooks, before.waiting), (1, 0));
    assert!(before.bytes > 0);
    let id = arrival(store, "evt_1", t(1)).await.delivery.id;
    arrival(store, "evt_2", t(1)).await;
    assert_eq!(store.figures().await.unwrap().waiting, 2);
    record(store, vec![ended(&made, id, t(2), NextState::Delivered)]).await;
    // A delivery ends only once.
    record(store, vec![ended(&made, id, t(3), NextState::Delivered)]).await;
    let after = store.figures().await.unwrap();
    assert_eq!(after.waiting, 1);
    assert_eq!(after.commits, before.commits + 4);
    store.load(made.id).await.unwrap();
    assert_eq!(store.figures().await.unwrap().commits, after.commits);
}

pub(super) async fn a_closed_store_does_nothing_more(store: &dyn Store) {
    webhook(store, "one").await;
    store.close().await.unwrap();
    let refused = store.accept(vec![event("evt_1")], t(1)).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert!(store.webhooks(WS, None, 9).await.is_err());
    assert!(store.queues(None, 9).await.is_err());
    assert!(store.close().await.is_err());
}
