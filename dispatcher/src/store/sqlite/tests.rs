//! Promises of a store in a file only; those of every store are in `conformance`.

mod clocks;
mod finding;
mod growth;
mod migrating;
mod opening;
mod operator;
mod reading;
mod rekeying;
mod restoring;
mod statements;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::task::JoinSet;
use weir_common::secret::Secret;
use weir_common::time::{Clock, UnixTime};

use crate::config::settings::Retention;
use crate::domain::event::{EventSet, EventType};
use crate::domain::id::WebhookId;
use crate::store::mail::NewMail;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::open::OpenError;
use crate::store::sqlite::pragmas::{ConnectionHook, no_hook};
use crate::store::sqlite::tests::watch::Watch;
use crate::store::sqlite::writer::queue::Size;
use crate::store::tests::conformance;
use crate::store::types::{
    Accepted, Created, Filter, JobCreated, NewEvent, NewWebhook, Page, Paging,
};
use crate::store::{DeliveryQueue, Intake, MailQueue, Management, Store, StoreError, Upkeep};

static MADE: AtomicU32 = AtomicU32::new(0);

/// A temporary directory that is removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A leftover of an earlier process with our process id.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const WS: &str = "ws_acme";

const NOW: UnixTime = UnixTime(1_790_000_000_000_000);

/// Opens the database of a folder.
fn open(folder: &Folder) -> Result<SqliteStore, OpenError> {
    opened(folder, no_hook())
}

fn opened(folder: &Folder, hook: ConnectionHook) -> Result<SqliteStore, OpenError> {
    let (path, key) = (folder.path("data/dispatcher.db"), folder.path("data/secrets.key"));
    SqliteStore::open_hooked(&path, &key, Clock::manual(NOW), hook)
}

fn fresh() -> (Folder, SqliteStore) {
    let folder = Folder::new();
    let store = open(&folder).unwrap();
    (folder, store)
}

/// As [`fresh`], with each statement reported to `watch`.
fn watched(watch: &Watch) -> (Folder, SqliteStore) {
    let folder = Folder::new();
    let store = opened(&folder, watch.hook()).unwrap();
    (folder, store)
}

fn refusal(folder: &Folder) -> String {
    open(folder).map(|_| ()).unwrap_err().to_string()
}

/// Keeps everything for as long.
fn kept(everything: Duration) -> Retention {
    Retention { delivered: everything, failed: everything, answers: everything }
}

fn event(id: &str) -> NewEvent {
    NewEvent {
        id: id.into(),
        workspace: WS.into(),
        kind: EventType::new("user.created"),
        tenant: Some("tn_1".into()),
        body: vec![b'x'; 512].into(),
        digest: [7; 32],
    }
}

/// Makes a named pipe; opening it blocks until its other end is opened.
pub(crate) fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(path).status().unwrap().success());
}

/// The result of work that must not block; fails the test if it does.
pub(crate) fn at_once<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new();
    thread.spawn(move || done.send(work())).unwrap();
    result.recv_timeout(Duration::from_secs(20)).expect("it does not wait")
}

