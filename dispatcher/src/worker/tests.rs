//! Tests of the whole worker with a store in a file, a manual clock and a local receiver.

mod paced;
mod stale;
mod stories;

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use weir_common::config::file::ConfigFile;
use weir_common::config::reload::Reload;
use weir_common::secret::Secret;
use weir_common::time::Clock;

use crate::domain::delivery::{DeliveryState, DeliveryStatus};
use crate::domain::event::{EventSet, EventType};
use crate::domain::health::Health;
use crate::domain::id::DeliveryId;
use crate::domain::webhook::{Webhook, WebhookUpdate};
use crate::live_config::source::{Config, USUAL};
use crate::mailbox::Mailbox;
use crate::metrics::Metrics;
use crate::scheduler::reads::{STORE_PAUSE, StoreAnswer};
use crate::state::{Connections, State};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::tests::{Folder, block_writes};
use crate::store::types::{Accepted, Created, Filter, NewEvent, NewWebhook, Paging, WebhookChange};
use crate::store::{Intake, MailQueue, Management, Upkeep};
use crate::worker::*;

const START: UnixTime = UnixTime(1_790_000_000_000_000);
const WS: &str = "ws_acme";
const MINUTE: Duration = Duration::from_secs(60);

/// How long a test waits for a condition.
const WAIT_MAX: Duration = Duration::from_secs(20);

const DIRECTORY: &str = r#"
[organisations.org_acme]
[workspaces.ws_acme]
organisation = "org_acme"
plan = "free"
owners = ["owner@acme.example"]
"#;

/// Responds with the given status, and records which events it received.
#[derive(Default)]
struct Receiver {
    status: AtomicU16,
    /// Whether responses wait until `released`.
    blocks: AtomicBool,
    released: Notify,
    /// Whether it closes each reused connection without a response, after reading a request.
    hangs_up: AtomicBool,
    /// Whether it does so on every connection.
    drops: AtomicBool,
    events: Mutex<Vec<String>>,
}

impl Receiver {
    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn block(&self) {
        self.blocks.store(true, Ordering::SeqCst);
    }

