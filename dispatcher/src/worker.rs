//! The event loop: passes commands and results to the scheduler, and carries out its actions.
//!
//! One task owns all scheduling state and handles commands and results one after another, so that
//! nothing in the scheduler needs a lock. Its state is a bounded cache of the store, except for
//! the attempts in flight, which are never stored: after a crash their deliveries still wait on
//! disk, and are sent again.
//!
//! # Not here
//!
//! Decisions (`scheduler`), how one attempt is made (`delivery`).

mod attempt;
mod notifications;
mod operator_events;
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
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::time::{Clock, Moment, Tick, UnixTime, micros};

use crate::config::settings::Settings;
use crate::domain::pace::{counted, longest_window};
use crate::domain::public_id::PublicIds;
use crate::live_config::ActiveConfig;
use crate::mailbox::{Command, Mailbox};
use crate::metrics::Metrics;
use crate::most_failed::MostFailedWebhooks;
use crate::scheduler::rate_limit::Limits;
use crate::scheduler::{Action, CACHED_BYTES_ALL, Input, Policies, Scheduler};
use crate::store::{DeliveryQueue, StoreError};

/// How often idle queues are evicted and gauges are set.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// Resources of the worker and its tasks.
pub struct Resources {
    /// The clock.
    pub clock: Clock,
    /// The database.
    pub store: Arc<dyn DeliveryQueue>,
    /// Formats the public identifiers of rows.
    pub ids: PublicIds,
    /// The active configuration.
    pub active: Arc<ArcSwap<ActiveConfig>>,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// The attempt log, if it is configured: one line for each attempt.
    pub attempt_log: Option<Arc<LineLog>>,
    /// The sending side of the inbox; the worker releases the memory of processed deliveries.
    pub mailbox: Mailbox,
    /// The webhooks with the most failed attempts.
    pub most_failed: Arc<MostFailedWebhooks>,
    /// Memory limits.
    pub memory: Memory,
}

/// Memory limits of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of waiting deliveries in memory and of bodies in flight, together.
    pub cached_bytes: usize,
    /// Webhooks per page of the read at the start: a hundred thousand are not in memory twice.
    pub queues_page: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { cached_bytes: CACHED_BYTES_ALL, queues_page: 1_000 }
    }
}

/// The loop and its state.
pub struct Worker {
    resources: Arc<Resources>,
    inbox: mpsc::UnboundedReceiver<Command>,
    scheduler: Scheduler,
    /// The configuration that the scheduler uses.
    active: Arc<ActiveConfig>,
    /// Attempts, reads and writes: each returns an input for the scheduler.
    tasks: JoinSet<Input>,
    /// When idle queues were last evicted and gauges set.
    tidied: Option<Tick>,
    stopping: watch::Receiver<bool>,
}

/// The result of one of the worker's tasks.
pub struct Completion(Result<Input, JoinError>);

/// Numbers of objects in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InMemory {
    /// Attempts in flight.
    pub in_flight: usize,
    /// Endpoints in memory.
    pub endpoints: usize,
    /// Waiting deliveries in memory, and entries of the scheduler's heap of endpoints.
    pub cached: usize,
}

/// What the loop does after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits for an event, or until this time.
    Wait(Option<Tick>),
    /// It ends.
    Over(Drained),
}

/// Whether all attempts in flight ended and were recorded before the worker stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All of them.
    Yes,
    /// Some were interrupted: their deliveries are sent again after the next start.
    No,
}

fn policies(settings: &Settings) -> Policies {
    let egress = &settings.egress;
    let limits = Limits {
        quota: counted(egress.per_endpoint()),
        per_host: counted(egress.per_host()),
        per_endpoint: egress.in_flight_per_endpoint(),
        total: egress.in_flight_max,
    };
    let (retry, health) = (settings.retry.clone(), settings.health.clone());
    Policies { limits, deadline: egress.deadline, retry, health }
}

