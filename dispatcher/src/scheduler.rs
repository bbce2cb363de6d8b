//! Decides which attempt starts next, the consequences of results, and when to check again. (core)
//!
//! The scheduler owns all state of endpoints, webhooks and queued deliveries. It performs no I/O
//! and reads no clock: [`Scheduler::handle`] applies an event, [`Scheduler::poll`] returns the next
//! action. `worker` carries actions out and returns their results.
//!
//! An endpoint is the queue of one receiving URL, shared by all webhooks with that URL. A heap
//! orders endpoints by the time of their next work; those that are due are served round-robin.
//! Memory grows with the endpoints that have work, not with the deliveries that wait.
//!
//! # Invariants
//!
//! 1. No endpoint gets more requests within any window than its rate limit allows, across all
//!    workspaces, no webhook sends more than its owner allows, and no workspace more to one host
//!    than its limit there.
//! 2. A paused or disabled webhook starts no attempt, a probing one has at most one in flight.
//! 3. Endpoints are served in the order in which they became able to start an attempt, so no
//!    endpoint and no webhook starves. On an endpoint workspaces take turns, and so do the webhooks
//!    of a workspace.
//! 4. No delivery is in flight twice.
//! 5. Deliveries in memory, waiting or in flight, are bounded over all webhooks: the more webhooks
//!    have work, the fewer each keeps, and while memory is short, endpoints that cannot start soon
//!    keep none.
//! 6. Slow receivers cannot use every slot: endpoints whose last attempt was slow share half of
//!    them, the last quarter is for endpoints without an attempt in flight, the last eighth for
//!    endpoints that respond without delay, and a workspace has few attempts beyond the first of
//!    each webhook while other workspaces have any.
//! 7. An endpoint whose name lookup gets no reply backs off, longer each time, up to a minute.
//! 8. Once a request was sent, its slot is released only when the result is on disk: a crash leaves
//!    at most as many unrecorded starts per endpoint as may be in flight on it.
//! 9. A failed write is kept and repeated; its deliveries stay in flight. At most one write is with
//!    the store at a time, so that a webhook's state on disk never goes backwards.
//!
//! # Not here
//!
//! Sending and storing (`worker`), when a failed delivery is due (`domain::retry`).

pub mod attempts;
pub mod checks;
pub mod reads;
pub mod webhooks;
pub mod writes;

mod backlog;
mod concurrency;
mod endpoint;
mod load;
mod pace;
mod pick;
mod queues;
pub mod rate_limit;
mod ready_list;
mod responsiveness;
mod starts;
mod status;
pub mod survey;
pub mod target;
#[cfg(test)]
mod tests;
mod transition;
mod workspace_share;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use weir_common::time::{Moment, Tick};

use crate::domain::attempt::EarlierStart;
use crate::domain::delivery::Arrival;
use crate::domain::health::Policy;
use crate::domain::id::{EndpointId, WebhookId};
use crate::domain::operator_event::Recorded;
use crate::domain::retry::Schedule;
use crate::domain::webhook::Queue;
use crate::scheduler::attempts::{AttemptResult, SentRequest, StartedAttempt};
use crate::scheduler::backlog::Backlog;
use crate::scheduler::concurrency::InFlightSlots;
use crate::scheduler::endpoint::Endpoint;
use crate::scheduler::load::Load;
use crate::scheduler::pace::Paces;
use crate::scheduler::pick::Pick;
use crate::scheduler::rate_limit::{Limits, Unrecorded};
use crate::scheduler::reads::{StoreAnswer, StoreRead, StoreReads};
use crate::scheduler::webhooks::Webhooks;
use crate::scheduler::webhooks::alerts::HealthAlert;
use crate::scheduler::writes::{AttemptReport, PendingWrites, Write};

/// Bytes of deliveries in memory over all webhooks: a quarter of the memory that a dispatcher with
/// millions of waiting deliveries may use. Bodies in flight use at most half of it, waiting
/// deliveries the rest.
pub const CACHED_BYTES_ALL: usize = 64 << 20;

/// The settings that decisions depend on.
#[derive(Clone, Debug)]
pub struct Policies {
    /// Rate limit, and limits of attempts in flight.
    pub limits: Limits,
    /// The timeout of an attempt.
    pub deadline: Duration,
    /// The retry schedule.
    pub retry: Schedule,
    /// The thresholds of warnings and pauses.
    pub health: Policy,
}

