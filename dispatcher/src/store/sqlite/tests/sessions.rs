//! The cost of a session does not grow with those that have ended.

use crate::domain::session::{Grant, Issuer, NewSession, Role};
use crate::store::dashboard::DashboardStore;
use crate::store::sqlite::tests::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn session(number: u8) -> NewSession {
    let issuer = Issuer::Registered("one".to_owned());
    let grant = Grant { workspace: WS.to_owned(), role: Role::Full, issuer, until: None };
    let link = Some((number.to_string(), NOW.plus(HOUR)));
    NewSession { id: [number; 32], grant, expires_at: NOW.plus(HOUR), link }
}

#[tokio::test]
async fn opening_a_session_reads_none_that_has_ended() {
    let watch = Watch::default();
    let (_folder, store) = watched(&watch);
    let mut costs = Vec::new();
    for number in 0..100 {
        watch.drain();
        store.open_session(session(number), NOW).await.unwrap();
        costs.push(watch.drain().values().map(|seen| seen.steps).sum::<i64>());
        store.end_session([number; 32]).await.unwrap();
    }
    assert_eq!(costs[99], costs[1], "{costs:?}");
}
