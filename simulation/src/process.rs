//! The process under test: the real worker on the real store, run step by step.
//!
//! A crash drops all of it at any step: what was committed is in the file, everything else is
//! lost.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use rusqlite::Connection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use weir_common::config::document::Document;
use weir_common::directory::Directory;
use weir_common::identifier::IdForm;
use weir_common::log::json_lines::LineLog;
use weir_common::secret::Secret;
use weir_common::time::{Clock, Tick};
use weir_dispatcher::auth::Callers;
use weir_dispatcher::auth::token_file::Tokens;
use weir_dispatcher::catalogue::Catalogue;
use weir_dispatcher::config::read;
use weir_dispatcher::config::settings::{OperatorEndpoint, Settings};
use weir_dispatcher::delivery::client::DeliveryClient;
use weir_dispatcher::delivery::egress::Rules;
use weir_dispatcher::live_config::ActiveConfig;
use weir_dispatcher::live_config::source::Config;
use weir_dispatcher::mailbox::Mailbox;
use weir_dispatcher::maintenance;
use weir_dispatcher::metrics::Metrics;
use weir_dispatcher::state::{Connections, State};
use weir_dispatcher::store::Upkeep;
use weir_dispatcher::store::sqlite::SqliteStore;
use weir_dispatcher::store::sqlite::read_pool::executor::manual::ManualReads;
use weir_dispatcher::store::sqlite::writer::manual::ManualWriter;
use weir_dispatcher::worker::{Completion, Drained, InMemory, Memory, Resources, Turn, Worker};
use weir_tests::rng::SeededRng;

use crate::mail_server::Letters;
use crate::orders::{Answer, OPERATOR_SECRET, OPERATOR_URL, Order};
use crate::process::perform::{Counter, perform};
use crate::receivers::{Calls, Network};

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

mod perform;

/// What outlives a process: its files, its settings, and the world's clock.
pub(crate) struct Machine {
    folder: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) calls: Calls,
    pub(crate) letters: Letters,
    pub(crate) settings: Settings,
    /// The bytes that a process may use for deliveries, and for commands not yet handled.
    pub(crate) memory: [usize; 2],
    client: Arc<DeliveryClient>,
    rules: Arc<Rules>,
    metrics: Arc<Metrics>,
}

/// A running process.
pub(crate) struct Process {
    // Dropped in this order: fields that use the store come first.
    worker: Option<Worker>,
    orders: JoinSet<()>,
    answers: Arc<Mutex<Vec<Answer>>>,
    /// Orders on their way to the store, or from there to the worker.
    lingering: Arc<AtomicUsize>,
    /// Results of its tasks that the worker has not received yet.
    late: Vec<Completion>,
    /// Whether the worker gets the results of tasks in random order.
    pub(crate) jumbled: bool,
    pub(crate) state: Arc<State>,
    letters: Letters,
    stop: watch::Sender<bool>,
    pub(crate) store: Arc<SqliteStore>,
    writer: ManualWriter,
    reads: Arc<ManualReads>,
    /// When the worker's next turn is due.
    pub(crate) wake: Option<Tick>,
    pub(crate) over: Option<Drained>,
    pub(crate) log: Arc<LineLog>,
}

impl Machine {
    pub(crate) fn new(folder: PathBuf, config: &str, clock: Clock, memory: [usize; 2]) -> Self {
        let settings = read(config);
        let rules = Arc::new(Rules::system(settings.egress.clone()));
        let calls: Calls = Arc::new(Mutex::default());
        let client = client(&settings, &rules, &clock, &calls);
        let metrics = Arc::new(Metrics::new());
        let letters = Letters::default();
        Self { folder, clock, calls, letters, settings, memory, client, rules, metrics }
    }

    /// Changes the settings of the running process, if there is one, and of later ones.
    pub(crate) fn set(&mut self, config: &str, process: Option<&Process>) {
        self.settings = read(config);
        self.client = client(&self.settings, &self.rules, &self.clock, &self.calls);
        if let Some(process) = process {
            process.state.active.store(Arc::new(self.active()));
            process.state.mailbox.reloaded();
        }
    }

