//! Decides which delivery starts next, what follows from its attempt, and when to look again.
//!
//! The scheduler owns all that is known of endpoints, webhooks and what waits for them, and neither
//! waits, reads the clock, nor writes: [`Scheduler::handle`] takes in what has happened,
//! [`Scheduler::poll`] says what is to be done about it. `worker` carries that out, and brings the
//! answers.
//!
//! An endpoint is the queue towards one receiving URL; the webhooks registered for it take turns on
//! it. A heap orders the endpoints that have something to do by when they may; those that may now
//! take turns. Nothing here grows with the deliveries that wait, only with the endpoints that have
//! work.
//!
//! # Invariants
//!
//! 1. On no endpoint do more attempts start within any stretch of the window than the rate allows,
//!    whoever registered its webhooks.
//! 2. A webhook that is paused starts none, one that probes one at a time.
//! 3. What can start does, in the order in which it could: no endpoint and no webhook starves. On a
//!    endpoint workspaces take turns, and the webhooks of one share its turn.
//! 4. No delivery is under way twice.
//! 5. What is in memory of deliveries, be they under way or waiting, is bounded over all webhooks
//!    together: the more have work the less each may hold, and where that is not
//!    enough, those that have time hold nothing.
//! 6. Slow receivers cannot take all slots: those that took long last time share half of them,
//!    the last quarter is for endpoints that have nothing under way, the last eighth for endpoints
//!    whose receivers have answered, and a workspace has few attempts beside others of one webhook
//!    while other workspaces have any.
//! 7. An endpoint whose name finds no answer is left alone, longer each time, up to a minute.
//! 8. A slot, and its place in the rate, is free again only when the result is on disk: a crash
//!    cannot make two starts out of one place.
//! 9. What cannot be written is kept and written later; its delivery stays under way. At most one
//!    write is on its way: what is known of a webhook never grows older on disk.
//!
//! # Not here
//!
//! How deliveries are sent and stored (`worker`), when a failed one is due (`domain::retry`).

pub mod attempts;
pub mod reads;
pub mod webhooks;
pub mod writes;

mod backlog;
mod concurrency;
mod endpoint;
mod load;
mod pick;
mod queues;
mod rate_limit;
mod ready_list;
mod responsiveness;
mod status;
#[cfg(test)]
mod tests;
mod transition;
mod workspace_share;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use weir_common::time::{Moment, Tick};

use crate::domain::delivery::Arrival;
use crate::domain::health::Policy;
use crate::domain::id::{EndpointId, WebhookId};
use crate::domain::retry::Schedule;
use crate::domain::webhook::Queue;
use crate::scheduler::attempts::{AttemptReport, AttemptResult, StartedAttempt};
use crate::scheduler::backlog::Backlog;
use crate::scheduler::concurrency::InFlightSlots;
use crate::scheduler::endpoint::Endpoint;
use crate::scheduler::load::Load;
use crate::scheduler::pick::Pick;
pub use crate::scheduler::rate_limit::Limits;
use crate::scheduler::reads::{StoreAnswer, StoreRead, StoreReads};
use crate::scheduler::webhooks::{HealthAlert, Webhooks};
use crate::scheduler::writes::{PendingWrites, Write};

/// Deliveries in memory that all webhooks share, in bytes: a quarter of what a dispatcher with
/// millions waiting may take. The bodies of those under way have half of it at most;
/// those that wait have the rest.
pub const HELD_BYTES_ALL: usize = 64 << 20;

/// By which settings the scheduler decides.
#[derive(Clone, Debug)]
pub struct Policies {
    /// How fast attempts start, and how many are under way.
    pub limits: Limits,
    /// How long an attempt may take.
    pub deadline: Duration,
    /// When a failed delivery is tried again.
    pub retry: Schedule,
    /// When owners are warned, and when deliveries pause.
    pub health: Policy,
}

/// What has happened.
#[derive(Debug)]
pub enum Input {
    /// An attempt started before this process did.
    StartedBefore(EndpointId, Tick),
    /// A process before this one was found to have been killed by then: as many attempts as an
    /// endpoint may have under way may have started, and left no trace. To be told after all of
    /// [`Input::StartedBefore`], the oldest first.
    KilledBefore(Tick),
    /// At the start, the store has this webhook.
    Restored(Box<Queue>),
    /// Other settings are active.
    Configured(Box<Policies>),
    /// Deliveries are on disk, and wait.
    Arrived(Vec<Arrival>),
    /// More are on disk for these webhooks.
    Missed(BTreeSet<WebhookId>),
    /// A webhook, or what waits for it, has changed on disk.
    Changed(WebhookId),
    /// An attempt is over.
    Attempted(Box<AttemptResult>),
    /// The store has answered an [`Action::Read`] about this webhook.
    Read(WebhookId, StoreAnswer),
    /// An [`Action::Write`] is on disk.
    Written,
    /// It could not be written.
    NotWritten,
    /// A second or so has passed: what has nothing to do may be forgotten.
    Tidy,
    /// Nothing is to start any more.
    Stop,
}