    fn release(&self) {
        self.blocks.store(false, Ordering::SeqCst);
        self.released.notify_waiters();
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.spawn(self.clone().converse(stream));
        }
    }

    async fn converse(self: Arc<Self>, mut stream: TcpStream) {
        let (mut read, mut requests) = (Vec::new(), 0);
        loop {
            let Some(event) = next_event(&mut read) else {
                match stream.read_buf(&mut read).await {
                    Ok(1..) => continue,
                    _ => return,
                }
            };
            self.events.lock().unwrap().push(event);
            requests += 1;
            let hangs_up = requests > 1 && self.hangs_up.load(Ordering::SeqCst);
            if hangs_up || self.drops.load(Ordering::SeqCst) {
                return;
            }
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.blocks.load(Ordering::SeqCst) {
                released.await;
            }
            let status = self.status.load(Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Removes the first complete request, and returns the identifier of its event.
fn next_event(read: &mut Vec<u8>) -> Option<String> {
    let text = String::from_utf8_lossy(read).to_ascii_lowercase();
    let head = text.find("\r\n\r\n")? + 4;
    let value = |name: &str| {
        let from = text[..head].find(name)? + name.len();
        text[from..head].lines().next().map(str::trim)
    };
    let length: usize = value("\r\ncontent-length:")?.parse().ok()?;
    if read.len() < head + length {
        return None;
    }
    let event = text[head..head + length].split('"').nth(3).unwrap_or_default().to_owned();
    read.drain(..head + length);
    Some(event)
}

/// A running worker, and its stop signal.
struct Running {
    worker: JoinSet<Drained>,
    stop: watch::Sender<bool>,
}

struct Stage {
    folder: Folder,
    clock: Clock,
    store: Arc<SqliteStore>,
    state: Arc<State>,
    running: Option<Running>,
    receiver: Arc<Receiver>,
    url: String,
    accepted: u32,
    _receiving: JoinSet<()>,
}

pub(crate) fn open_store(folder: &Folder, clock: &Clock) -> Arc<SqliteStore> {
    let (path, key) = (folder.path("dispatcher.db"), folder.path("secrets.key"));
    Arc::new(SqliteStore::open(&path, &key, clock.clone()).unwrap())
}

/// The state with the configuration in `folder`, and its mailbox.
pub(crate) fn state_of(
    folder: &Folder,
    clock: &Clock,
    store: Arc<SqliteStore>,
) -> (State, Mailbox) {
    let config = Config::new(ConfigFile::new(Some(folder.path("dispatcher.toml")), USUAL));
    let active = config.load(clock).map_err(|diagnostics| format!("{diagnostics:?}")).unwrap();
    let mailbox = Mailbox::new().0;
    let state = State {
        clock: clock.clone(),
        config,
        store,
        active: Arc::new(ArcSwap::from_pointee(active)),
        mailbox: mailbox.clone(),
        metrics: Arc::new(Metrics::new()),
        connections: Connections::new(1),
        most_failed: Arc::default(),
        jobs: Arc::default(),
        applied: Notify::new(),
        reloads: Metrics::new().of_reloads(),
        ready: AtomicBool::new(true),
    };
    (state, mailbox)
}

impl Stage {
    /// A stage with these sections in its configuration; no worker runs yet.
    async fn new(sections: &str) -> Self {
        let (folder, clock) = (Folder::new(), Clock::manual(START));
        let config = format!(
            "[auth]\ntokens = {:?}\n[directory]\nsource = \"file\"\npath = {:?}\n{sections}",
            folder.path("tokens.toml"),
            folder.path("directory.toml"),
        );
        for (name, text) in
            [("dispatcher.toml", &*config), ("tokens.toml", ""), ("directory.toml", DIRECTORY)]
        {
            fs::write(folder.path(name), text).unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/in", listener.local_addr().unwrap());
        let receiver = Arc::new(Receiver { status: AtomicU16::new(204), ..Receiver::default() });
        let mut receiving = JoinSet::new();
        receiving.spawn(receiver.clone().serve(listener));
        let store = open_store(&folder, &clock);
        let state = Arc::new(state_of(&folder, &clock, store.clone()).0);
        let (running, accepted) = (None, 0);
        let _receiving = receiving;
        Self { folder, clock, store, state, running, receiver, url, accepted, _receiving }
    }

    async fn start(&mut self) {
        self.start_with(Mailbox::new()).await;
    }

    async fn start_with(&mut self, mailbox: (Mailbox, mpsc::UnboundedReceiver<Command>)) {
        let (mut state, _) = state_of(&self.folder, &self.clock, self.store.clone());
        let (handle, inbox) = mailbox;
        state.mailbox = handle;
        self.state = Arc::new(state);
        let (stop, stopping) = watch::channel(false);
        let prepared = prepare(&self.state, inbox, stopping).await;
        let mut worker = JoinSet::new();
        worker.spawn(prepared.run());
        self.running = Some(Running { worker, stop });
    }

    /// Aborts the worker, and opens its store again.
    async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        drop(running);
        self.open_again().await;
    }

    /// Stops the worker as the program does, and opens its store again.
    async fn stop(&mut self) -> Drained {
        let mut running = self.running.take().unwrap();
        running.stop.send(true).unwrap();
        let drained = running.worker.join_next().await.unwrap().unwrap();
        if drained == Drained::Yes {
            self.store.close().await.unwrap();
        }
        self.open_again().await;
        drained
    }

    async fn open_again(&mut self) {
        // Tasks of the worker may still use the store.
        let other = open_store(&Folder::new(), &self.clock);
        let store = std::mem::replace(&mut self.store, other);
        let other = state_of(&self.folder, &self.clock, self.store.clone()).0;
        self.state = Arc::new(other);
        until("the store is released", async || Arc::strong_count(&store) == 1).await;
        drop(store);
        self.store = open_store(&self.folder, &self.clock);
    }

    async fn webhook(&self) -> Webhook {
        let new = NewWebhook {
            workspace: WS.into(),
            url: self.url.as_str().into(),
            events: EventSet::of([EventType::new("user.created"), EventType::new("plan.changed")]),
            options: Default::default(),
            secret: Secret::new("whsec_secret".to_owned()),
            webhooks_max: 20,
            signing_key: None,
        };
        match self.store.create_webhook(new, self.clock.now().unix).await.unwrap() {
            Created::Webhook(webhook) => *webhook,
            Created::TooMany => panic!("there was room"),
        }
    }

    /// Accepts an event, and reports it to the worker if one runs.
    async fn event(&mut self) -> DeliveryId {
        self.accepted += 1;
        let arrivals = accept(&self.store, self.accepted, self.clock.now().unix).await;
        let id = arrivals[0].delivery.id;
        self.state.mailbox.arrived(arrivals);
        id
    }

    async fn events(&mut self, count: usize) -> Vec<DeliveryId> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.event().await);
        }
        ids
    }

    async fn turn(&self, by: Duration) {
        self.clock.advance(by);
        self.nudge().await;
    }

    /// Wakes the worker, so that it reads the clock.
    async fn nudge(&self) {
        self.state.mailbox.statuses(Vec::new()).await;
    }

    async fn status(&self, webhook: &Webhook, id: DeliveryId) -> DeliveryStatus {
        self.state.mailbox.statuses(vec![(webhook.id, id)]).await[0]
    }

    async fn state(&self, id: DeliveryId) -> (DeliveryState, u32) {
        let (delivery, _) = self.store.delivery(WS, id).await.unwrap().unwrap();
        (delivery.state, delivery.attempts)
    }

    async fn received(&self, count: usize) {
        let what = format!("{count} are received, not {}", self.receiver.count());
        until(&what, async || {
            self.nudge().await;
            self.receiver.count() >= count
        })
        .await;
    }

    /// Waits until the rate limit delays these, and none of them is in flight.
    async fn rate_limited(&self, webhook: &Webhook, ids: &[DeliveryId]) {
        until("the pace holds back what waits", async || {
            self.nudge().await;
            let of = ids.iter().map(|id| (webhook.id, *id)).collect();
            let statuses = self.state.mailbox.statuses(of).await;
            statuses.iter().all(|one| one.blocked_until.is_some() && !one.in_flight)
        })
        .await;
    }

    fn failures(&self) -> u64 {
        self.state.metrics.store_failures.get()
    }
}