    fn active(&self) -> ActiveConfig {
        ActiveConfig {
            settings: self.settings.clone(),
            catalogue: Catalogue::shipped(),
            callers: Callers::new(
                Tokens::read(&Document::new("tokens.toml", ""), &IdForm::workspace()),
                Directory::read(&Document::new("directory.toml", DIRECTORY), &IdForm::workspace()),
            ),
            egress: self.rules.clone(),
            client: self.client.clone(),
            certificate: None,
            remote_owners: None,
            limits: None,
            theme: None,
            origin: weir_dispatcher::live_config::ConfigOrigin::default(),
        }
    }

    /// Opens the store and reads the pending work from it, as `app` does.
    pub(crate) async fn start(&self) -> Process {
        let (path, key) = (self.folder.join("d.db"), self.folder.join("key"));
        let (store, mut writer, reads) =
            SqliteStore::open_manual(&path, &key, self.clock.clone()).unwrap();
        let store = Arc::new(store);
        let [held, unheard] = self.memory;
        let (mailbox, inbox) = Mailbox::with_room(unheard);
        let log = LineLog::new(&self.metrics.log_dropped);
        let state = Arc::new(State {
            clock: self.clock.clone(),
            config: Config::built_in(),
            store: store.clone(),
            active: Arc::new(ArcSwap::from_pointee(self.active())),
            mailbox,
            metrics: self.metrics.clone(),
            connections: Connections::new(1),
            most_failed: Arc::default(),
            jobs: Arc::default(),
            applied: Notify::new(),
            reloads: Metrics::new().of_reloads(),
            ready: AtomicBool::new(true),
        });
        let (stop, stopping) = watch::channel(false);
        let (of, now) = (store.clone(), self.clock.now().unix);
        let endpoint = self.settings.operator_endpoint().cloned();
        stepped(&mut writer, async move { of.set_operator(endpoint, now).await }).await.unwrap();
        let memory = Memory { cached_bytes: held, queues_page: 2 };
        let resources = Resources { memory, ..state.resources(Some(log.clone())) };
        let preparing = Worker::prepare(resources, inbox, stopping);
        let worker = stepped(&mut writer, preparing).await.unwrap();
        let mut orders = JoinSet::new();
        let (clock, mailbox) = (state.clock.clone(), state.mailbox.clone());
        orders.spawn(maintenance::jobs(store.clone(), clock, mailbox, state.jobs.clone()));
        let worker = Some(worker);
        Process {
            worker,
            orders,
            answers: Arc::default(),
            lingering: Arc::default(),
            late: Vec::new(),
            jumbled: false,
            state,
            letters: self.letters.clone(),
            stop,
            store,
            writer,
            reads,
            wake: None,
            over: None,
            log,
        }
    }
}

/// Awaits a task while the store does what it asks for.
async fn stepped<T: Send + 'static>(
    writer: &mut ManualWriter,
    task: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut tasks = JoinSet::new();
    tasks.spawn(task);
    loop {
        run_tasks().await;
        if let Some(ended) = tasks.try_join_next() {
            return ended.unwrap();
        }
        writer.step();
    }
}

fn read(config: &str) -> Settings {
    let document = Document::new("dispatcher.toml", config);
    let mut settings = read::read(&document).made;
    let secret = Secret::new(OPERATOR_SECRET.to_owned());
    let endpoint = OperatorEndpoint { url: OPERATOR_URL.into(), secret };
    settings.operator.as_mut().unwrap().endpoint = Some(endpoint);
    let diagnostics = document.diagnostics();
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    settings
}

fn client(
    settings: &Settings,
    rules: &Arc<Rules>,
    clock: &Clock,
    calls: &Calls,
) -> Arc<DeliveryClient> {
    let (network, deadline) =
        (Arc::new(Network(calls.clone(), clock.clone())), settings.egress.deadline);
    Arc::new(DeliveryClient::over(network, deadline, rules.clone(), clock.clone()))
}

/// Waits for so many steps of the executor.
async fn linger(steps: u64, lingering: &AtomicUsize) {
    lingering.fetch_add(1, Ordering::Relaxed);
    for _ in 0..steps {
        tokio::task::yield_now().await;
    }
    lingering.fetch_sub(1, Ordering::Relaxed);
}

/// Lets tasks run as far as they get.
pub(crate) async fn run_tasks() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

