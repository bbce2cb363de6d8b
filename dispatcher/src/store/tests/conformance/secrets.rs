//! Secrets of webhooks: replaced, added, removed.

use weir_common::time::Tick;

use crate::store::tests::conformance::*;
use crate::store::types::{Rotated, Rotation, SECRETS_BEFORE_MAX, SecretRemoval};

async fn rotate(store: &dyn Store, id: WebhookId, secret: &str, overlap: u64) -> Rotated {
    let (secret, overlap) = (Secret::new(secret.to_owned()), Some(secs(overlap)));
    store.rotate(WS, id, Rotation { secret, overlap }, t(1)).await.unwrap()
}

async fn add(store: &dyn Store, id: WebhookId, secret: &str) -> Rotated {
    let rotation = Rotation { secret: Secret::new(secret.to_owned()), overlap: None };
    store.rotate(WS, id, rotation, t(2)).await.unwrap()
}

pub(super) async fn every_secret_signs_until_its_own_overlap_ends(store: &dyn Store) {
    let made = webhook(store, "a").await;
    // The clock of the store does not advance.
    let now = store.steady(Tick(0));
    let signing = async |after: u64| {
        let secrets = store.webhook(WS, made.id).await.unwrap().unwrap().secrets;
        secrets.signing(now.plus(secs(after))).collect::<Vec<_>>().join(" ")
    };
    for (secret, overlap) in [("whsec_2", 10), ("whsec_3", 30), ("whsec_4", 20)] {
        let Rotated::Webhook(rotated) = rotate(store, made.id, secret, overlap).await else {
            panic!("there was room for {secret}");
        };
        assert_eq!(rotated.secrets.current.secret.expose(), secret);
        assert_eq!(store.webhook(WS, made.id).await.unwrap(), Some(*rotated));
    }
    for (after, expected) in [
        (0, "whsec_4 whsec_3 whsec_2 whsec_first"),
        (9, "whsec_4 whsec_3 whsec_2 whsec_first"),
        (10, "whsec_4 whsec_3 whsec_2"),
        (19, "whsec_4 whsec_3 whsec_2"),
        (20, "whsec_4 whsec_2"),
        (30, "whsec_4"),
    ] {
        assert_eq!(signing(after).await, expected, "after {after} s");
    }
    assert!(matches!(rotate(store, WebhookId(4_711), "whsec_x", 9).await, Rotated::Absent));
}

pub(super) async fn no_secret_is_stopped_to_make_room_for_another(store: &dyn Store) {
    let made = webhook(store, "a").await;
    for nth in 0..SECRETS_BEFORE_MAX {
        let secret = format!("whsec_{nth}");
        let rotated = rotate(store, made.id, &secret, 100 + nth as u64).await;
        assert!(matches!(rotated, Rotated::Webhook(_)), "{nth}: {rotated:?}");
    }
    let before = store.webhook(WS, made.id).await.unwrap();
    let refused = rotate(store, made.id, "whsec_one_too_many", 100).await;
    assert!(
        matches!(refused, Rotated::TooMany { free_in } if free_in == Some(secs(100))),
        "{refused:?}"
    );
    assert_eq!(store.webhook(WS, made.id).await.unwrap(), before);
    // Secrets whose overlap has ended do not count.
    let other = webhook(store, "b").await;
    for nth in 0..3 * SECRETS_BEFORE_MAX {
        let rotated = rotate(store, other.id, &format!("whsec_{nth}"), 0).await;
        assert!(matches!(rotated, Rotated::Webhook(_)), "{nth}: {rotated:?}");
    }
}

pub(super) async fn a_secret_without_an_end_signs_until_it_is_removed(store: &dyn Store) {
    let made = webhook(store, "a").await;
    let secrets = async || store.webhook(WS, made.id).await.unwrap().unwrap().secrets;
    let now = store.steady(Tick(0));
    let signing = async |after: u64| {
        secrets().await.signing(now.plus(secs(after))).collect::<Vec<_>>().join(" ")
    };
    let remove = async |secret: &str| {
        let (secrets, mut named) = (secrets().await, None);
        for one in secrets.active(now).filter(|one| one.secret.expose() == secret) {
            named = Some(one.fingerprint());
        }
        store.remove_secret(WS, made.id, &named.unwrap_or_default()).await.unwrap()
    };
    assert!(matches!(add(store, made.id, "whsec_2").await, Rotated::Webhook(_)));
    assert!(matches!(rotate(store, made.id, "whsec_3", 10).await, Rotated::Webhook(_)));
    for known in ["whsec_3", "whsec_2", "whsec_first"] {
        assert!(matches!(add(store, made.id, known).await, Rotated::Known), "{known}");
    }
    let found = secrets().await;
    let created = found.active(now).map(|one| one.created_at).collect::<Vec<_>>();
    assert_eq!(created, [Some(t(1)), Some(t(2)), Some(made.created_at)]);
    assert_eq!(signing(9).await, "whsec_3 whsec_2 whsec_first");
    assert_eq!(signing(10).await, "whsec_3 whsec_first");
    // The newest one without an end follows the current one.
    assert_eq!(remove("whsec_3").await, SecretRemoval::Removed);
    assert_eq!(signing(0).await, "whsec_first whsec_2");
    assert_eq!(remove("whsec_first").await, SecretRemoval::Last);
    assert_eq!(remove("whsec_3").await, SecretRemoval::Absent);
    assert_eq!(remove("whsec_2").await, SecretRemoval::Removed);
    assert_eq!(signing(0).await, "whsec_first");
    let (fingerprint, other) = (secrets().await.current.fingerprint(), WebhookId(4_711));
    for (workspace, id) in [("ws_other", made.id), (WS, other)] {
        let removal = store.remove_secret(workspace, id, &fingerprint).await.unwrap();
        assert_eq!(removal, SecretRemoval::Absent, "{workspace} {id:?}");
    }
}

pub(super) async fn secrets_without_an_end_count_as_well(store: &dyn Store) {
    let made = webhook(store, "a").await;
    for nth in 0..SECRETS_BEFORE_MAX {
        let added = add(store, made.id, &format!("whsec_{nth}")).await;
        assert!(matches!(added, Rotated::Webhook(_)), "{nth}: {added:?}");
    }
    for refused in
        [add(store, made.id, "whsec_x").await, rotate(store, made.id, "whsec_y", 0).await]
    {
        assert!(matches!(refused, Rotated::TooMany { free_in: None }), "{refused:?}");
    }
}