/// A worker that reads two webhooks per page at its start.
async fn prepare(
    state: &State,
    inbox: mpsc::UnboundedReceiver<Command>,
    stopping: watch::Receiver<bool>,
) -> Worker {
    let memory = Memory { queues_page: 2, ..Memory::default() };
    let resources = Resources { memory, ..state.resources(None) };
    Worker::prepare(resources, inbox, stopping).await.unwrap()
}

async fn accept(
    store: &SqliteStore,
    number: u32,
    now: UnixTime,
) -> Vec<crate::domain::delivery::Arrival> {
    let event = NewEvent {
        id: format!("evt_{number}").into(),
        workspace: WS.into(),
        kind: EventType::new("user.created"),
        tenant: Some("tn_1".into()),
        body: format!("{{\"id\":\"evt_{number}\"}}").into_bytes().into(),
        digest: [7; 32],
    };
    match store.accept(vec![event], now).await.unwrap() {
        Accepted::Stored { arrivals, .. } => arrivals,
        Accepted::Conflict(_) => panic!("another one is there"),
    }
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !done().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_MAX, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn the_worker_wakes_when_a_failed_read_may_be_repeated() {
    let stage = Stage::new("").await;
    let webhook = stage.webhook().await;
    let (_stop, stopping) = watch::channel(false);
    let inbox = Mailbox::new().1;
    let mut worker = prepare(&stage.state, inbox, stopping).await;
    assert_eq!(worker.turn(), Turn::Wait(None));
    let now = stage.clock.now();
    worker.scheduler.handle(Input::Read(webhook.id, StoreAnswer::NotLoaded), now);
    assert_eq!(worker.turn(), Turn::Wait(Some(now.tick.plus(STORE_PAUSE))));
    stage.clock.advance(STORE_PAUSE);
    assert_eq!((worker.turn(), worker.tasks.len()), (Turn::Wait(None), 1), "it is asked");
}
