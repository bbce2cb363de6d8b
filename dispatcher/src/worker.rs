//! The loop: claim, send, record.
//!
//! One task knows every webhook that has work: `scheduler` picks what starts next, a task sends it,
//! and its outcome is written down. What the API, the store and attempts report comes in one after
//! another, so that nothing here needs a lock.
//!
//! # Invariants
//!
//! 1. A place in the pace and on an endpoint is free again only when the outcome is on disk: a
//!    crash
//!    cannot make two starts out of one place.
//! 2. What cannot be written is kept and written later; its delivery stays under way.
//! 3. At most one write is on its way: what is known of a webhook never grows older on disk.
//!
//! # Not here
//!
//! Who is next (`scheduler`), how one attempt is made (`delivery`), what follows
//! (`scheduler::transition`) and how it is written down (`worker::store_writes`).

mod attempt;
mod notifications;
mod read_queue;
#[cfg(test)]
mod simulation;
mod store_reads;
mod store_writes;
#[cfg(test)]
pub(crate) mod tests;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use weir_common::limit::rolling::Quota;
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::time::{Clock, Moment, Tick, UnixTime};

use crate::config::settings::Egress;
use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::Queue;
use crate::live_config::ActiveConfig;
use crate::mailbox::{Command, Mailbox, Standing};
use crate::metrics::Metrics;
use crate::scheduler::{Answered, HELD_BYTES_ALL, Pace, Scheduler, Step};
use crate::store::{DeliveryQueue, StoreError};
use crate::worker::attempt::{Sent, Tried};
use crate::worker::read_queue::{Question, Questions};
use crate::worker::store_reads::STORE_PAUSE;
use crate::worker::store_writes::Open;
use crate::worker::webhooks::Hooks;

/// How often idle queues are forgotten and gauges are set.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// What one of the worker's tasks came back with.
pub struct Completion(Result<Told, JoinError>);

enum Told {
    Tried(Box<Tried>),
    Recorded(Vec<Open>, Result<(), StoreError>),
    Fetched(WebhookId, u64, Result<Fetched, StoreError>),
    FetchedOne(WebhookId, u64, Result<Option<QueuedDelivery>, StoreError>),
    Loaded(WebhookId, Result<Option<Queue>, StoreError>),
    Reordered(WebhookId, Result<bool, StoreError>),
}

/// What the worker and its attempts use.
pub struct Resources {
    /// The clock.
    pub clock: Clock,
    /// Where everything is kept.
    pub store: Arc<dyn DeliveryQueue>,
    /// How numbers are shown to the outside.
    pub ids: PublicIds,
    /// The active configuration.
    pub active: Arc<ArcSwap<ActiveConfig>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// A line for each attempt, where that is configured.
    pub attempt_log: Option<Arc<LineLog>>,
    /// Where commands come from; the worker frees its room.
    pub mailbox: Mailbox,
    /// How much may be in memory.
    pub memory: Memory,
}

/// The loop and all it knows.
pub struct Worker {
    resources: Arc<Resources>,
    inbox: mpsc::UnboundedReceiver<Command>,
    endpoints: Scheduler,
    hooks: Hooks,
    tasks: JoinSet<Told>,
    /// What the store is to be asked.
    questions: Questions,
    /// Over, and not yet handed to the store.
    open: Vec<Open>,
    /// Whether the store is writing.
    recording: bool,
    /// When the store may be asked to write again after a failure.
    store_rests_until: Tick,
    /// When idle queues were forgotten and gauges set.
    tidied: Option<Tick>,
    stopping: watch::Receiver<bool>,
}

/// How much a worker holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of deliveries, those that wait and the bodies of those under way.
    pub held_bytes: usize,
    /// Webhooks that are read together at the start: a hundred thousand are not in memory twice.
    pub queues_page: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { held_bytes: HELD_BYTES_ALL, queues_page: 1_000 }
    }
}

/// What is in memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Attempts under way.
    pub in_flight: usize,
    /// Endpoints that are known.
    pub endpoints: usize,
    /// Deliveries that wait, and endpoints' places in the order of what is due.
    pub held: usize,
}

/// What a turn of the loop leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing before then, or until something happens.
    Wait(Option<Tick>),
    /// Nothing ever again.
    Over(Drained),
}

/// Whether everything that was under way was finished and written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything.
    Yes,
    /// Some of it was cut off: it will be sent again.
    No,
}

fn pace(egress: &Egress) -> Pace {
    Pace {
        quota: Quota { requests: egress.requests, window: egress.window },
        per_endpoint: egress.in_flight_per_endpoint(),
        total: egress.in_flight_max,
    }
}

