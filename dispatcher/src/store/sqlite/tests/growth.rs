//! The cost of a call does not grow with the store; at constant load, the file stops growing.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;
use weir_common::time::Clock;

use crate::config::settings::Retention;
use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{Cursor, DeliveryState, NextState};
use crate::domain::id::{DeliveryId, EndpointId};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::trace::Trace;
use crate::domain::webhook::WebhookUpdate;
use crate::store::mail::{NewMail, Posted};
use crate::store::sqlite::tests::*;
use crate::store::types::{JobCreated, Rotation, WebhookChange};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn ended(delivery: DeliveryId, started_at: UnixTime, after: NextState) -> AttemptRecord {
    let outcome = match after {
        NextState::Delivered => Outcome::Delivered { status: 204 },
        _ => Outcome::Failed(Failure::Status(500)),
    };
    let failed = matches!(outcome, Outcome::Failed(_));
    AttemptRecord {
        delivery,
        webhook: WebhookId(1),
        workspace: "ws_1".into(),
        endpoint: EndpointId(1),
        attempt: Attempt { number: 1, started_at, took: SECOND, outcome, trace: Trace::default() },
        transcript: failed.then(Arc::default),
        redeliveries: 0,
        after,
        first_attempt_at: Some(started_at),
        since: Some(started_at),
        paused_before: Duration::ZERO,
    }
}

async fn another(store: &SqliteStore, url: &str) -> WebhookId {
    let new = NewWebhook {
        workspace: WS.into(),
        url: url.into(),
        events: EventSet::of([EventType::new("plan.changed")]),
        options: Default::default(),
        secret: Secret::new("whsec_secret".to_owned()),
        webhooks_max: 20,
        signing_key: None,
    };
    match store.create_webhook(new, NOW).await.unwrap() {
        Created::Webhook(webhook) => webhook.id,
        Created::TooMany => panic!("there was room"),
    }
}

/// Stores events, and returns their deliveries.
pub(super) async fn arrive(
    store: &SqliteStore,
    names: impl Iterator<Item = String>,
    now: UnixTime,
) -> Vec<DeliveryId> {
    let events = names.map(|name| event(&name)).collect();
    match store.accept(events, now).await.unwrap() {
        Accepted::Stored { arrivals, .. } => arrivals.iter().map(|one| one.delivery.id).collect(),
        Accepted::Conflict(places) => panic!("conflicts at {places:?}"),
    }
}

/// Fills a store with `thousands` of deliveries each that are new, wait for a retry, were
/// delivered, and failed permanently.
async fn filled(store: &SqliteStore, thousands: u64) -> Vec<DeliveryId> {
    webhook(store).await;
    another(store, "https://hooks.example.com/paused").await;
    let mut all = Vec::new();
    for round in 0..thousands {
        let now = NOW.plus(SECOND * u32::try_from(round).unwrap());
        let afters = [
            None,
            Some(NextState::Again { due: now.plus(HOUR), step: 1 }),
            Some(NextState::Delivered),
            Some(NextState::FailedPermanent),
        ];
        for (kind, after) in afters.into_iter().enumerate() {
            let names = (0..1_000).map(|nth| format!("evt_{round}_{kind}_{nth}"));
            let ids = arrive(store, names, now).await;
            let over = after.into_iter().flat_map(|after| ids.iter().map(move |id| (*id, after)));
            let over = over.map(|(id, after)| ended(id, now, after)).collect();
            store.record(over, vec![], vec![], vec![]).await.unwrap();
            all.extend(ids);
        }
    }
    all
}

/// The cost of each call in a store of that size, in steps of SQLite's virtual machine.
fn costs(thousands: u64) -> BTreeMap<&'static str, i64> {
    let watch = Watch::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_folder, store) = watched(&watch);
        let all = filled(&store, thousands).await;
        let mut costs = BTreeMap::new();
        let mut cost = |call| {
            let steps = watch.drain().values().map(|seen| seen.steps).sum();
            assert!(costs.insert(call, steps).is_none(), "{call} twice");
        };
        reads(&store, &all, &mut cost).await;
        writes(&store, &all, &mut cost).await;
        costs
    })
}