async fn webhook(store: &SqliteStore) -> WebhookId {
    let new = NewWebhook {
        workspace: WS.into(),
        url: "https://hooks.example.com/in".into(),
        events: EventSet::of([EventType::new("user.created"), EventType::new("plan.changed")]),
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

async fn accept(store: &SqliteStore, id: &str) -> Result<bool, StoreError> {
    match store.accept(vec![event(id)], NOW).await? {
        Accepted::Stored { new, .. } => Ok(new == [true]),
        Accepted::Conflict(places) => panic!("conflicts at {places:?}"),
    }
}

async fn waiting(store: &SqliteStore, webhook: WebhookId) -> usize {
    store.fetch(webhook, &[], 100_000).await.unwrap().ready.len()
}

/// Sets a pragma on the writer's connection.
async fn pragma(store: &SqliteStore, name: &'static str, value: i64) {
    let limit_pages = move |session: &mut crate::store::sqlite::writer::session::WriteSession| {
        session.conn.pragma_update_and_check(None, name, value, |_| Ok(()))?;
        Ok(())
    };
    store.writer.run(limit_pages).await.unwrap();
}

/// Makes all writes fail until the returned connection is dropped.
pub(crate) async fn block_writes(store: &SqliteStore) -> Connection {
    pragma(store, "busy_timeout", 1).await;
    let other = Connection::open(&store.facts.path).unwrap();
    other.busy_timeout(Duration::from_secs(20)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test]
async fn a_store_in_a_file_keeps_every_promise() {
    conformance::all(|| {
        let (folder, store) = fresh();
        (folder, Arc::new(store) as Arc<dyn Store>)
    })
    .await;
}

#[tokio::test]
async fn a_mail_that_was_claimed_when_the_process_ended_is_never_sent_again() {
    let (folder, store) = fresh();
    let mail = |key: &str| NewMail {
        to: "owner@example.com".to_owned(),
        subject: String::new(),
        text: String::new(),
        key: key.to_owned(),
    };
    store.record(vec![], vec![], vec![mail("a").into(), mail("b").into()], vec![]).await.unwrap();
    assert_eq!(store.claim_mails(1, NOW).await.unwrap().len(), 1);
    drop(store);
    let store = open(&folder).unwrap();
    store.record(vec![], vec![], vec![mail("a").into()], vec![]).await.unwrap();
    let left = store.claim_mails(9, NOW).await.unwrap();
    assert_eq!(left.iter().map(|one| &*one.mail.key).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn a_job_resumes_after_a_restart() {
    let (folder, store) = fresh();
    let webhook = webhook(&store).await;
    for number in 0..4 {
        accept(&store, &format!("evt_{number}")).await.unwrap();
    }
    let all = || "UPDATE deliveries SET state = 2, ended_at = 1";
    store.writer.run(move |session| Ok(session.conn.execute(all(), [])?)).await.unwrap();
    let JobCreated::Job(job) = store.create_job(WS, Filter::default().into(), NOW).await.unwrap()
    else {
        panic!("there are few");
    };
    assert!(store.step_job(3, NOW).await.unwrap().more);
    drop(store);
    let store = open(&folder).unwrap();
    assert_eq!(waiting(&store, webhook).await, 3);
    assert!(!store.step_job(3, NOW).await.unwrap().more);
    assert_eq!(store.job(WS, job.id).await.unwrap().unwrap().redelivered, 4);
}

#[tokio::test]
async fn a_full_disk_refuses_what_is_new_keeps_what_is_there_and_recovers() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    accept(&store, "evt_before").await.unwrap();
    pragma(&store, "max_page_count", 1).await;
    let mut stored = 1;
    let refused = loop {
        match accept(&store, &format!("evt_{stored}")).await {
            Ok(true) => stored += 1,
            Ok(false) => panic!("nothing was sent twice"),
            Err(error) => break error,
        }
        assert!(stored < 10_000, "the disk is never full");
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    let figures = store.figures().await.unwrap();
    assert_eq!((figures.waiting, waiting(&store, webhook).await), (stored as u64, stored));
    let listed = store.deliveries(WS, &Filter::default(), Paging::first(1)).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    assert!(accept(&store, "evt_still").await.is_err());
    pragma(&store, "max_page_count", 1_000_000).await;
    assert!(accept(&store, "evt_still").await.unwrap(), "what was refused was not stored");
    assert_eq!(waiting(&store, webhook).await, stored + 1);
    assert_eq!(store.figures().await.unwrap().waiting, stored as u64 + 1);
}

#[tokio::test]
async fn concurrent_writes_share_a_commit() {
    let (_folder, store) = fresh();
    let (store, before) = (Arc::new(store), 400);
    let room = store.writer.room_left();
    let webhook = webhook(&store).await;
    let commits = store.figures().await.unwrap().commits;
    // While the writer is blocked, all other calls queue behind it.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let mut calls = JoinSet::new();
    let blocking = Arc::clone(&store);
    calls.spawn(async move {
        let wait = move |_: &mut crate::store::sqlite::writer::session::WriteSession| {
            released.recv_timeout(Duration::from_secs(30)).expect("the test releases it");
            Ok(())
        };
        blocking.writer.run(wait).await.unwrap();
    });
    for number in 0..before {
        let store = Arc::clone(&store);
        calls
            .spawn(async move { assert!(accept(&store, &format!("evt_{number}")).await.unwrap()) });
    }
    while store.writer.room_left() > room - before {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    while let Some(ended) = calls.join_next().await {
        ended.unwrap();
    }
    assert_eq!(waiting(&store, webhook).await, before);
    let commits = store.figures().await.unwrap().commits - commits;
    assert_eq!(commits, 1);
}

#[tokio::test]
async fn a_failed_task_does_not_fail_its_batch() {
    for size in [Size::Small, Size::Large] {
        fails_alone(size).await;
    }
}

async fn fails_alone(size: Size) {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let wrong = store.writer.run_sized(size, |session| {
        session.counters.waiting += 5;
        let sql = "INSERT INTO events \
            (name, workspace, kind, digest, created_at, delivery_refs, body) \
            VALUES ('evt_1', 1, 0, x'', 0, 0, x'')";
        session.conn.execute(sql, [])?;
        session.conn.execute(sql, [])?;
        Ok(())
    });
    let (wrong, right, other) =
        tokio::join!(wrong, accept(&store, "evt_2"), accept(&store, "evt_1"));
    assert!(matches!(wrong, Err(StoreError::Damaged(_))), "{wrong:?}");
    assert!(right.unwrap());
    assert!(other.unwrap(), "what went wrong left nothing behind");
    assert_eq!(waiting(&store, webhook).await, 2);
    assert_eq!(store.figures().await.unwrap().waiting, 2);
}

#[tokio::test]
async fn one_that_panics_does_no_harm_to_its_batch_nor_to_the_writer() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let wrong = store.writer.run::<(), _>(|session| {
        session.counters.waiting += 5;
        panic!("on purpose")
    });
    let (wrong, right) = tokio::join!(wrong, accept(&store, "evt_1"));
    assert!(matches!(wrong, Err(StoreError::Damaged(_))), "{wrong:?}");
    assert!(right.unwrap() && accept(&store, "evt_2").await.unwrap());
    assert_eq!(waiting(&store, webhook).await, 2);
    assert_eq!(store.figures().await.unwrap().waiting, 2);
}

#[tokio::test]
async fn where_the_disk_fails_the_whole_batch_has_done_nothing() {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let blocked = store.writer.run(move |_| {
        released.recv_timeout(Duration::from_secs(30)).expect("the test releases it");
        Ok(())
    });
    let fails = store.writer.run::<(), _>(|session| {
        session.counters.waiting += 5;
        let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        Err(rusqlite::Error::SqliteFailure(full, None).into())
    });
    // The writer is blocked until the other calls are queued behind it, in this order.
    let (blocked, accepted, failed, ()) =
        tokio::join!(blocked, accept(&store, "evt_1"), fails, async {
            release.send(()).unwrap();
        });
    for refused in [blocked, accepted.map(|_| ()), failed] {
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(waiting(&store, webhook).await, 0);
    assert!(accept(&store, "evt_2").await.unwrap());
    let figures = store.figures().await.unwrap();
    assert_eq!((figures.waiting, waiting(&store, webhook).await), (1, 1));
}

#[tokio::test]
async fn an_event_waits_for_one_large_call_of_others_at_most() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let blocked = store.writer.run(move |_| {
        released.recv_timeout(Duration::from_secs(30)).expect("the test releases it");
        Ok(())
    });
    let call = async |name: &'static str, events: usize| {
        let events = (0..events).map(|number| event(&format!("evt_{name}_{number}"))).collect();
        store.accept(events, NOW).await.unwrap();
    };
    let calls = async { tokio::join!(call("A", 65), call("B", 65), call("small", 1)) };
    let (blocked, ..) = tokio::join!(blocked, calls, async { release.send(()).unwrap() });
    blocked.unwrap();
    let all = store.deliveries(WS, &Filter::default(), Paging::first(500)).await.unwrap().items;
    let newest_first = all.iter().map(|delivery| delivery.event_id.to_string());
    let later = newest_first.take_while(|id| id != "evt_small_0").count();
    assert!(later >= 65, "{later} of 130 came after it");
}

#[tokio::test]
async fn events_are_refused_while_the_write_queue_is_full() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    let all = store.writer.use_all_room();
    let refused = accept(&store, "evt_1").await;
    assert!(matches!(refused, Err(StoreError::Busy)), "{refused:?}");
    store.writer.restore_room(all);
    assert!(accept(&store, "evt_1").await.unwrap());
}