/// An event for the scheduler.
#[derive(Debug)]
pub enum Input {
    /// The request of an attempt was sent before this process started, at this time.
    StartedBefore(EarlierStart, Tick),
    /// An earlier process was killed before this time: any endpoint may have as many unrecorded
    /// starts as may be in flight on it. Sent in the order of times with [`Input::StartedBefore`].
    KilledBefore(Tick),
    /// A webhook with work, read from the store at the start.
    Restored(Box<Queue>),
    /// The settings changed.
    Configured(Box<Policies>),
    /// New deliveries are on disk.
    Arrived(Vec<Arrival>),
    /// Further deliveries of these webhooks are on disk, and are not in memory.
    Missed(BTreeSet<WebhookId>),
    /// A webhook or its deliveries changed on disk.
    Changed(WebhookId),
    /// The request of an attempt in flight was sent. It may arrive after [`Input::Attempted`].
    Sent(SentRequest),
    /// An attempt ended.
    Attempted(Box<AttemptResult>),
    /// The result of an [`Action::Read`] for this webhook.
    Read(WebhookId, StoreAnswer),
    /// An [`Action::Write`] is on disk.
    Written(Recorded),
    /// An [`Action::Write`] failed.
    NotWritten,
    /// Evict idle queues, wake what a fault of this machine held up; sent about once a second.
    Tidy,
    /// Start no further attempts.
    Stop,
}

/// The worker's next action.
#[derive(Debug)]
pub enum Action {
    /// Start this attempt, which counts as started; the duration is its start lag.
    Start(StartedAttempt, Duration),
    /// Read from the store.
    Read(StoreRead),
    /// Write to the store.
    Write(Write),
    /// Report to operators.
    Notify(Notification),
    /// Wait for an event, or until this time.
    Wait(Option<Tick>),
    /// Stopped: every attempt in flight is on disk.
    Finish,
}

/// A report to operators.
#[derive(Debug)]
pub enum Notification {
    /// An attempt ended.
    Attempt(Box<AttemptReport>),
    /// A webhook is failing, was paused, or has recovered.
    Health(Box<HealthAlert>),
    /// A webhook's stored URL is invalid.
    InvalidUrl(WebhookId),
}

/// Whether attempts start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    Stopping,
}

/// A hundred thousand endpoints may wait, so their state is small.
const _: () = assert!(size_of::<Endpoint>() <= 152 && size_of::<Backlog>() <= 176);

/// All endpoints and webhooks that have work.
#[derive(Debug)]
pub struct Scheduler {
    policies: Policies,
    mode: Mode,
    endpoints: HashMap<EndpointId, Box<Endpoint>>,
    backlogs: HashMap<WebhookId, Box<Backlog>>,
    webhooks: Webhooks,
    reads: StoreReads,
    writes: PendingWrites,
    notifications: VecDeque<Notification>,
    /// Endpoints by the time of their next work, then by insertion.
    heap: BinaryHeap<Reverse<(Tick, u64, EndpointId)>>,
    sequence: u64,
    slots: InFlightSlots,
    low: Vec<WebhookId>,
    /// The approximate bytes of waiting deliveries in memory.
    cached_bytes: usize,
    /// The limit of these bytes and those of bodies in flight, together.
    cached_bytes_max: usize,
    unrecorded: Unrecorded,
    paces: Paces,
}

/// The limits of all attempts in flight together: their number, and the bytes of their bodies.
fn most(limits: Limits, cached_bytes: usize) -> Load {
    Load { attempts: limits.total, bytes: (cached_bytes / 2).max(1) }
}

impl Scheduler {
    /// An empty scheduler; `cached_bytes_max` limits the deliveries in memory.
    #[must_use]
    pub fn new(policies: Policies, cached_bytes_max: usize) -> Self {
        Self {
            slots: InFlightSlots::new(most(policies.limits, cached_bytes_max)),
            policies,
            mode: Mode::Running,
            endpoints: HashMap::new(),
            backlogs: HashMap::new(),
            webhooks: Webhooks::default(),
            reads: StoreReads::default(),
            writes: PendingWrites::default(),
            notifications: VecDeque::new(),
            heap: BinaryHeap::new(),
            sequence: 0,
            low: Vec::new(),
            cached_bytes: 0,
            cached_bytes_max,
            unrecorded: Unrecorded::default(),
            paces: Paces::default(),
        }
    }

    /// Applies an event.
    pub fn handle(&mut self, input: Input, now: Moment) {
        match input {
            Input::StartedBefore(start, sent) => self.seed(&start, sent),
            Input::KilledBefore(at) => self.seed_unrecorded(self.policies.limits.per_endpoint, at),
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
            Input::Changed(webhook) => {
                self.webhooks.outdate(webhook);
                self.load(webhook);
            }
            Input::Sent(request) => {
                self.sent(&request, now.tick);
                self.put(request.endpoint, now.tick);
            }
            Input::Attempted(result) => self.attempted(*result, now),
            Input::Read(webhook, answer) => {
                self.reads.answered();
                self.read(webhook, answer, now);
            }
            Input::Written(Recorded { arrivals, redelivered, .. }) => {
                for written in self.writes.written() {
                    self.settle(written, &redelivered, now);
                }
                self.handle(Input::Arrived(arrivals), now);
            }
            Input::NotWritten => self.writes.failed(now.tick),
            Input::Tidy => {
                self.forget_idle(now.tick);
                self.wake_at_freed_hosts(now.tick);
            }
            Input::Stop => self.mode = Mode::Stopping,
        }
    }

    /// The next action; call it until it returns `Wait` or `Finish`.
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