impl Worker {
    /// A worker that has read from the store what there is to do.
    pub async fn prepare(
        resources: Resources,
        inbox: mpsc::UnboundedReceiver<Command>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let now = resources.clock.now();
        let egress = resources.active.load().settings.egress.clone();
        let mut endpoints = Scheduler::new(pace(&egress), resources.memory.held_bytes);
        let since = UnixTime(now.unix.0.saturating_sub(weir_common::time::micros(egress.window)));
        let mut starts = resources.store.starts_since(since).await?;
        starts.sort_by_key(|(_, started)| *started);
        for (endpoint, started) in starts {
            endpoints.seed(endpoint, now.tick_of(started));
        }
        let unclean = resources.store.unclean_shutdowns();
        for found in unclean.into_iter().filter(|found| *found >= since) {
            // What was under way when an earlier process was killed left no trace.
            endpoints.suspect(egress.in_flight_per_endpoint(), now.tick_of(found));
        }
        let mut hooks = Hooks::default();
        let mut after = None;
        loop {
            let page = resources.store.queues(after, resources.memory.queues_page).await?;
            for queue in page.items {
                hooks.restore(queue, &mut endpoints, now, &resources);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(Self {
            resources: Arc::new(resources),
            inbox,
            endpoints,
            hooks,
            tasks: JoinSet::new(),
            questions: Questions::default(),
            open: Vec::new(),
            recording: false,
            store_rests_until: Tick(0),
            tidied: None,
            stopping,
        })
    }

    /// Works until told to stop, then finishes what is under way.
    pub async fn run(mut self) -> Drained {
        self.begin();
        loop {
            let wake = match self.turn() {
                Turn::Wait(wake) => wake,
                Turn::Over(drained) => return drained,
            };
            let now = self.resources.clock.now();
            let wait = wake.map_or(TIDY_EVERY, |wake| wake.since(now.tick)).min(TIDY_EVERY);
            tokio::select! {
                Some(news) = self.inbox.recv() => self.hear(news),
                Some(told) = self.tasks.join_next() => self.take(Completion(told)),
                () = tokio::time::sleep(wait) => {}
                Ok(()) = self.stopping.changed() => {}
            }
            self.catch_up();
        }
    }

    /// Goes on with what an earlier process had begun.
    pub fn begin(&mut self) {
        for webhook in self.hooks.to_reorder() {
            self.reorder(webhook);
        }
    }

    /// Does all there is to do now.
    pub fn turn(&mut self) -> Turn {
        let now = self.resources.clock.now();
        if self.tidied.is_none_or(|tidied| now.tick.since(tidied) >= TIDY_EVERY) {
            self.tidied = Some(now.tick);
            self.tidy(now);
        }
        self.look(now);
        let stopping = *self.stopping.borrow();
        let wake = if stopping { None } else { self.start(now) };
        self.ask_store(now);
        self.record(now);
        if stopping && self.endpoints.in_flight() == 0 && !self.recording {
            return Turn::Over(Drained::Yes);
        }
        let look = self.hooks.next_look().map(|at| now.tick_at(at));
        Turn::Wait(wake.into_iter().chain(look).chain(self.questions.next_at()).min())
    }

    /// Hears what has come by now: one look at the clock's worth. What comes meanwhile is not:
    /// others may talk without end.
    pub fn catch_up(&mut self) {
        for _ in 0..self.inbox.len() {
            self.next_command().into_iter().for_each(|command| self.hear(command));
        }
        for _ in 0..self.tasks.len() {
            let Some(completion) = self.next_completion() else { break };
            self.take(completion);
        }
    }

    /// The command that came first, to be handed to [`Worker::hear`].
    pub fn next_command(&mut self) -> Option<Command> {
        self.inbox.try_recv().ok()
    }

    /// What a task came back with, to be handed to [`Worker::take`].
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.tasks.try_join_next().map(Completion)
    }

    /// Commands that have come and were not heard yet.
    #[must_use]
    pub fn unheard(&self) -> usize {
        self.inbox.len()
    }

    /// Tasks that have not ended, or of which it was not heard that they have.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Whether a read or a write is with the store, or waits to be.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        self.recording
            || !self.open.is_empty()
            || self.tasks.len() > self.endpoints.in_flight()
            || self.questions.next_at().is_some()
    }

    /// What is in memory now.
    #[must_use]
    pub fn in_memory(&self) -> InMemory {
        let (in_flight, endpoints) = (self.endpoints.in_flight(), self.endpoints.count());
        InMemory { in_flight, endpoints, held: self.endpoints.held() }
    }

    /// Starts all that may start now; says when to look again.
    fn start(&mut self, now: Moment) -> Option<Tick> {
        loop {
            match self.endpoints.next(now) {
                Step::Wait(until) => return until,
                Step::Fetch { webhook, limit, but, round } => {
                    self.questions.push(Question::Fetch { webhook, limit, but, round });
                }
                Step::FetchOne { webhook, delivery, round } => {
                    self.questions.push(Question::FetchOne { webhook, delivery, round });
                }
                Step::Start { webhook, endpoint, ready, lag } => {
                    let Some(target) = self.hooks.target(webhook) else {
                        // It was deleted a moment ago.
                        self.endpoints.recorded(webhook, ready.id, None, Answered::Yes, now);
                        continue;
                    };
                    self.hooks.started(webhook, ready.id, &self.endpoints);
                    self.resources.metrics.start_lag.observe(lag.as_secs_f64());
                    let sent = Sent { webhook, endpoint, ready, started: now, target };
                    let resources = self.resources.clone();
                    self.tasks.spawn(async move { Told::Tried(sent.send(&resources).await) });
                }
            }
        }
    }