async fn reads(store: &SqliteStore, all: &[DeliveryId], cost: &mut impl FnMut(&'static str)) {
    let now = NOW.plus(HOUR);
    let in_state = |state| Filter { state: Some(state), ..Filter::default() };
    let filters = [
        ("list", Filter::default()),
        ("list waiting", in_state(DeliveryState::Waiting)),
        ("list delivered", in_state(DeliveryState::Delivered)),
        ("list failed", in_state(DeliveryState::FailedPermanent)),
        ("list of one", Filter { webhook: Some(WebhookId(1)), ..Filter::default() }),
        ("list of nothing", Filter { webhook: Some(WebhookId(2)), ..Filter::default() }),
        (
            "list of a type",
            Filter { kind: Some(EventType::new("plan.changed")), ..Filter::default() },
        ),
        ("list since", Filter { since: Some(now), ..Filter::default() }),
        ("list until", Filter { until: Some(UnixTime(1)), ..Filter::default() }),
        ("list until of a kind", Filter { until: Some(NOW), ..in_state(DeliveryState::Waiting) }),
        ("list of one given up", {
            Filter { webhook: Some(WebhookId(1)), ..in_state(DeliveryState::FailedPermanent) }
        }),
    ];
    store.webhooks(WS, None, 100).await.unwrap();
    cost("(before)");
    for (name, filter) in filters {
        store.deliveries(WS, &filter, Paging::first(10)).await.unwrap();
        cost(name);
    }
    let further = Some(Cursor { created_at: Some(NOW), id: all[3_000] });
    store
        .deliveries(WS, &Filter::default(), Paging { after: further, ..Paging::first(10) })
        .await
        .unwrap();
    cost("list further on");
    store.delivery(WS, all[2_500]).await.unwrap();
    cost("one");
    store.ahead_of(WebhookId(1), now.plus(HOUR), all[100], 500).await.unwrap();
    cost("ahead");
    store.webhooks(WS, None, 100).await.unwrap();
    store.webhook(WS, WebhookId(1)).await.unwrap();
    cost("webhooks");
    store.figures().await.unwrap();
    cost("figures");
    store.load(WebhookId(1)).await.unwrap();
    cost("load");
    store.queues(None, 100).await.unwrap();
    cost("start: queues");
    store.starts_since(now).await.unwrap();
    cost("start: starts");
    store.fetch(WebhookId(1), &all[..5], 32).await.unwrap();
    store.fetch_one(all[10]).await.unwrap();
    cost("fetch");
}

async fn writes(store: &SqliteStore, all: &[DeliveryId], cost: &mut impl FnMut(&'static str)) {
    let now = NOW.plus(HOUR);
    let ids = arrive(store, (0..10).map(|nth| format!("evt_new_{nth}")), now).await;
    cost("accept");
    arrive(store, (0..10).map(|nth| format!("evt_new_{nth}")), now).await;
    cost("accept again");
    store.ping(WS, WebhookId(1), event("evt_ping"), now).await.unwrap();
    cost("ping");
    let over = ids.iter().map(|id| ended(*id, now, NextState::Delivered)).collect();
    store.record(over, vec![], vec![], vec![]).await.unwrap();
    cost("record");
    store.redeliver(WS, all[3_100], now).await.unwrap();
    cost("redeliver");
    let JobCreated::Job(job) = store.create_job(WS, Filter::default().into(), now).await.unwrap()
    else {
        panic!("there are few");
    };
    store.step_job(50, now).await.unwrap();
    store.job(WS, job.id).await.unwrap();
    cost("job of the failed");
    store
        .writer
        .run(|session| Ok(session.conn.execute("UPDATE jobs SET ended_at = 1", [])?))
        .await
        .unwrap();
    let delivered = Filter { state: Some(DeliveryState::Delivered), ..Filter::default() };
    store.create_job(WS, delivered.into(), now).await.unwrap();
    cost("(a job is made)");
    store.step_job(50, now).await.unwrap();
    cost("job of the delivered");
    store.sweep(&kept(HOUR * 9), now, 500).await.unwrap();
    cost("sweep of nothing");
    store.sweep(&kept(Duration::ZERO), now, 500).await.unwrap();
    cost("sweep");
    let paused_at = Some(now);
    let paused = WebhookUpdate {
        webhook: WebhookId(1),
        paused_total: Duration::ZERO,
        health: crate::domain::health::Health::default(),
        last_outcome: None,
        look_at: None,
        paused_at,
        probing: None,
    };
    store.record(vec![], vec![paused], vec![], vec![]).await.unwrap();
    store.reactivate(WS, WebhookId(1), now).await.unwrap();
    cost("reactivate");
    assert!(!store.reorder(WebhookId(1), 100).await.unwrap());
    cost("reorder");
    let moved =
        WebhookChange { url: Some("https://else.example.com".into()), ..WebhookChange::default() };
    store.change_webhook(WS, WebhookId(1), moved, now).await.unwrap();
    cost("change");
    let rotation = Rotation { secret: Secret::new("whsec_other".to_owned()), overlap: Some(HOUR) };
    store.rotate(WS, WebhookId(1), rotation, now).await.unwrap();
    cost("rotate");
    store.delete_webhook(WS, WebhookId(1)).await.unwrap();
    cost("delete");
    store.deliveries(WS, &Filter::default(), Paging::first(10)).await.unwrap();
    cost("list without the deleted");
    store.sweep(&kept(HOUR * 9), now, 500).await.unwrap();
    cost("sweep of the deleted");
}

#[test]
fn no_call_does_more_the_more_there_is() {
    let (few, many) = (costs(2), costs(8));
    assert!(few.len() > 30, "{few:?}");
    for (call, steps) in &few {
        println!("{call}: {steps} steps in a small store, {} in a large one", many[call]);
    }
    for (call, steps) in few.iter().filter(|(call, _)| !call.starts_with('(')) {
        assert_eq!(many[call], *steps, "{call}, with four times as much in the store");
    }
}

/// A short retention.
const KEPT: Retention = Retention {
    delivered: Duration::from_secs(2 * 86_400),
    failed: Duration::from_secs(3 * 86_400),
    answers: Duration::from_secs(86_400),
};

/// Runs days with equal traffic; returns the bytes on disk after each.
async fn live(store: &SqliteStore, clock: &Clock, days: u32) -> Vec<u64> {
    let hook = webhook(store).await;
    let mut sizes = Vec::new();
    for turn in 0..days * 4 {
        clock.advance(6 * HOUR);
        let now = clock.now().unix;
        // Names in no order, as many senders choose them.
        let name = |nth: u32| format!("evt_{:08x}", (turn * 100 + nth).wrapping_mul(0x9e37_79b1));
        let ids = arrive(store, (0..100).map(name), now).await;
        let after =
            |nth| if nth % 10 == 0 { NextState::FailedPermanent } else { NextState::Delivered };
        let over = ids.iter().enumerate().map(|(nth, id)| ended(*id, now, after(nth)));
        let key = format!("warning of {hook:?} to owner@example.com at {turn}");
        let mail = NewMail {
            webhook: hook,
            to: "owner".to_owned(),
            subject: String::new(),
            text: "…".repeat(100),
            key,
        };
        store.record(over.collect(), vec![], vec![mail.into()], vec![]).await.unwrap();
        for mail in store.claim_mails(10, now, Default::default()).await.unwrap() {
            store.posted(mail.id, Posted::Sent).await.unwrap();
        }
        // An owner tests with a new webhook, each time with another URL.
        let gone =
            another(store, &format!("https://hooks.example.com/{turn}?{}", "x".repeat(99))).await;
        store.ping(WS, gone, event(&format!("evt_ping_{turn}")), now).await.unwrap();
        store.delete_webhook(WS, gone).await.unwrap();
        store
            .create_job(WS, Filter { since: Some(now.plus(HOUR)), ..Filter::default() }.into(), now)
            .await
            .unwrap();
        while store.step_job(500, now).await.unwrap().more {}
        while store.sweep(&KEPT, now, 20).await.unwrap() {}
        if turn % 4 == 3 {
            sizes.push(store.figures().await.unwrap().bytes);
        }
    }
    sizes
}

#[tokio::test]
async fn days_of_traffic_use_no_more_space_than_what_is_kept() {
    let folder = Folder::new();
    let clock = Clock::manual(NOW);
    let (path, key) = (folder.path("data/dispatcher.db"), folder.path("data/secrets.key"));
    let store = SqliteStore::open(&path, &key, clock.clone()).unwrap();
    // Otherwise the WAL alone would be larger than everything else.
    pragma(&store, "wal_autocheckpoint", 64).await;
    let sizes = live(&store, &clock, 90).await;
    println!("bytes after each day: {sizes:?}");
    let most = |days: &[u64]| days.iter().copied().max().unwrap();
    // After a month, rows of every kind are being dropped.
    let (first, last) = (most(&sizes[..40]), most(&sizes[40..]));
    assert!(last <= first + first / 20, "{first} bytes, then {last}: {sizes:?}");
    for (table, most) in
        [("endpoints", 130), ("mails", 130), ("jobs", 130), ("events", 1_300), ("attempts", 1_300)]
    {
        let count = move |session: &mut crate::store::sqlite::writer::session::WriteSession| {
            let sql = format!("SELECT count(*) FROM {table}");
            Ok(session.conn.query_row(&sql, [], |row| row.get::<_, i64>(0))?)
        };
        let count = store.writer.run(count).await.unwrap();
        assert!((1..=most).contains(&count), "{count} {table}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_registered_again_within_a_month_is_the_same_endpoint() {
    let folder = Folder::new();
    let clock = Clock::manual(NOW);
    let (path, key) = (folder.path("data/dispatcher.db"), folder.path("data/secrets.key"));
    let store = SqliteStore::open(&path, &key, clock.clone()).unwrap();
    let endpoint = async |id| store.webhook(WS, id).await.unwrap().unwrap().endpoint;
    let sweep = async || {
        let now = clock.now().unix;
        while store.sweep(&KEPT, now, 20).await.unwrap() {}
    };
    let url = "https://hooks.example.com/in";
    let first = another(&store, url).await;
    let second = another(&store, "https://hooks.example.com/out").await;
    let (known, out) = (endpoint(first).await, endpoint(second).await);
    store.delete_webhook(WS, first).await.unwrap();
    sweep().await;
    clock.advance(30 * 24 * HOUR);
    sweep().await;
    let moved = WebhookChange { url: Some(url.into()), ..WebhookChange::default() };
    store.change_webhook(WS, second, moved, NOW).await.unwrap();
    assert_eq!(endpoint(second).await, known);
    // An endpoint that is used again stays, however long ago it became unused.
    clock.advance(60 * 24 * HOUR);
    sweep().await;
    assert_eq!(endpoint(second).await, known);
    // Attempts name the unused one: no other gets its number.
    let third = another(&store, "https://hooks.example.com/new").await;
    assert_ne!(endpoint(third).await, out);
    sweep().await;
    let endpoints = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
        Ok(session
            .conn
            .query_row("SELECT count(*) FROM endpoints", [], |row| row.get::<_, i64>(0))?)
    };
    assert_eq!(store.writer.run(endpoints).await.unwrap(), 2, "an unused endpoint goes in the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn alternating_readers_do_not_let_the_wal_grow() {
    const MOST: u64 = 1 << 20;
    let (folder, store) = fresh();
    let store = Arc::new(store);
    webhook(&store).await;
    arrive(&store, (0..800).map(|nth| format!("evt_{nth}")), NOW).await;
    pragma(&store, "wal_autocheckpoint", 64).await;
    let set = |session: &mut crate::store::sqlite::writer::session::WriteSession| {
        // Long enough for the readers to end on a busy machine.
        (session.wal.bytes_max, session.wal.wait_max) = (MOST, Duration::from_secs(20));
        Ok(())
    };
    store.writer.run(set).await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(&store);
        readers.spawn(async move {
            let rare = Filter { kind: Some(EventType::new("plan.changed")), ..Filter::default() };
            loop {
                store.deliveries(WS, &rare, Paging::first(10)).await.unwrap();
            }
        });
    }
    let mut most = 0;
    for call in 0..600 {
        arrive(&store, (0..20).map(|nth| format!("evt_{call}_{nth}")), NOW).await;
        most = most.max(folder.path("data/dispatcher.db-wal").metadata().unwrap().len());
    }
    readers.shutdown().await;
    // The calls write 27 MB to the WAL.
    assert!(most < 3 * MOST, "the log had {most} bytes");
}
