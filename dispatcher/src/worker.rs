//! The loop: receives commands and results, hands them to the scheduler, performs its actions.
//!
//! One task owns all scheduling state and handles commands and results one after another, so that
//! nothing in the scheduler needs a lock. Its state is a bounded cache of the store, except for
//! the attempts under way: after a crash those deliveries still wait on disk, and are sent again.
//!
//! # Not here
//!
//! Decisions (`scheduler`), how one attempt is made (`delivery`).

mod attempt;
mod notifications;
mod panics;
mod store_io;
#[cfg(test)]
pub(crate) mod tests;

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
use weir_common::time::{Clock, Moment, Tick, UnixTime, micros};

use crate::config::settings::Settings;
use crate::domain::public_id::PublicIds;
use crate::live_config::ActiveConfig;
use crate::mailbox::{Command, Mailbox};
use crate::metrics::Metrics;
use crate::scheduler::rate_limit::Limits;
use crate::scheduler::{Action, CACHED_BYTES_ALL, Input, Policies, Scheduler};
use crate::store::{DeliveryQueue, StoreError};

/// How often idle queues are forgotten and gauges are set.
const TIDY_EVERY: Duration = Duration::from_secs(1);

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

/// Memory limits of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of deliveries, those that wait and the bodies of those under way.
    pub cached_bytes: usize,
    /// Webhooks that are read together at the start: a hundred thousand are not in memory twice.
    pub queues_page: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { cached_bytes: CACHED_BYTES_ALL, queues_page: 1_000 }
    }
}

/// The loop and all it knows.
pub struct Worker {
    resources: Arc<Resources>,
    inbox: mpsc::UnboundedReceiver<Command>,
    scheduler: Scheduler,
    /// The configuration that the scheduler decides by.
    active: Arc<ActiveConfig>,
    /// Attempts, reads and writes: each ends with an input for the scheduler.
    tasks: JoinSet<Input>,
    /// When idle queues were forgotten and gauges set.
    tidied: Option<Tick>,
    stopping: watch::Receiver<bool>,
}

/// What one of the worker's tasks came back with.
pub struct Completion(Result<Input, JoinError>);

/// What is in memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Attempts under way.
    pub in_flight: usize,
    /// Endpoints that are known.
    pub endpoints: usize,
    /// Deliveries that wait, and endpoints' places in the order of what is due.
    pub cached: usize,
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

fn policies(settings: &Settings) -> Policies {
    let egress = &settings.egress;
    let limits = Limits {
        quota: Quota { requests: egress.requests, window: egress.window },
        per_endpoint: egress.in_flight_per_endpoint(),
        total: egress.in_flight_max,
    };
    let (retry, health) = (settings.retry.clone(), settings.health.clone());
    Policies { limits, deadline: egress.deadline, retry, health }
}