    /// Takes a command into account.
    pub fn hear(&mut self, news: Command) {
        let now = self.resources.clock.now();
        match news {
            Command::Arrived(arrivals) => {
                self.resources.mailbox.heard(&arrivals);
                for arrival in arrivals {
                    if self.endpoints.knows(arrival.webhook) {
                        self.endpoints.arrived(arrival.webhook, arrival.ready, now);
                    } else {
                        // The webhook is read together with what waits for it.
                        self.load(arrival.webhook);
                    }
                }
            }
            Command::Missed => {
                for webhook in self.resources.mailbox.missed() {
                    if self.endpoints.knows(webhook) {
                        self.endpoints.reread(webhook, now.tick);
                    } else {
                        self.load(webhook);
                    }
                }
            }
            Command::Changed(webhook) => self.load(webhook),
            Command::Reloaded => {
                let active = self.resources.active.load_full();
                self.endpoints.set_pace(pace(&active.settings.egress), now.tick);
                self.hooks.replan(&active.settings.health, now.unix);
            }
            Command::Asked(of, answer) => {
                let standing = |(webhook, delivery): &(WebhookId, DeliveryId)| {
                    let (in_flight, held, unresolved) =
                        self.endpoints.standing(*webhook, *delivery, now.tick);
                    let held_until = held.map(|held| now.unix_of(held));
                    Standing { in_flight, held_until, unresolved }
                };
                // Whoever asked may have gone away.
                let _ = answer.send(of.iter().map(standing).collect());
            }
        }
    }

    /// Takes into account what a task came back with.
    pub fn take(&mut self, completion: Completion) {
        let now = self.resources.clock.now();
        let told = match completion.0 {
            Ok(told) => told,
            Err(error) => {
                // A mistake of ours: the delivery stays under way until the next start.
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Error, "a task of the worker broke", &fields);
                return;
            }
        };
        match told {
            Told::Tried(tried) => self.tried(*tried, now),
            Told::Recorded(open, Ok(())) => {
                self.recording = false;
                for open in open {
                    self.recorded(open, now);
                }
            }
            Told::Recorded(mut open, Err(error)) => {
                self.recording = false;
                self.resources.metrics.store_failures.inc();
                self.store_rests_until = now.tick.plus(STORE_PAUSE);
                let fields = [("error", json!(error.to_string())), ("count", json!(open.len()))];
                events::event(Level::Error, "outcomes cannot be written yet", &fields);
                open.append(&mut self.open);
                self.open = open;
            }
            Told::Fetched(webhook, round, Ok(fetched)) => {
                self.endpoints.fetched(webhook, round, fetched, now);
            }
            Told::FetchedOne(webhook, round, Ok(one)) => {
                self.endpoints.fetched_one(webhook, round, one, now);
            }
            Told::Loaded(webhook, Ok(queue)) => self.loaded(webhook, queue, now),
            Told::Reordered(webhook, Ok(true)) => self.load(webhook),
            Told::Reordered(webhook, Ok(false)) => self.reorder(webhook),
            Told::Loaded(webhook, Err(_)) => {
                self.hooks.answered(webhook);
                self.load_later(webhook, now);
            }
            Told::Fetched(webhook, .., Err(_))
            | Told::FetchedOne(webhook, .., Err(_))
            | Told::Reordered(webhook, Err(_)) => self.load_later(webhook, now),
        }
    }

    /// Looks at the webhooks whose time it is.
    fn look(&mut self, now: Moment) {
        for (at, webhook) in self.hooks.due(now) {
            let mails = self.hooks.look(webhook, at, &mut self.endpoints, &self.resources, now);
            if let Some(mails) = mails {
                let (under_way, again, answered) = (None, None, Answered::Yes);
                self.keep(Open { webhook, under_way, ended: None, mails, again, answered });
            }
        }
    }

    fn tidy(&mut self, now: Moment) {
        self.endpoints.forget_idle(now.tick);
        self.hooks.forget_idle(&self.endpoints);
        let metrics = &self.resources.metrics;
        metrics.past_due_oldest.set(self.endpoints.past_due(now.tick).as_secs_f64());
        metrics.in_flight.set(i64::try_from(self.endpoints.in_flight()).unwrap_or(i64::MAX));
        metrics.endpoints.set(i64::try_from(self.endpoints.count()).unwrap_or(i64::MAX));
        metrics.unrecorded.set(i64::try_from(self.open.len()).unwrap_or(i64::MAX));
    }
}
