//! Promises of a store in a file only; those of every store are in `conformance`.

mod batches;
mod clocks;
mod finding;
mod growth;
mod migrating;
mod opening;
mod operator;
mod reading;
mod rekeying;
mod restoring;
mod sessions;
mod statements;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use rusqlite::Connection;
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

pub(crate) async fn webhook(store: &SqliteStore) -> WebhookId {
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

/// Blocks the writer until the sender has sent.
fn blocked(store: &SqliteStore) -> (Sender<()>, impl Future<Output = Result<(), StoreError>>) {
    let (release, released) = std::sync::mpsc::channel();
    let blocked = store.writer.run(move |_| {
        released.recv_timeout(Duration::from_secs(30)).expect("the test releases it");
        Ok(())
    });
    (release, blocked)
}

async fn waiting(store: &SqliteStore, webhook: WebhookId) -> usize {
    store.fetch(webhook, &[], 100_000).await.unwrap().deliveries.len()
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
        webhook: WebhookId(key.len() as i64),
        to: "owner@example.com".to_owned(),
        subject: String::new(),
        text: String::new(),
        key: key.to_owned(),
    };
    store.record(vec![], vec![], vec![mail("a").into(), mail("bb").into()], vec![]).await.unwrap();
    assert_eq!(store.claim_mails(1, NOW, Default::default()).await.unwrap().len(), 1);
    drop(store);
    let store = open(&folder).unwrap();
    store.record(vec![], vec![], vec![mail("a").into()], vec![]).await.unwrap();
    let left = store.claim_mails(9, NOW, Default::default()).await.unwrap();
    assert_eq!(left.iter().map(|one| &*one.mail.key).collect::<Vec<_>>(), ["bb"]);
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