impl Worker {
    /// A worker that has read from the store what there is to do.
    pub async fn prepare(
        resources: Resources,
        inbox: mpsc::UnboundedReceiver<Command>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let (now, store) = (resources.clock.now(), &resources.store);
        let active = resources.active.load_full();
        let policies = policies(&active.settings);
        let window = micros(policies.limits.quota.window);
        let mut scheduler = Scheduler::new(policies, resources.memory.cached_bytes);
        let since = UnixTime(now.unix.0.saturating_sub(window));
        let mut starts = store.starts_since(since).await?;
        starts.sort_by_key(|(_, started)| *started);
        for (endpoint, started) in starts {
            scheduler.handle(Input::StartedBefore(endpoint, now.tick_of(started)), now);
        }
        let unclean = store.unclean_shutdowns();
        for found in unclean.into_iter().filter(|found| *found >= since) {
            // What was under way when an earlier process was killed left no trace.
            scheduler.handle(Input::KilledBefore(now.tick_of(found)), now);
        }
        let mut after = None;
        loop {
            let page = store.queues(after, resources.memory.queues_page).await?;
            for queue in page.items {
                scheduler.handle(Input::Restored(Box::new(queue)), now);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let (tasks, tidied) = (JoinSet::new(), None);
        let resources = Arc::new(resources);
        Ok(Self { resources, inbox, scheduler, active, tasks, tidied, stopping })
    }

    /// Works until it is stopped, then finishes what is under way.
    pub async fn run(mut self) -> Drained {
        loop {
            let wake = match self.turn() {
                Turn::Wait(wake) => wake,
                Turn::Over(drained) => return drained,
            };
            let now = self.resources.clock.now();
            let wait = wake.map_or(TIDY_EVERY, |wake| wake.since(now.tick)).min(TIDY_EVERY);
            tokio::select! {
                Some(command) = self.inbox.recv() => self.handle_command(command),
                Some(result) = self.tasks.join_next() => self.handle_completion(Completion(result)),
                () = tokio::time::sleep(wait) => {}
                Ok(()) = self.stopping.changed() => {}
            }
            self.catch_up();
        }
    }

    /// Does all there is to do now.
    pub fn turn(&mut self) -> Turn {
        let now = self.resources.clock.now();
        if self.tidied.is_none_or(|tidied| now.tick.since(tidied) >= TIDY_EVERY) {
            self.tidied = Some(now.tick);
            self.scheduler.handle(Input::Tidy, now);
            self.set_gauges(now);
        }
        if *self.stopping.borrow() {
            self.scheduler.handle(Input::Stop, now);
        }
        loop {
            match self.scheduler.poll(now) {
                Action::Start(attempt, lag) => {
                    self.resources.metrics.start_lag.observe(lag.as_secs_f64());
                    self.tasks.spawn(attempt::send(attempt, self.resources.clone()));
                }
                Action::Read(read) => {
                    self.tasks.spawn(store_io::read(read, self.resources.clone()));
                }
                Action::Write(write) => {
                    self.tasks.spawn(store_io::write(write, self.resources.clone()));
                }
                Action::Notify(notification) => {
                    notifications::report(&self.resources, notification)
                }
                Action::Wait(until) => return Turn::Wait(until),
                Action::Finish => return Turn::Over(Drained::Yes),
            }
        }
    }

    /// Handles what has arrived by now, with one reading of the clock. What arrives meanwhile
    /// waits: others may send without end.
    pub fn catch_up(&mut self) {
        for _ in 0..self.inbox.len() {
            self.next_command().into_iter().for_each(|command| self.handle_command(command));
        }
        for _ in 0..self.tasks.len() {
            let Some(completion) = self.next_completion() else { break };
            self.handle_completion(completion);
        }
    }

    /// The oldest command, for [`Worker::handle_command`].
    pub fn next_command(&mut self) -> Option<Command> {
        self.inbox.try_recv().ok()
    }

    /// The result of a task, for [`Worker::handle_completion`].
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.tasks.try_join_next().map(Completion)
    }

    /// Commands that are not handled yet.
    #[must_use]
    pub fn queued_commands(&self) -> usize {
        self.inbox.len()
    }

    /// Tasks that have not ended, or whose result is not handled yet.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Whether a read or a write is with the store, or waits to be.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        self.scheduler.waits_for_store()
    }

    /// What is in memory now.
    #[must_use]
    pub fn in_memory(&self) -> InMemory {
        let (in_flight, endpoints) = (self.scheduler.in_flight(), self.scheduler.endpoints());
        InMemory { in_flight, endpoints, cached: self.scheduler.cached() }
    }

    /// Hands a command to the scheduler.
    pub fn handle_command(&mut self, command: Command) {
        let now = self.resources.clock.now();
        let input = match command {
            Command::Arrived(arrivals) => {
                self.resources.mailbox.processed(&arrivals);
                Input::Arrived(arrivals)
            }
            Command::Missed => Input::Missed(self.resources.mailbox.missed()),
            Command::Changed(webhook) => Input::Changed(webhook),
            Command::Reloaded => return self.reload(now),
            Command::ReadStatus(of, answer) => {
                let status = |(webhook, delivery)| self.scheduler.status(webhook, delivery, now);
                // The caller may have left.
                let _ = answer.send(of.into_iter().map(status).collect());
                return;
            }
        };
        self.scheduler.handle(input, now);
    }

    /// Hands the result of a task to the scheduler.
    pub fn handle_completion(&mut self, completion: Completion) {
        let now = self.resources.clock.now();
        match completion.0 {
            Ok(input) => {
                self.reload(now);
                self.scheduler.handle(input, now);
            }
            Err(error) => {
                // A bug: the delivery stays under way until the next start.
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Error, "worker task panicked", &fields);
            }
        }
    }

    /// Has the scheduler decide by the active configuration.
    fn reload(&mut self, now: Moment) {
        let active = self.resources.active.load();
        if !Arc::ptr_eq(&active, &self.active) {
            self.active = Arc::clone(&active);
            let policies = Box::new(policies(&self.active.settings));
            self.scheduler.handle(Input::Configured(policies), now);
        }
    }

    fn set_gauges(&self, now: Moment) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let (metrics, scheduler) = (&self.resources.metrics, &self.scheduler);
        metrics.past_due_oldest.set(scheduler.past_due(now.tick).as_secs_f64());
        metrics.in_flight.set(count(scheduler.in_flight()));
        metrics.endpoints.set(count(scheduler.endpoints()));
        metrics.unrecorded.set(count(scheduler.unwritten()));
    }
}
