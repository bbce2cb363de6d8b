//! Webhooks of all workspaces, for operators.

use crate::domain::webhook::filter::WebhookFilter;
use crate::domain::webhook::{Probe, WebhookState};
use crate::store::tests::conformance::*;
use crate::store::types::WebhookChange;

/// Webhooks of two workspaces, two of each: one is paused at 10, 20; the last is disabled too.
async fn two_paused_in_each(store: &dyn Store) -> Vec<Webhook> {
    let mut all = Vec::new();
    for workspace in [WS, OTHER_WS] {
        for paused_at in [t(10), t(20)] {
            let url = format!("https://{workspace}.example/{}", paused_at.0);
            let made = webhook_of(store, workspace, &url).await;
            webhook_of(store, workspace, "https://fine.example/").await;
            pause(store, &made, paused_at).await;
            all.push(made);
        }
    }
    all
}

/// Webhooks that match, in pages of one.
async fn found(store: &dyn Store, filter: WebhookFilter) -> Vec<WebhookId> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.find_webhooks(&filter, after, 1).await.unwrap();
        assert!(page.items.len() <= 1);
        all.extend(page.items.iter().map(|webhook| webhook.id));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

pub(super) async fn webhooks_that_do_not_deliver_are_found_in_every_workspace(store: &dyn Store) {
    let all = WebhookFilter::default();
    let made = two_paused_in_each(store).await;
    let disabled = made.last().unwrap();
    let change = WebhookChange { disabled: Some(true), ..Default::default() };
    store.change_webhook(OTHER_WS, disabled.id, change, t(30)).await.unwrap();
    let gone = webhook(store, "gone").await;
    pause(store, &gone, t(10)).await;
    assert!(store.delete_webhook(WS, gone.id).await.unwrap());
    let ids = |places: &[usize]| places.iter().map(|nth| made[*nth].id).collect::<Vec<_>>();
    let of = |workspace: &str| WebhookFilter { workspace: Some(workspace.into()), ..all.clone() };
    let in_state = |state| WebhookFilter { state: Some(state), ..all.clone() };
    for (filter, expected) in [
        (all.clone(), ids(&[0, 1, 2, 3])),
        (of(OTHER_WS), ids(&[2, 3])),
        (of("ws_unknown"), vec![]),
        (in_state(WebhookState::Paused), ids(&[0, 1, 2])),
        (in_state(WebhookState::Disabled), ids(&[3])),
        (in_state(WebhookState::Failing), vec![]),
        (WebhookFilter { host: Some("ws_acme.example".to_owned()), ..all.clone() }, ids(&[0, 1])),
        (WebhookFilter { since: Some(t(20)), ..all.clone() }, ids(&[1, 3])),
        (WebhookFilter { until: Some(t(20)), ..all.clone() }, ids(&[0, 2])),
    ] {
        assert_eq!(found(store, filter.clone()).await, expected, "{filter:?}");
    }
}

pub(super) async fn paused_webhooks_that_match_are_reactivated_page_by_page(store: &dyn Store) {
    let made = two_paused_in_each(store).await;
    let state = async |nth: usize| {
        let queue = store.load(made[nth].id).await.unwrap().unwrap();
        queue.webhook.state()
    };
    let change = WebhookChange { disabled: Some(true), ..Default::default() };
    store.change_webhook(OTHER_WS, made[3].id, change, t(30)).await.unwrap();
    let of_acme = WebhookFilter { workspace: Some(WS.into()), ..Default::default() };
    let first = store.reactivate_found(&of_acme, None, 1, t(40)).await.unwrap();
    assert_eq!((first.items, first.next), (vec![made[0].id], Some(made[0].id)));
    assert_eq!([state(0).await, state(1).await], [WebhookState::Delivering, WebhookState::Paused]);
    let woken = store.webhook(WS, made[0].id).await.unwrap().unwrap();
    assert_eq!((woken.paused_total, woken.probing), (secs(30), Some(Probe::Any)));
    let rest = store.reactivate_found(&of_acme, first.next, 9, t(40)).await.unwrap();
    assert_eq!((rest.items, rest.next), (vec![made[1].id], None));
    let all = WebhookFilter::default();
    let rest = store.reactivate_found(&all, None, 9, t(40)).await.unwrap();
    assert_eq!((rest.items, rest.next), (vec![made[2].id], None));
    // Its owner has it disabled: the pause stays as it is.
    let disabled = store.webhook(OTHER_WS, made[3].id).await.unwrap().unwrap();
    assert_eq!(disabled.paused_at, Some(t(20)));
    assert_eq!(store.reactivate_found(&all, None, 9, t(50)).await.unwrap().items, []);
}