impl Process {
    /// Sends an order to the store, as the API and ingest do, after `there` steps. The worker is
    /// notified `back` steps after the reply.
    pub(crate) fn order(&mut self, number: u64, order: Order, [there, back]: [u64; 2]) {
        let (state, letters) = (self.state.clone(), self.letters.clone());
        let counter = Counter { state, letters, stopping: self.stop.subscribe() };
        let (answers, lingering) = (self.answers.clone(), self.lingering.clone());
        self.orders.spawn(async move {
            linger(there, &lingering).await;
            let asked = counter.state.clock.now();
            let (reply, word) = perform(&counter, order, asked.unix).await;
            answers.lock().unwrap().push(Answer { number, asked, reply });
            linger(back, &lingering).await;
            word.notify(&counter.state);
        });
    }

    /// The replies to orders since the last call.
    pub(crate) fn replies(&mut self) -> Vec<Answer> {
        while let Some(ended) = self.orders.try_join_next() {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        std::mem::take(&mut *self.answers.lock().unwrap())
    }

    /// One turn of the worker's loop; returns whether anything was done.
    pub(crate) fn turn(&mut self, rng: &mut SeededRng) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        let (heard, tasks) = (worker.queued_commands(), worker.tasks());
        let lingering = self.lingering.load(Ordering::Relaxed) > 0;
        let late = !self.late.is_empty();
        if self.jumbled {
            jumble(worker, &mut self.late, rng);
        } else {
            worker.catch_up();
        }
        let left = worker.tasks();
        match worker.turn() {
            Turn::Wait(wake) => self.wake = wake,
            Turn::Over(drained) => {
                self.over = Some(drained);
                self.worker = None;
                return true;
            }
        }
        lingering || late || heard > 0 || left < tasks || worker.tasks() > left
    }

    /// Executes the store's queued work in one commit; returns whether there was any.
    pub(crate) fn write(&mut self) -> bool {
        self.writer.step()
    }

    /// If `tells`, delivers the results of the worker's earlier reads. Then starts the reads that
    /// wait; returns whether a result may have been delivered.
    pub(crate) fn read(&mut self, rng: &mut SeededRng, tells: bool) -> bool {
        let any = self.reads.any();
        if any && tells && (!self.jumbled || rng.chance(50)) {
            self.reads.deliver();
        }
        if any && (!self.jumbled || rng.chance(50)) {
            self.reads.begin();
        }
        any && tells
    }

    /// Sets whether every read fails.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.reads.set_failing(unreadable);
    }

    pub(crate) fn conn(&self) -> &Connection {
        self.writer.connection().unwrap()
    }

    /// Whether the worker waits for the store, or to try it again.
    pub(crate) fn waits_for_store(&self) -> bool {
        self.worker.as_ref().is_some_and(Worker::waits_for_store)
    }

    /// What the worker has in memory: attempts in flight, endpoints, deliveries.
    pub(crate) fn held(&self) -> InMemory {
        self.worker.as_ref().map(Worker::in_memory).unwrap_or_default()
    }

    /// Tells the worker to stop once the attempts in flight have ended.
    pub(crate) fn stop(&mut self) {
        self.stop.send(true).unwrap();
    }

    /// Shuts down, as `app` does once the worker has ended.
    pub(crate) async fn close(mut self) {
        self.orders.shutdown().await;
        if self.over == Some(Drained::Yes) {
            let store = self.store.clone();
            stepped(&mut self.writer, async move { store.close().await }).await.unwrap();
        }
        self.kill().await;
    }

    /// Ends as a killed process does.
    pub(crate) async fn kill(self) {
        drop(self);
        // An aborted task is dropped when it is next polled.
        run_tasks().await;
        run_tasks().await;
    }
}

/// Gives a worker its commands and results in random order, and some results later: its tasks end
/// on many threads, in any order.
fn jumble(worker: &mut Worker, late: &mut Vec<Completion>, rng: &mut SeededRng) {
    late.extend(std::iter::from_fn(|| worker.next_completion()));
    let mut news = worker.queued_commands();
    let mut tasks = std::mem::take(late);
    while news > 0 || !tasks.is_empty() {
        if rng.below((news + tasks.len()) as u64) < news as u64 {
            news -= 1;
            // Commands come through one queue, and stay in their order.
            worker.next_command().into_iter().for_each(|command| worker.handle_command(command));
            continue;
        }
        let told = tasks.swap_remove(rng.below(tasks.len() as u64) as usize);
        if rng.chance(20) { late.push(told) } else { worker.handle_completion(told) }
    }
}