/// What is to be done now.
#[derive(Debug)]
pub enum Action {
    /// Make this attempt, which counts as started; it could have started so long ago.
    Start(StartedAttempt, Duration),
    /// Ask the store.
    Read(StoreRead),
    /// Have the store write this.
    Write(Write),
    /// Tell operators.
    Notify(Notification),
    /// Nothing before then, or until something happens.
    Wait(Option<Tick>),
    /// Nothing ever again: it was to stop, and all that was under way is on disk.
    Finish,
}

/// What operators are told.
#[derive(Debug)]
pub enum Notification {
    /// An attempt is over.
    Attempt(AttemptReport),
    /// A webhook fails, or is paused.
    Health(Box<HealthAlert>),
    /// A webhook's URL, as it is stored, is none.
    InvalidUrl(WebhookId),
}

/// Whether attempts start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    Stopping,
}

/// A hundred thousand endpoints may wait: what is known of each is less than this, in bytes.
const _: () = assert!(size_of::<Endpoint>() <= 128 && size_of::<Backlog>() <= 152);

/// All endpoints and webhooks that have work.
#[derive(Debug)]
pub struct Scheduler {
    policies: Policies,
    mode: Mode,
    endpoints: HashMap<EndpointId, Endpoint>,
    backlogs: HashMap<WebhookId, Backlog>,
    webhooks: Webhooks,
    reads: StoreReads,
    writes: PendingWrites,
    notifications: VecDeque<Notification>,
    /// Endpoints by when they have something to do, and in the order in which they came to have it.
    heap: BinaryHeap<Reverse<(Tick, u64, EndpointId)>>,
    came: u64,
    slots: InFlightSlots,
    low: Vec<WebhookId>,
    /// What the deliveries in memory take that wait, about.
    held_bytes: usize,
    /// What those may take together with the bodies of what is under way.
    held_bytes_max: usize,
    /// So many starts on every endpoint may have left no trace, at the latest then.
    unseen: Vec<(usize, Tick)>,
}

/// What all attempts together may take.
fn most(limits: Limits, held_bytes: usize) -> Load {
    Load { attempts: limits.total, bytes: (held_bytes / 2).max(1) }
}

impl Scheduler {
    /// One that knows of nothing yet; deliveries in memory may take so many bytes.
    #[must_use]
    pub fn new(policies: Policies, held_bytes_max: usize) -> Self {
        Self {
            slots: InFlightSlots::new(most(policies.limits, held_bytes_max)),
            policies,
            mode: Mode::Running,
            endpoints: HashMap::new(),
            backlogs: HashMap::new(),
            webhooks: Webhooks::default(),
            reads: StoreReads::default(),
            writes: PendingWrites::default(),
            notifications: VecDeque::new(),
            heap: BinaryHeap::new(),
            came: 0,
            low: Vec::new(),
            held_bytes: 0,
            held_bytes_max,
            unseen: Vec::new(),
        }
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, input: Input, now: Moment) {
        match input {
            Input::StartedBefore(endpoint, started) => self.seed(endpoint, started),
            Input::KilledBefore(at) => self.suspect(self.policies.limits.per_endpoint, at),
            Input::Restored(queue) => self.restore(*queue, now),
            Input::Configured(policies) => {
                self.policies = *policies;
                self.apply_limits(now.tick);
                self.webhooks.replan(&self.policies.health, now.unix);
            }
            Input::Arrived(arrivals) => {
                arrivals.into_iter().for_each(|arrival| self.arrived(arrival, now));
            }
            Input::Missed(webhooks) => {
                webhooks.into_iter().for_each(|webhook| self.missed(webhook, now.tick));
            }
            Input::Changed(webhook) => self.load(webhook),
            Input::Attempted(result) => self.attempted(*result, now),
            Input::Read(webhook, answer) => {
                self.reads.answered();
                self.read(webhook, answer, now);
            }
            Input::Written => {
                for written in self.writes.written() {
                    self.settle(written, now);
                }
            }
            Input::NotWritten => self.writes.failed(now.tick),
            Input::Tidy => self.forget_idle(now.tick),
            Input::Stop => self.mode = Mode::Stopping,
        }
    }

    /// What is to be done now. To be asked until the answer is to wait, or to finish.
    pub fn poll(&mut self, now: Moment) -> Action {
        self.check_health(now);
        if let Some(notification) = self.notifications.pop_front() {
            return Action::Notify(notification);
        }
        let wake = match self.mode {
            Mode::Stopping => None,
            Mode::Running => loop {
                match self.next(now) {
                    Pick::Start(attempt, lag) => return Action::Start(attempt, lag),
                    Pick::Read(read) => self.reads.push(read),
                    Pick::Wait(until) => break until,
                }
            },
        };
        if let Some(read) = self.reads.next(now.tick) {
            return Action::Read(read);
        }
        if let Some(write) = self.writes.next(&self.webhooks, now.tick) {
            return Action::Write(write);
        }
        if self.mode == Mode::Stopping && self.in_flight() == 0 && !self.writes.are_with_store() {
            return Action::Finish;
        }
        let check = self.webhooks.next_check().map(|at| now.tick_at(at));
        Action::Wait(wake.into_iter().chain(check).chain(self.reads.next_at()).min())
    }
}
