//! Setting the clock forward or back, at any time, drops no row.

use std::time::Duration;

use crate::config::settings::Retention;
use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::NextState;
use crate::domain::id::{DeliveryId, EndpointId};
use crate::domain::outcome::Outcome;
use crate::domain::trace::Trace;
use crate::store::DeliveryQueue;
use crate::store::mail::{NewMail, Posted};
use crate::store::sqlite::tests::*;
use crate::store::types::Rotation;

const DAY: Duration = Duration::from_secs(86_400);

/// The default configuration.
const KEPT: Retention = Retention {
    delivered: Duration::from_secs(7 * 86_400),
    failed: Duration::from_secs(30 * 86_400),
    answers: Duration::from_secs(7 * 86_400),
};

/// The number of rows in each table from which rows are dropped.
async fn rows(store: &SqliteStore) -> Vec<(&'static str, i64)> {
    let count = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
        let tables = ["deliveries", "events", "attempts", "jobs", "mails", "endpoints"];
        let count = |table| {
            let sql = format!("SELECT count(*) FROM {table}");
            Ok((table, session.conn.query_row(&sql, [], |row| row.get(0))?))
        };
        tables.into_iter().map(count).collect()
    };
    store.writer.run(count).await.unwrap()
}

fn set(clock: &Clock, ahead: bool) {
    let now = clock.now().unix;
    let by = 40 * DAY;
    clock.set(if ahead { now.plus(by) } else { UnixTime(now.0 - by.as_micros() as u64) });
}

fn opened(folder: &Folder, clock: &Clock) -> SqliteStore {
    let (path, key) = (folder.path("data/dispatcher.db"), folder.path("data/secrets.key"));
    SqliteStore::open(&path, &key, clock.clone()).unwrap()
}

async fn sweep(store: &SqliteStore, clock: &Clock) {
    let now = clock.now().unix;
    while store.sweep(&KEPT, now, 20).await.unwrap() {}
}

/// Stores rows of each kind that retention drops.
async fn lived(store: &SqliteStore, clock: &Clock, name: &str) {
    let now = clock.now().unix;
    let event = |id: &str| NewEvent { digest: [7; 32], ..event(&format!("evt_{name}_{id}")) };
    let mut plan = event("nobodys");
    plan.kind = EventType::new("plan.changed");
    let new = NewWebhook {
        workspace: WS.into(),
        url: format!("https://{name}.example.com/").into(),
        events: EventSet::of([EventType::new("user.created")]),
        options: Default::default(),
        secret: Secret::new("whsec_secret".to_owned()),
        webhooks_max: 20,
        signing_key: None,
    };
    let Created::Webhook(webhook) = store.create_webhook(new, now).await.unwrap() else {
        panic!("there was room");
    };
    let events = vec![plan, event("delivered"), event("failed")];
    let Accepted::Stored { new, arrivals } = store.accept(events, now).await.unwrap() else {
        panic!("they are in conflict");
    };
    assert_eq!(new, [true; 3]);
    let mine = arrivals.iter().filter(|one| one.webhook == webhook.id);
    let afters = [NextState::Delivered, NextState::FailedPermanent];
    let over = mine.zip(afters).map(|(one, after)| ended(webhook.id, one.delivery.id, after, now));
    let mail = NewMail {
        webhook: webhook.id,
        to: String::new(),
        subject: String::new(),
        text: String::new(),
        key: name.to_owned(),
    };
    store.record(over.collect(), vec![], vec![mail.into()], vec![]).await.unwrap();
    for mail in store.claim_mails(9, now.plus(50 * DAY), Default::default()).await.unwrap() {
        store.posted(mail.id, Posted::Sent).await.unwrap();
    }
    let nothing = Filter { kind: Some(EventType::PING), ..Filter::default() };
    store.create_job(WS, nothing.into(), now).await.unwrap();
    while store.step_job(500, now).await.unwrap().more {}
}

