//! The process that is looked at: its real worker over its real store, turned step by step.
//!
//! A crash is to let go of all of it at any step. What was committed is in the file, all else is
//! gone.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rusqlite::Connection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use weir_common::directory::Directory;
use weir_common::lines::LineLog;
use weir_common::reader::Document;
use weir_common::time::{Clock, Tick};

use super::super::{Drained, Handle, Turn, Worker};
use super::orders::{Order, Reply, perform};
use super::receivers::{Calls, network};
use crate::auth::Tokens;
use crate::deliver::Courier;
use crate::egress::Rules;
use crate::force::{Config, Force};
use crate::metrics::Metrics;
use crate::parts::{Connections, Parts};
use crate::settings::{self, Settings};
use crate::store::Store;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::writer::by_hand::ByHand;
use crate::sweep;

const DIRECTORY: &str = r#"
[organisations.org_a]
[workspaces.ws_0]
organisation = "org_a"
plan = "free"
owners = ["zero@acme.example"]
[workspaces.ws_1]
organisation = "org_a"
plan = "free"
owners = ["one@acme.example"]
"#;

/// What outlives a process: its files, its settings, and the world's clock.
pub(super) struct Machine {
    folder: PathBuf,
    pub(super) clock: Clock,
    pub(super) calls: Calls,
    pub(super) settings: Settings,
    courier: Arc<Courier>,
    rules: Arc<Rules>,
    metrics: Arc<Metrics>,
}

/// A process, and what it is doing.
pub(super) struct Process {
    // Dropped in this order: whoever has the store goes first.
    worker: Option<Worker>,
    orders: JoinSet<Option<(u64, Reply)>>,
    pub(super) parts: Arc<Parts>,
    stop: watch::Sender<bool>,
    pub(super) store: Arc<SqliteStore>,
    by_hand: ByHand,
    /// When the worker wants to be turned next.
    pub(super) wake: Option<Tick>,
    pub(super) over: Option<Drained>,
    pub(super) log: Arc<LineLog>,
}

impl Machine {
    pub(super) fn new(folder: PathBuf, config: &str, clock: Clock) -> Self {
        let document = Document::new("dispatcher.toml", config);
        let settings = settings::read(&document).made;
        let mistakes = document.mistakes();
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let rules = Arc::new(Rules::system(settings.egress.clone()));
        let calls: Calls = Arc::new(Mutex::default());
        let courier = Courier::new(&settings.egress, rules.clone(), clock.clone()).unwrap();
        let courier = Arc::new(courier.over(network(calls.clone())));
        let metrics = Arc::new(Metrics::new());
        Self { folder, clock, calls, settings, courier, rules, metrics }
    }

    fn force(&self) -> Force {
        Force {
            settings: self.settings.clone(),
            tokens: Tokens::read(&Document::new("tokens.toml", "")),
            directory: Directory::read(&Document::new("directory.toml", DIRECTORY)),
            egress: self.rules.clone(),
            courier: self.courier.clone(),
            origin: crate::force::Origin::default(),
        }
    }

    /// Opens the store and reads from it what there is to do, as `app` does.
    pub(super) async fn start(&self) -> Process {
        let (path, key) = (self.folder.join("d.db"), self.folder.join("key"));
        let (store, mut by_hand) =
            SqliteStore::open_by_hand(&path, &key, self.clock.clone()).unwrap();
        let store = Arc::new(store);
        let (worker, inbox) = Handle::new();
        let log = Arc::new(LineLog::default());
        let parts = Arc::new(Parts {
            clock: self.clock.clone(),
            config: Config { path: None },
            store: store.clone(),
            force: ArcSwap::from_pointee(self.force()),
            worker,
            metrics: self.metrics.clone(),
            attempt_log: Some(log.clone()),
            connections: Connections::new(1),
            jobs: Notify::new(),
            ready: AtomicBool::new(true),
        });
        let (stop, stopping) = watch::channel(false);
        let mut preparing = JoinSet::new();
        preparing.spawn(Worker::prepare(parts.clone(), inbox, stopping));
        let mut worker = loop {
            breathe().await;
            if let Some(prepared) = preparing.try_join_next() {
                break prepared.unwrap().unwrap();
            }
            by_hand.work();
        };
        worker.begin();
        let mut orders = JoinSet::new();
        let jobs = parts.clone();
        orders.spawn(async move {
            sweep::jobs(jobs).await;
            None
        });
        let (worker, wake, over) = (Some(worker), None, None);
        Process { worker, orders, parts, stop, store, by_hand, wake, over, log }
    }
}

/// Lets tasks go on for as far as they get.
pub(super) async fn breathe() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

impl Process {
    /// Has something asked of the store, as the API and ingest do.
    pub(super) fn order(&mut self, number: u64, order: Order) {
        let parts = self.parts.clone();
        self.orders.spawn(async move { Some((number, perform(&parts, order).await)) });
    }

    /// What has come of the orders since.
    pub(super) fn replies(&mut self) -> Vec<(u64, Reply)> {
        let mut replies = Vec::new();
        while let Some(reply) = self.orders.try_join_next() {
            replies.extend(reply.unwrap());
        }
        replies
    }

    /// One turn of the worker's loop; says whether anything was done.
    pub(super) fn turn(&mut self) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        let (heard, tasks) = (worker.inbox.len(), worker.tasks.len());
        worker.catch_up();
        let left = worker.tasks.len();
        match worker.turn() {
            Turn::Wait(wake) => self.wake = wake,
            Turn::Over(drained) => {
                self.over = Some(drained);
                self.worker = None;
                return true;
            }
        }
        heard > 0 || left < tasks || worker.tasks.len() > left
    }

    /// Lets the store do what it was asked, in one commit.
    pub(super) fn write(&mut self) -> bool {
        self.by_hand.work()
    }

    pub(super) fn conn(&self) -> &Connection {
        self.by_hand.conn().unwrap()
    }

    /// Whether somebody waits for the store, or for a while until it is asked again.
    pub(super) fn waits_for_store(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| {
            worker.recording
                || !worker.open.is_empty()
                || worker.tasks.len() > worker.lanes.in_flight()
        })
    }

    /// Places held in memory: attempts under way, lanes, deliveries held.
    pub(super) fn held(&self) -> (usize, usize, usize) {
        let worker = self.worker.as_ref();
        worker.map_or((0, 0, 0), |worker| {
            (worker.lanes.in_flight(), worker.lanes.count(), worker.lanes.held())
        })
    }

    /// Asks the worker to see out what is under way.
    pub(super) fn stop(&mut self) {
        self.stop.send(true).unwrap();
    }

    /// Ends in order: as `app` does once the worker has ended.
    pub(super) async fn close(mut self) {
        self.orders.shutdown().await;
        if self.over == Some(Drained::Yes) {
            let store = self.store.clone();
            let mut closing = JoinSet::new();
            closing.spawn(async move { store.close().await });
            loop {
                breathe().await;
                if let Some(closed) = closing.try_join_next() {
                    closed.unwrap().unwrap();
                    break;
                }
                self.by_hand.work();
            }
        }
        self.kill().await;
    }

    /// Ends as a process does that is killed.
    pub(super) async fn kill(self) {
        drop(self);
        // What was aborted lets go when it is next looked at.
        breathe().await;
        breathe().await;
    }
}
