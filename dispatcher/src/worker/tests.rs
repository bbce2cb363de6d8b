//! The whole worker with a store in a file, a clock turned by hand and a receiver on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use weir_common::secret::Secret;
use weir_common::time::Clock;

use super::*;
use crate::force::Config;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::model::{DeliveryState, EventSet, EventType, Probe, Webhook};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::tests::{Folder, hold_up};
use crate::store::{Accepted, Created, Fared, Filter, NewEvent, NewWebhook, Store, WebhookChange};

const START: UnixTime = UnixTime(1_790_000_000_000_000);
const WS: &str = "ws_acme";
const MINUTE: Duration = Duration::from_secs(60);

/// So long a condition is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

const DIRECTORY: &str = r#"
[organisations.org_acme]
[workspaces.ws_acme]
organisation = "org_acme"
plan = "free"
owners = ["owner@acme.example"]
"#;

/// Answers as it is told to, and remembers which events it was sent.
#[derive(Default)]
struct Receiver {
    status: AtomicU16,
    /// Whether answers are held back, and who waits to give one.
    holds: AtomicBool,
    go_on: Notify,
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

    fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    fn let_go(&self) {
        self.holds.store(false, Ordering::SeqCst);
        self.go_on.notify_waiters();
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.spawn(self.clone().converse(stream));
        }
    }

    async fn converse(self: Arc<Self>, mut stream: TcpStream) {
        let mut read = Vec::new();
        loop {
            let Some(event) = taken(&mut read) else {
                match stream.read_buf(&mut read).await {
                    Ok(1..) => continue,
                    _ => return,
                }
            };
            self.events.lock().unwrap().push(event);
            let mut go_on = std::pin::pin!(self.go_on.notified());
            go_on.as_mut().enable();
            if self.holds.load(Ordering::SeqCst) {
                go_on.await;
            }
            let status = self.status.load(Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} Said\r\ncontent-length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Takes a whole request off the front, and gives the identifier of its event.
fn taken(read: &mut Vec<u8>) -> Option<String> {
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

/// A worker that runs, and how to end it.
struct Running {
    worker: JoinSet<Drained>,
    stop: watch::Sender<bool>,
}

struct Stage {
    folder: Folder,
    clock: Clock,
    store: Arc<SqliteStore>,
    parts: Arc<Parts>,
    running: Option<Running>,
    receiver: Arc<Receiver>,
    url: String,
    accepted: u32,
    _receiving: JoinSet<()>,
}

fn open_store(folder: &Folder, clock: &Clock) -> Arc<SqliteStore> {
    let (path, key) = (folder.path("dispatcher.db"), folder.path("secrets.key"));
    Arc::new(SqliteStore::open(&path, &key, clock.clone()).unwrap())
}

fn parts(folder: &Folder, clock: &Clock, store: Arc<SqliteStore>) -> (Parts, Handle) {
    let config = Config { path: Some(folder.path("dispatcher.toml")) };
    let force = config.load(clock).map_err(|mistakes| format!("{mistakes:?}")).unwrap();
    let worker = Handle::new().0;
    let parts = Parts {
        clock: clock.clone(),
        config,
        store,
        force: ArcSwap::from_pointee(force),
        worker: worker.clone(),
        metrics: Arc::new(Metrics::new()),
        attempt_log: None,
        jobs: Notify::new(),
        mails: Notify::new(),
        ready: AtomicBool::new(true),
    };
    (parts, worker)
}

impl Stage {
    /// With these sections of a configuration; nothing runs yet.
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
        let parts = Arc::new(parts(&folder, &clock, store.clone()).0);
        let (running, accepted) = (None, 0);
        let _receiving = receiving;
        Self { folder, clock, store, parts, running, receiver, url, accepted, _receiving }
    }

    async fn start(&mut self) {
        let (mut parts, _) = parts(&self.folder, &self.clock, self.store.clone());
        let (handle, inbox) = Handle::new();
        parts.worker = handle;
        self.parts = Arc::new(parts);
        let (stop, stopping) = watch::channel(false);
        let prepared = Worker::prepare(self.parts.clone(), inbox, stopping).await.unwrap();
        let mut worker = JoinSet::new();
        worker.spawn(prepared.run());
        self.running = Some(Running { worker, stop });
    }

    /// Ends the worker in the midst of what it does, and opens what it left.
    async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        drop(running);
        self.open_again().await;
    }

    /// Ends the worker as the program does.
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
        // Nobody has the store any more but ourselves, once all tasks are gone.
        let other = open_store(&Folder::new(), &self.clock);
        let store = std::mem::replace(&mut self.store, other);
        let other = parts(&self.folder, &self.clock, self.store.clone()).0;
        self.parts = Arc::new(other);
        until("the store is let go", async || Arc::strong_count(&store) == 1).await;
        drop(store);
        self.store = open_store(&self.folder, &self.clock);
    }

    async fn webhook(&self) -> Webhook {
        let new = NewWebhook {
            workspace: WS.into(),
            url: self.url.as_str().into(),
            events: EventSet::of(EventType::ALL),
            secret: Secret::new("whsec_secret".to_owned()),
            webhooks_max: 20,
        };
        match self.store.create_webhook(new, self.clock.now().unix).await.unwrap() {
            Created::Webhook(webhook) => *webhook,
            Created::TooMany => panic!("there was room"),
        }
    }

    /// Accepts an event, and tells the worker where one runs.
    async fn event(&mut self) -> DeliveryId {
        self.accepted += 1;
        let arrivals = accept(&self.store, self.accepted, self.clock.now().unix).await;
        let id = arrivals[0].ready.id;
        self.parts.worker.arrived(arrivals);
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

    /// Has the worker look at the clock.
    async fn nudge(&self) {
        self.parts.worker.standings(Vec::new()).await;
    }

    async fn standing(&self, webhook: &Webhook, id: DeliveryId) -> Standing {
        self.parts.worker.standings(vec![(webhook.id, id)]).await[0]
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

    /// Waits until the pace holds these back: whatever could start has, and has ended.
    async fn held_back(&self, webhook: &Webhook, ids: &[DeliveryId]) {
        until("the pace holds back what waits", async || {
            self.nudge().await;
            let of = ids.iter().map(|id| (webhook.id, *id)).collect();
            let standings = self.parts.worker.standings(of).await;
            standings.iter().all(|one| one.held_until.is_some() && !one.in_flight)
        })
        .await;
    }

    fn failures(&self) -> u64 {
        self.parts.metrics.store_failures.get()
    }
}

async fn accept(store: &SqliteStore, number: u32, now: UnixTime) -> Vec<crate::model::Arrival> {
    let event = NewEvent {
        id: format!("evt_{number}").into(),
        workspace: WS.into(),
        kind: EventType::UserCreated,
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
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Six a minute, one at a time.
const SLOW: &str = r#"
[egress]
requests = 6
allow_http = true
allow_networks = ["127.0.0.0/8"]
ports = []
"#;

/// As many as come.
const FAST: &str = r#"
[egress]
requests = 4_000
allow_http = true
allow_networks = ["127.0.0.0/8"]
ports = []
"#;

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_that_cannot_be_written_are_kept_and_nothing_is_sent_twice() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.hold();
    let ids = stage.events(3).await;
    stage.received(1).await;
    let failing = hold_up(&stage.store).await;
    stage.receiver.let_go();
    until("writing fails", async || stage.failures() > 0).await;
    for _ in 0..5 {
        let before = stage.failures();
        // Neither time nor a new look at the webhook frees what is not on disk.
        stage.parts.worker.changed(webhook.id);
        stage.turn(MINUTE).await;
        until("it is tried again", async || {
            stage.turn(STORE_PAUSE).await;
            stage.failures() > before
        })
        .await;
        assert!(stage.standing(&webhook, ids[0]).await.in_flight);
        assert_eq!(stage.receiver.count(), 1, "its place is free only when it is on disk");
    }
    drop(failing);
    until("all are delivered", async || {
        stage.turn(STORE_PAUSE).await;
        stage.state(ids[2]).await == (DeliveryState::Delivered, 1)
    })
    .await;
    assert_eq!(stage.receiver.events(), ["evt_1", "evt_2", "evt_3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pace_holds_through_a_kill_and_the_stop_that_follows() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.events(2).await;
    stage.received(2).await;
    stage.receiver.hold();
    let waiting = stage.events(20).await;
    stage.received(3).await;
    // Two are on disk, one was under way and leaves no trace.
    until("two are written", async || stage.store.starts_since(START).await.unwrap().len() == 2)
        .await;
    stage.kill().await;
    stage.receiver.let_go();
    stage.start().await;
    stage.held_back(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 6);
    // This one ends in order, but what it has not seen still counts.
    assert_eq!(stage.stop().await, Drained::InDoubt);
    stage.start().await;
    stage.held_back(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 6, "seven have started within a minute");
    stage.turn(MINUTE).await;
    stage.received(12).await;
    stage.held_back(&webhook, &waiting).await;
    assert_eq!(stage.stop().await, Drained::Yes);
    stage.start().await;
    stage.held_back(&webhook, &waiting).await;
    assert_eq!(stage.receiver.count(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_come_while_their_webhook_is_changed_are_delivered() {
    let mut stage = Stage::new(FAST).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    const ROUNDS: u32 = 100;
    for round in 0..ROUNDS {
        // They are one commit or two, in this order or the other; and told of in any.
        let (store, worker) = (stage.store.clone(), stage.parts.worker.clone());
        let (now, id) = (stage.clock.now().unix, webhook.id);
        let mut both = JoinSet::new();
        both.spawn(async move { worker.arrived(accept(&store, round, now).await) });
        let (store, worker) = (stage.store.clone(), stage.parts.worker.clone());
        both.spawn(async move {
            let change = WebhookChange { events: None, ..WebhookChange::default() };
            store.change_webhook(WS, id, change).await.unwrap();
            worker.changed(id);
        });
        while let Some(ended) = both.join_next().await {
            ended.unwrap();
        }
    }
    stage.received(ROUNDS as usize).await;
    let different: BTreeSet<String> = stage.receiver.events().into_iter().collect();
    assert_eq!(different.len(), ROUNDS as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_cannot_be_written_at_first_is_written_later() {
    let health = "[health]\nwarn_for = \"30m\"\npause_after = \"1h\"\n\
        [retry]\ndelays = [\"20m\", \"20m\", \"5h\"]\n";
    let mut stage = Stage::new(&format!("{FAST}{health}")).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.answer_with(500);
    let id = stage.event().await;
    for attempt in 1..=3 {
        until("it fails", async || {
            stage.nudge().await;
            stage.state(id).await.1 == attempt
        })
        .await;
        if attempt < 3 {
            stage.turn(20 * MINUTE).await;
        }
    }
    let failing = hold_up(&stage.store).await;
    stage.turn(20 * MINUTE).await;
    until("the pause is not written", async || {
        stage.turn(STORE_PAUSE).await;
        stage.failures() > 0
    })
    .await;
    // Its queue is forgotten: it has nothing to do.
    for _ in 0..5 {
        stage.turn(MINUTE).await;
    }
    drop(failing);
    until("the pause is written", async || {
        stage.turn(STORE_PAUSE).await;
        stage.store.webhook(WS, webhook.id).await.unwrap().unwrap().paused_at.is_some()
    })
    .await;
    let mails = stage.store.take_mails(10, stage.clock.now().unix).await.unwrap();
    let paused = mails.iter().filter(|mail| mail.mail.subject.contains("paused")).count();
    assert_eq!(paused, 1, "{mails:?}");
    let stored = stage.store.webhook(WS, webhook.id).await.unwrap().unwrap();
    let late = stored.paused_at.unwrap().since(START.plus(60 * MINUTE));
    assert!(late < MINUTE, "it was paused an hour after the first failure");
}

/// A webhook that was reactivated a moment ago, with so many deliveries waiting.
async fn reactivated(stage: &mut Stage, waiting: usize) -> (Webhook, Vec<DeliveryId>) {
    let made = stage.webhook().await;
    let ids = stage.events(waiting).await;
    let paused = Fared {
        webhook: made.id,
        paused_total: made.paused_total,
        health: Health::default(),
        look_at: None,
        paused_at: Some(START),
        probing: None,
    };
    stage.store.record(vec![], vec![paused], vec![]).await.unwrap();
    stage.clock.advance(MINUTE);
    let webhook = stage.store.reactivate(WS, made.id, stage.clock.now().unix).await.unwrap();
    (webhook.unwrap(), ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_stays_the_probe_when_its_webhook_is_read_anew() {
    let mut stage = Stage::new(FAST).await;
    let (webhook, ids) = reactivated(&mut stage, 3).await;
    let now = stage.clock.now();
    let mut hooks = Hooks::default();
    let mut lanes = Lanes::new(pace(&stage.parts.force.load().settings.egress));
    let read =
        || Queue { webhook: Webhook { reordering: false, ..webhook.clone() }, due: Some(START) };
    hooks.restore(read(), &mut lanes, now, &stage.parts);
    let Step::Fetch { but, limit, round, .. } = lanes.next(now) else { panic!("not asked") };
    let fetched = stage.store.fetch(webhook.id, &but, limit).await.unwrap();
    lanes.fetched(webhook.id, round, fetched, now);
    let Step::Start { ready, .. } = lanes.next(now) else { panic!("does not probe") };
    assert_eq!(ready.id, ids[0]);
    hooks.started(webhook.id, ready.id, &lanes);
    hooks.restore(read(), &mut lanes, now, &stage.parts);
    assert!(matches!(lanes.next(now), Step::Wait(None)));
    let due = now.unix.plus(MINUTE);
    lanes.recorded(webhook.id, ids[0], Some(Ready { due, ..ready }), Answered::Yes, now);
    let expected = now.tick.plus(MINUTE);
    assert!(matches!(lanes.next(now), Step::Wait(Some(tick)) if tick == expected));
    let policy = &stage.parts.force.load().settings.health;
    let record = hooks.record(webhook.id, policy, now).unwrap();
    assert_eq!(record.probing, Some(Probe::This(ids[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_probe_is_sent_again_until_it_is_taken_and_then_all_go_in_order() {
    let mut stage = Stage::new(FAST).await;
    let (_, ids) = reactivated(&mut stage, 4).await;
    stage.receiver.answer_with(503);
    stage.start().await;
    stage.received(1).await;
    until("it fails", async || stage.state(ids[0]).await.1 == 1).await;
    // What comes in the meantime waits as well; and a restart changes nothing.
    stage.event().await;
    stage.kill().await;
    stage.start().await;
    stage.turn(MINUTE).await;
    stage.received(2).await;
    until("it fails", async || stage.state(ids[0]).await.1 == 2).await;
    stage.receiver.answer_with(200);
    stage.turn(5 * MINUTE).await;
    stage.received(7).await;
    let events = stage.receiver.events();
    assert_eq!(events[..3], ["evt_1", "evt_1", "evt_1"]);
    let rest: BTreeSet<&str> = events[3..].iter().map(String::as_str).collect();
    assert_eq!(rest, BTreeSet::from(["evt_2", "evt_3", "evt_4", "evt_5"]));
    let all = stage.store.deliveries(WS, &Filter::default(), None, 10).await.unwrap();
    assert_eq!(all.items.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_deleted_while_an_attempt_is_under_way_leaves_nothing_behind() {
    let mut stage = Stage::new(SLOW).await;
    let webhook = stage.webhook().await;
    stage.start().await;
    stage.receiver.hold();
    stage.events(3).await;
    stage.received(1).await;
    assert!(stage.store.delete_webhook(WS, webhook.id).await.unwrap());
    stage.parts.worker.changed(webhook.id);
    let other = stage.webhook().await;
    let id = stage.event().await;
    stage.receiver.let_go();
    until("the other one's is delivered", async || {
        stage.nudge().await;
        stage.state(id).await == (DeliveryState::Delivered, 1)
    })
    .await;
    assert_ne!(other.id, webhook.id);
    assert_eq!(stage.receiver.events().last().map(String::as_str), Some("evt_4"));
    assert_eq!(stage.stop().await, Drained::Yes);
}