fn ended(
    webhook: WebhookId,
    delivery: DeliveryId,
    after: NextState,
    now: UnixTime,
) -> AttemptRecord {
    let outcome = Outcome::Delivered { status: 200 };
    AttemptRecord {
        delivery,
        webhook,
        workspace: "ws_1".into(),
        endpoint: EndpointId(1),
        attempt: Attempt {
            number: 1,
            started_at: now,
            took: Duration::ZERO,
            outcome,
            trace: Trace::default(),
        },
        transcript: None,
        redeliveries: 0,
        after,
        first_attempt_at: Some(now),
        since: Some(now),
        paused_before: Duration::ZERO,
    }
}

/// For each event, whether it is recognised when it is sent again.
async fn known(store: &SqliteStore, name: &str, clock: &Clock) -> Vec<bool> {
    let again = ["nobodys", "delivered", "failed"].map(|id| {
        let mut event = event(&format!("evt_{name}_{id}"));
        if id == "nobodys" {
            event.kind = EventType::new("plan.changed");
        }
        event
    });
    match store.accept(again.to_vec(), clock.now().unix).await.unwrap() {
        Accepted::Stored { new, .. } => new.into_iter().map(|new| !new).collect(),
        Accepted::Conflict(places) => panic!("{places:?}"),
    }
}

async fn a_set_clock_drops_nothing(ahead: bool) {
    let folder = Folder::new();
    let clock = Clock::manual(NOW);
    let store = opened(&folder, &clock);
    lived(&store, &clock, "before").await;
    let gone = store.webhooks(WS, None, 9).await.unwrap().items[0].id;
    store.delete_webhook(WS, gone).await.unwrap();
    sweep(&store, &clock).await;
    let there = rows(&store).await;
    assert!(there.iter().all(|(_, count)| *count > 0), "{there:?}");
    // The clock is set wrong, and corrected half a minute later.
    set(&clock, ahead);
    sweep(&store, &clock).await;
    assert_eq!(rows(&store).await, there);
    assert_eq!(known(&store, "before", &clock).await, [true; 3]);
    clock.advance(Duration::from_secs(33));
    lived(&store, &clock, "meanwhile").await;
    set(&clock, !ahead);
    sweep(&store, &clock).await;
    for name in ["before", "meanwhile"] {
        assert_eq!(known(&store, name, &clock).await, [true; 3], "{name}");
    }
    // Rows that were stored while the clock was wrong have the same retention.
    clock.advance(6 * DAY);
    sweep(&store, &clock).await;
    assert_eq!(known(&store, "meanwhile", &clock).await, [true; 3]);
    clock.advance(2 * DAY);
    sweep(&store, &clock).await;
    for name in ["before", "meanwhile"] {
        assert_eq!(known(&store, name, &clock).await, [false, false, true], "{name}");
    }
    clock.advance(24 * DAY);
    sweep(&store, &clock).await;
    assert!(!known(&store, "meanwhile", &clock).await[2]);
    clock.advance(2 * DAY);
    sweep(&store, &clock).await;
    let left = rows(&store).await;
    assert!(left.contains(&("jobs", 0)) && left.contains(&("mails", 0)), "{left:?}");
}

#[tokio::test]
async fn a_clock_that_is_set_forty_days_ahead_drops_nothing() {
    a_set_clock_drops_nothing(true).await;
}

#[tokio::test]
async fn a_clock_that_is_set_forty_days_back_drops_nothing() {
    a_set_clock_drops_nothing(false).await;
}

#[tokio::test]
async fn a_start_with_a_clock_that_is_wrong_drops_nothing() {
    for ahead in [true, false] {
        let folder = Folder::new();
        let clock = Clock::manual(NOW);
        let store = opened(&folder, &clock);
        lived(&store, &clock, "before").await;
        clock.advance(6 * DAY);
        sweep(&store, &clock).await;
        let there = rows(&store).await;
        store.close().await.unwrap();
        drop(store);
        set(&clock, ahead);
        let store = opened(&folder, &clock);
        sweep(&store, &clock).await;
        assert_eq!(rows(&store).await, there);
        // The clock is corrected before the next start.
        drop(store);
        set(&clock, !ahead);
        let store = opened(&folder, &clock);
        sweep(&store, &clock).await;
        assert_eq!(rows(&store).await, there);
        clock.advance(2 * DAY);
        sweep(&store, &clock).await;
        assert_ne!(rows(&store).await, there);
    }
}