impl Worker {
    /// A worker with its state restored from the store.
    pub async fn prepare(
        resources: Resources,
        inbox: mpsc::UnboundedReceiver<Command>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, StoreError> {
        let (now, store) = (resources.clock.now(), &resources.store);
        let active = resources.active.load_full();
        let policies = policies(&active.settings);
        let window = micros(longest_window(policies.limits.quota));
        let mut scheduler = Scheduler::new(policies, resources.memory.cached_bytes);
        // What was recorded counts by the clock that the processes before had.
        let now_before = Moment { unix: store.on_earlier_clock(now.unix), ..now };
        let since = |now: Moment| UnixTime(now.unix.0.saturating_sub(window));
        let starts = store.starts_since(since(now_before)).await?;
        let starts = starts.into_iter().map(|start| {
            let sent = now_before.tick_of(start.sent_at);
            (sent, Input::StartedBefore(start, sent))
        });
        let unclean = store.unclean_shutdowns().into_iter().filter(|found| *found >= since(now));
        let unclean = unclean.map(|found| {
            // Attempts in flight when an earlier process was killed left no record.
            let killed = now.tick_of(found);
            (killed, Input::KilledBefore(killed))
        });
        let mut earlier: Vec<(Tick, Input)> = starts.chain(unclean).collect();
        earlier.sort_by_key(|(at, _)| *at);
        earlier.into_iter().for_each(|(_, input)| scheduler.handle(input, now));
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

    /// Runs until it is stopped, and then until all attempts in flight are recorded.
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

    /// Carries out all actions that are due.
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

    /// Handles the commands and results that are queued now. Later ones wait for the next call, so
    /// that a steady stream of them cannot keep the loop from acting.
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

    /// Whether a read or a write is with the store, or is queued for it.
    #[must_use]
    pub fn waits_for_store(&self) -> bool {
        self.scheduler.waits_for_store()
    }

    /// The numbers of objects in memory.
    #[must_use]
    pub fn in_memory(&self) -> InMemory {
        let (in_flight, endpoints) = (self.scheduler.in_flight(), self.scheduler.endpoints());
        InMemory { in_flight, endpoints, cached: self.scheduler.cached() }
    }

    /// Passes a command to the scheduler.
    pub fn handle_command(&mut self, command: Command) {
        let now = self.resources.clock.now();
        let input = match command {
            Command::Arrived(arrivals) => {
                self.resources.mailbox.processed(&arrivals);
                Input::Arrived(arrivals)
            }
            Command::Missed => Input::Missed(self.resources.mailbox.missed()),
            Command::Changed(webhook) => Input::Changed(webhook),
            Command::Sent(request) => Input::Sent(request),
            Command::Reloaded => return self.reload(now),
            Command::ReadStatus(of, answer) => {
                let status = |(webhook, delivery)| self.scheduler.status(webhook, delivery, now);
                // The caller may have stopped waiting.
                let _ = answer.send(of.into_iter().map(status).collect());
                return;
            }
            Command::Charge(check, answer) => {
                self.reload(now);
                let charged = self.scheduler.charge_check(&check, now.tick);
                let charged = charged.map(|()| self.resources.mailbox.charged(check, now.tick));
                // If the caller has stopped waiting, the request ends here.
                let _ = answer.send(charged.map_err(|at| at.since(now.tick)));
                return;
            }
            Command::Ended(check, started) => {
                return self.scheduler.end_check(&check, started, now.tick);
            }
            Command::Survey(answer) => {
                // The caller may have stopped waiting.
                let _ = answer.send(self.scheduler.survey(now.tick));
                return;
            }
        };
        self.scheduler.handle(input, now);
    }

    /// Passes the result of a task to the scheduler.
    pub fn handle_completion(&mut self, completion: Completion) {
        let now = self.resources.clock.now();
        match completion.0 {
            Ok(input) => {
                self.reload(now);
                self.scheduler.handle(input, now);
            }
            Err(error) => {
                // A bug: the delivery stays in flight until the next start.
                let fields = [("error", json!(error.to_string()))];
                events::event(Level::Error, "worker task panicked", &fields);
            }
        }
    }

    /// Passes the active configuration to the scheduler, if it was replaced.
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
