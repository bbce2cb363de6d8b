//! Promises about sessions of the dashboard.

use crate::domain::session::{Grant, Issuer, NewSession, Role, SESSIONS_MAX, SessionOpened};
use crate::store::tests::conformance::*;

/// A session of a token, which ends at that second.
fn new(number: u8, token: &str, ends: u64, link: Option<&str>) -> NewSession {
    let issuer = Issuer::Registered(token.to_owned());
    let grant = Grant { workspace: WS.to_owned(), role: Role::Full, issuer, until: None };
    let link = link.map(|nonce| (nonce.to_owned(), t(600)));
    NewSession { id: [number; 32], grant, expires_at: t(ends), link }
}

pub(super) async fn one_session_more_ends_the_oldest_of_the_token_with_most(store: &dyn Store) {
    let open = async |number, token, ends, link| {
        store.open_session(new(number, token, ends, link), t(0)).await.unwrap()
    };
    let is_open = async |number| store.session([number; 32], t(1)).await.unwrap().is_some();
    // The writer's is older than all of the reader's.
    assert_eq!(open(0, "writer", 100, None).await, SessionOpened::Open);
    for number in 1..SESSIONS_MAX as u8 {
        assert_eq!(open(number, "reader", 200, None).await, SessionOpened::Open);
    }
    assert!(is_open(0).await && is_open(1).await);
    assert_eq!(open(201, "reader", 300, None).await, SessionOpened::Open);
    assert_eq!(open(202, "writer", 300, Some("once")).await, SessionOpened::Open);
    let mut ended = 0;
    for number in 1..SESSIONS_MAX as u8 {
        ended += usize::from(!is_open(number).await);
    }
    assert_eq!(ended, 2, "two of the reader's");
    assert!(is_open(0).await && is_open(201).await && is_open(202).await);
    // A session that has ended does not let its link open another one.
    store.end_session([202; 32]).await.unwrap();
    assert_eq!(open(203, "writer", 300, Some("once")).await, SessionOpened::LinkUsed);
    assert!(!is_open(202).await && !is_open(203).await);
}