#[tokio::test]
async fn times_are_those_of_the_clock_that_the_process_before_had_when_it_last_wrote() {
    let second = Duration::from_secs(1);
    let folder = Folder::new();
    let clock = Clock::manual(NOW);
    let store = opened(&folder, &clock);
    // The clock is set while the process runs, before it writes for the last time.
    set(&clock, false);
    let written = clock.now().unix;
    lived(&store, &clock, "before").await;
    clock.advance(second);
    drop(store);
    let store = opened(&folder, &clock);
    assert_eq!(store.on_earlier_clock(clock.now().unix), written.plus(second));
    assert_eq!(store.unclean_shutdowns(), [clock.now().unix]);
    // And once more, while none runs.
    drop(store);
    set(&clock, true);
    clock.advance(second);
    let store = opened(&folder, &clock);
    let now = clock.now().unix;
    assert_eq!(store.on_earlier_clock(now), written.plus(2 * second));
    assert_eq!(store.unclean_shutdowns(), [UnixTime(now.0 - 1_000_000), now]);
}

#[tokio::test]
async fn a_program_that_is_restarted_all_the_time_drops_what_is_old() {
    let folder = Folder::new();
    let clock = Clock::manual(NOW);
    lived(&opened(&folder, &clock), &clock, "old").await;
    for _ in 0..8 * 24 * 2 {
        clock.advance(DAY / 48);
        let store = opened(&folder, &clock);
        sweep(&store, &clock).await;
    }
    assert_eq!(known(&opened(&folder, &clock), "old", &clock).await, [false, false, true]);
}

#[tokio::test]
async fn a_secret_signs_until_its_overlap_ends_however_the_clock_is_set() {
    for ahead in [true, false] {
        let folder = Folder::new();
        let clock = Clock::manual(NOW);
        let store = opened(&folder, &clock);
        let id = webhook(&store).await;
        let rotate = async |secret: &str| {
            let rotation = Rotation { secret: Secret::new(secret.to_owned()), overlap: Some(DAY) };
            store.rotate(WS, id, rotation, clock.now().unix).await.unwrap()
        };
        let signing = async || {
            let secrets = store.webhook(WS, id).await.unwrap().unwrap().secrets;
            let now = store.steady(clock.now().tick);
            secrets.signing(now).map(str::to_owned).collect::<Vec<_>>()
        };
        rotate("whsec_second").await;
        set(&clock, ahead);
        assert_eq!(signing().await, ["whsec_second", "whsec_secret"]);
        rotate("whsec_third").await;
        set(&clock, !ahead);
        assert_eq!(signing().await, ["whsec_third", "whsec_second", "whsec_secret"]);
        clock.advance(DAY);
        assert_eq!(signing().await, ["whsec_third"]);
    }
}

#[tokio::test]
async fn the_body_of_an_event_for_no_webhook_is_not_kept() {
    let (_folder, store) = fresh();
    let bodies = async || {
        let sql = "SELECT length(body) FROM events ORDER BY id";
        let read = move |session: &mut crate::store::sqlite::writer::session::WriteSession| {
            let mut query = session.conn.prepare(sql)?;
            let all = query.query_map([], |row| row.get::<_, i64>(0))?;
            Ok(all.collect::<rusqlite::Result<Vec<_>>>()?)
        };
        store.writer.run(read).await.unwrap()
    };
    assert!(accept(&store, "evt_nobodys").await.unwrap());
    assert_eq!(bodies().await, [0]);
    webhook(&store).await;
    assert!(accept(&store, "evt_somebodys").await.unwrap());
    assert_eq!(bodies().await, [0, 512]);
    // The event is still recognised, and a different one with its identifier is a conflict.
    assert!(!accept(&store, "evt_nobodys").await.unwrap());
    let other = NewEvent { digest: [8; 32], ..event("evt_nobodys") };
    assert!(matches!(store.accept(vec![other], NOW).await.unwrap(), Accepted::Conflict(_)));
}
