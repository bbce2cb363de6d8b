//! Decides which delivery starts next, and when to look again.
//!
//! A lane is the queue towards one receiving endpoint; the webhooks registered for it take turns
//! on it. A heap orders the lanes that have something to do by when they may; those that may now
//! take turns. Nothing here grows with the deliveries that wait, only with the lanes that have
//! work (DESIGN invariant 13).
//!
//! # Invariants
//!
//! 1. On no lane do more attempts start within any stretch of the window than the pace allows,
//!    whoever registered its webhooks (DESIGN invariant 9).
//! 2. A webhook that is paused starts none, one that probes one at a time (invariant 10).
//! 3. What can start does, in the order in which it could: no lane and no webhook starves.
//! 4. No delivery is under way twice.
//! 5. What is in memory of deliveries that wait is bounded over all webhooks together
//!    (invariant 13): the more have work the less each may hold, and where that is not enough,
//!    those that have time hold nothing.
//! 6. Receivers that keep attempts until their deadline cannot take all places: those that did so
//!    last time share half of them, the last quarter is for lanes that have nothing under way, and
//!    the last eighth for lanes whose receivers have answered.
//!
//! # Not here
//!
//! How deliveries are sent and what follows (`worker`), when a failed one is due (`schedule`).

mod line;
mod places;
mod queue;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use weir_common::decision::Decision;
use weir_common::rolling::{Log, Quota};
use weir_common::time::{Moment, Tick};

use self::places::{Aside, Places, Refused};
pub use self::queue::Gate;
use self::queue::{Queue, Room, Turn};
use crate::model::{DeliveryId, LaneId, Ready, WebhookId};
use crate::outcome::{Failure, Outcome};
use crate::store::Fetched;

/// A queue without work is forgotten after this: a webhook with traffic is not read anew each time.
const IDLE: Duration = Duration::from_secs(120);

/// Deliveries in memory that all webhooks share, in bytes: a quarter of what a dispatcher with
/// millions waiting may take (DESIGN §5).
const HELD_BYTES_ALL: usize = 64 << 20;

/// Who cannot start anything for so long can be read from the store again: it is asked a question
/// a start, where otherwise one question tells of many.
const FAR: Duration = Duration::from_secs(1);

/// So few places that are out of date are not worth tidying up.
const HEAP_MIN: usize = 64;

/// How fast deliveries may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Attempts that may start on one lane within a window.
    pub quota: Quota,
    /// Attempts under way on one lane.
    pub per_lane: usize,
    /// Attempts under way, all together.
    pub total: usize,
}

/// What is to be done now.
#[derive(Debug)]
pub enum Step {
    /// Start this delivery: it counts as started.
    Start {
        /// For whom.
        webhook: WebhookId,
        /// On which lane.
        lane: LaneId,
        /// What.
        ready: Ready,
        /// How long it could have started already.
        lag: Duration,
    },
    /// Ask the store what waits for this webhook.
    Fetch {
        /// For whom.
        webhook: WebhookId,
        /// For so many.
        limit: usize,
        /// Not for these, which are under way.
        but: Vec<DeliveryId>,
        /// To be handed back with the answer.
        round: u64,
    },
    /// Ask the store for this delivery, which probes.
    FetchOne {
        /// For whom.
        webhook: WebhookId,
        /// What.
        delivery: DeliveryId,
        /// To be handed back with the answer.
        round: u64,
    },
    /// Nothing before then, or until something happens.
    Wait(Option<Tick>),
}

/// How an attempt ended, as far as its lane is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The receiver answered, or said that it would not.
    Yes,
    /// It kept the connection until the deadline.
    No,
}

impl Answered {
    /// As the outcome has it.
    #[must_use]
    pub fn by(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Failed(Failure::Timeout) => Self::No,
            _ => Self::Yes,
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    starts: Log,
    in_flight: usize,
    /// Attempts that may be under way: all, or fewer while the receiver lets them time out.
    room: usize,
    /// How the last attempt ended, as far as that is known.
    last: Option<Answered>,
    /// The webhooks on it; the first one's turn is next.
    turns: VecDeque<WebhookId>,
    /// Its place in the heap: others there are out of date.
    due: Option<(Tick, u64)>,
    /// Where it waits for places to be free again that are for others now.
    aside: Aside,
}

/// A hundred thousand endpoints may wait: what is known of each is less than this, in bytes.
const _: () = assert!(size_of::<Lane>() <= 128 && size_of::<Queue>() <= 176);

/// All lanes that have work.
#[derive(Debug)]
pub struct Lanes {
    pace: Pace,
    lanes: HashMap<LaneId, Lane>,
    queues: HashMap<WebhookId, Queue>,
    /// Lanes by when they have something to do, and in the order in which they came to have it.
    heap: BinaryHeap<Reverse<(Tick, u64, LaneId)>>,
    came: u64,
    places: Places,
    low: Vec<WebhookId>,
    /// What the deliveries in memory take, about.
    held_bytes: usize,
    /// So many starts on every lane may have left no trace, at the latest then.
    unseen: Vec<(usize, Tick)>,
}

impl Lanes {
    /// None yet.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            lanes: HashMap::new(),
            queues: HashMap::new(),
            heap: BinaryHeap::new(),
            came: 0,
            places: Places::new(pace.total),
            low: Vec::new(),
            held_bytes: 0,
            unseen: Vec::new(),
        }
    }

    /// Goes on at another pace.
    pub fn set_pace(&mut self, pace: Pace, now: Tick) {
        self.pace = pace;
        self.places.set_total(pace.total);
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in lanes {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.room = pace.per_lane;
                lane.starts.fit(pace.quota, now);
            }
            self.put(id, now);
        }
    }

    /// Counts an attempt that started before this process did.
    pub fn seed(&mut self, lane: LaneId, started: Tick) {
        let quota = self.pace.quota;
        let _ = self.lane(lane).starts.charge(quota, 1, started);
    }

    /// Counts, on every lane, attempts that may have started before `at`, before this process did,
    /// and left no trace: which webhooks led where by then is not known any more. To be told last,
    /// and of the oldest first.
    pub fn suspect(&mut self, count: usize, at: Tick) {
        self.unseen.push((count, at));
        for lane in self.lanes.values_mut() {
            lane.starts = suspicious(std::mem::take(&mut lane.starts), self.pace.quota, count, at);
        }
    }

    /// Whether the webhook's queue is known here.
    #[must_use]
    pub fn knows(&self, webhook: WebhookId) -> bool {
        self.queues.contains_key(&webhook)
    }

    /// Takes a webhook's queue in; the first that waits for it was due then when it was read. One
    /// that is known begins anew, and the store is asked again: what has come since is in neither.
    pub fn open(
        &mut self,
        webhook: WebhookId,
        lane: LaneId,
        gate: Gate,
        due: Option<Tick>,
        now: Tick,
    ) {
        match self.queues.get_mut(&webhook) {
            Some(queue) => {
                let before = queue.lane;
                self.held_bytes -= queue.weight();
                queue.forget(lane, gate, now);
                if before != lane {
                    self.lane(before).turns.retain(|one| *one != webhook);
                }
            }
            None => drop(self.queues.insert(webhook, Queue::new(lane, gate, due, now))),
        }
        let turns = &mut self.lane(lane).turns;
        if !turns.contains(&webhook) {
            turns.push_back(webhook);
        }
        self.put(lane, now);
    }

    /// Lets a webhook's queue go. What is under way still counts on its lane until it ends.
    pub fn close(&mut self, webhook: WebhookId, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let lane = queue.lane;
        self.held_bytes -= queue.weight();
        queue.forget(lane, Gate::Closed, now);
        queue.gone = true;
        self.drop_gone(webhook);
    }

    fn drop_gone(&mut self, webhook: WebhookId) {
        let gone = |queue: &&Queue| queue.gone && queue.in_flight.is_empty();
        let Some(lane) = self.queues.get(&webhook).filter(gone).map(|queue| queue.lane) else {
            return;
        };
        self.remove(webhook);
        self.lane(lane).turns.retain(|one| *one != webhook);
    }

    fn remove(&mut self, webhook: WebhookId) {
        let gone = self.queues.remove(&webhook);
        self.held_bytes -= gone.map_or(0, |queue| queue.weight());
    }

    /// Notes how the last attempt on a webhook's lane ended, where that is not known here.
    pub fn remember(&mut self, webhook: WebhookId, answered: Answered) {
        let Some(lane) = self.queues.get(&webhook).map(|queue| queue.lane) else { return };
        let Some(lane) = self.lanes.get_mut(&lane).filter(|lane| lane.last.is_none()) else {
            return;
        };
        let was = (lane.last, lane.in_flight);
        lane.last = Some(answered);
        self.places.changed(was, (lane.last, lane.in_flight));
    }

    /// Opens or shuts a webhook's gate.
    pub fn set_gate(&mut self, webhook: WebhookId, gate: Gate, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        queue.gate = gate;
        let lane = queue.lane;
        self.put(lane, now);
    }

    /// Where a webhook's gate stands.
    #[must_use]
    pub fn gate(&self, webhook: WebhookId) -> Option<Gate> {
        self.queues.get(&webhook).map(|queue| queue.gate)
    }

    /// Takes in a delivery that is on disk and waits, for a webhook that is known.
    pub fn arrived(&mut self, webhook: WebhookId, ready: Ready, now: Moment) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let before = queue.weight();
        queue.arrived(ready, room, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let lane = queue.lane;
        self.put(lane, now.tick);
    }

    /// Forgets what is in memory of what waits for a webhook: there is more on disk than was told.
    pub fn reread(&mut self, webhook: WebhookId, now: Tick) {
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| !queue.gone) else { return };
        self.held_bytes -= queue.weight();
        let (lane, gate) = (queue.lane, queue.gate);
        queue.forget(lane, gate, now);
        self.put(lane, now);
    }

    /// Takes in the store's answer to [`Step::Fetch`].
    pub fn fetched(&mut self, webhook: WebhookId, round: u64, fetched: Fetched, now: Moment) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| queue.round == round) else {
            return;
        };
        let before = queue.weight();
        queue.answered(fetched, room, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let lane = queue.lane;
        self.put(lane, now.tick);
    }

    /// Takes in the store's answer to [`Step::FetchOne`].
    pub fn fetched_one(
        &mut self,
        webhook: WebhookId,
        round: u64,
        ready: Option<Ready>,
        now: Moment,
    ) {
        let Some(queue) = self.queues.get_mut(&webhook).filter(|queue| queue.round == round) else {
            return;
        };
        let before = queue.weight();
        queue.answered_one(ready, now);
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let lane = queue.lane;
        self.put(lane, now.tick);
    }

    /// Ends an attempt whose outcome is on disk. `again` is the delivery, where it waits again.
    pub fn recorded(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        again: Option<Ready>,
        answered: Answered,
        now: Moment,
    ) {
        let room = self.room();
        let Some(queue) = self.queues.get_mut(&webhook) else { return };
        let Some(counted_on) = queue.ended(delivery, now.tick) else { return };
        let before = queue.weight();
        match again {
            Some(ready) => queue.add(ready, room, now),
            None if queue.gate == Gate::Probe(Some(delivery)) => queue.gate = Gate::Probe(None),
            None => {}
        }
        self.held_bytes = self.held_bytes + queue.weight() - before;
        let lane_now = queue.lane;
        let most = self.pace.per_lane;
        let lane = self.lane(counted_on);
        let was = (lane.last, lane.in_flight);
        lane.in_flight -= 1;
        lane.last = Some(answered);
        lane.room = match answered {
            Answered::Yes => (lane.room * 2).clamp(1, most),
            Answered::No => (lane.room / 2).max(1),
        };
        let now_is = (lane.last, lane.in_flight);
        self.places.changed(was, now_is);
        self.drop_gone(webhook);
        self.put(counted_on, now.tick);
        if lane_now != counted_on {
            self.put(lane_now, now.tick);
        }
    }

    /// What is to be done now. To be asked until the answer is to wait.
    pub fn next(&mut self, now: Moment) -> Step {
        let room = self.room();
        while let Some(webhook) = self.low.pop() {
            let queue = self.queues.get_mut(&webhook).filter(|queue| queue.runs_low(room));
            if let Some(queue) = queue {
                let but = queue.ask();
                return Step::Fetch { webhook, limit: room.count, but, round: queue.round };
            }
        }
        loop {
            while let Some(&Reverse((due, came, id))) = self.heap.peek() {
                let lane = self.lanes.get(&id);
                if lane.is_none_or(|lane| lane.due != Some((due, came))) {
                    self.heap.pop();
                    continue;
                }
                if due > now.tick {
                    break;
                }
                if self.places.are_taken() {
                    return Step::Wait(None);
                }
                self.heap.pop();
                if let Some(step) = self.serve(id, due, now.tick, None) {
                    return step;
                }
            }
            let Some((id, why)) = self.places.call_back() else {
                return Step::Wait(self.heap.peek().map(|Reverse((due, ..))| *due));
            };
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.aside.over(why);
                if let Some(step) = self.serve(id, now.tick, now.tick, Some(why)) {
                    return step;
                }
            }
        }
    }

    /// Lets a lane do one thing, and puts it where it has something to do next. One that waited for
    /// a place is called back to that.
    fn serve(
        &mut self,
        id: LaneId,
        due: Tick,
        now: Tick,
        called_back: Option<Refused>,
    ) -> Option<Step> {
        let quota = self.pace.quota;
        let room = self.room();
        let lane = self.lanes.get_mut(&id)?;
        lane.due = None;
        // It has something under way, and is looked at when that ends.
        if lane.in_flight >= lane.room {
            return None;
        }
        if let Some(why) = self.places.refused(lane.last, lane.in_flight, called_back) {
            // What others have under way may end sooner.
            self.places.leave_out(id, why, &mut lane.aside);
            return None;
        }
        let free_at = match lane.starts.decide(quota, 1, now) {
            Decision::Admit | Decision::TooLarge => now,
            Decision::Refuse { retry_at } => retry_at,
        };
        let mut later: Option<Tick> = None;
        for _ in 0..lane.turns.len() {
            let Some(webhook) = lane.turns.front().copied() else { break };
            lane.turns.rotate_left(1);
            let Some(queue) = self.queues.get_mut(&webhook) else { continue };
            match queue.turn(now) {
                Turn::Start if free_at > now => later = sooner(later, free_at),
                Turn::Start => {
                    let before = queue.weight();
                    let Some(ready) = queue.take(now) else { continue };
                    self.held_bytes = self.held_bytes + queue.weight() - before;
                    let _ = lane.starts.charge(quota, 1, now);
                    let was = (lane.last, lane.in_flight);
                    lane.in_flight += 1;
                    self.places.changed(was, (lane.last, lane.in_flight));
                    if queue.runs_low(room) {
                        self.low.push(webhook);
                    }
                    self.put(id, now);
                    let lag = now.since(due);
                    return Some(Step::Start { webhook, lane: id, ready, lag });
                }
                // What cannot start for long is not read yet.
                Turn::Fetch if free_at.since(now) >= FAR => later = sooner(later, free_at),
                Turn::Fetch => {
                    let (but, round) = (queue.ask(), queue.round);
                    self.put(id, now);
                    return Some(Step::Fetch { webhook, limit: room.count, but, round });
                }
                Turn::FetchOne(delivery) => {
                    let (_, round) = (queue.ask(), queue.round);
                    self.put(id, now);
                    return Some(Step::FetchOne { webhook, delivery, round });
                }
                Turn::At(at) => later = sooner(later, at),
                Turn::Rest => {}
            }
        }
        if let Some(at) = later {
            self.shed(id, at.since(now));
            self.put(id, at);
        }
        None
    }

    /// How much each webhook may have in memory.
    fn room(&self) -> Room {
        Room::share(HELD_BYTES_ALL, self.queues.len(), self.pace.quota)
    }

    /// Lets what a lane holds go that has nothing to do for so long, where all hold too much.
    fn shed(&mut self, id: LaneId, rest: Duration) {
        if rest < FAR || self.held_bytes <= HELD_BYTES_ALL / 2 {
            return;
        }
        let Some(lane) = self.lanes.get(&id) else { return };
        for webhook in &lane.turns {
            let Some(queue) = self.queues.get_mut(webhook) else { continue };
            let before = queue.weight();
            queue.shed();
            self.held_bytes = self.held_bytes + queue.weight() - before;
        }
    }

    /// What is known of a delivery that waits: whether it is under way, and until when its lane
    /// or a failed probe holds it back.
    #[must_use]
    pub fn standing(
        &self,
        webhook: WebhookId,
        delivery: DeliveryId,
        now: Tick,
    ) -> (bool, Option<Tick>) {
        let Some(queue) = self.queues.get(&webhook) else { return (false, None) };
        let lane = self.lanes.get(&queue.lane);
        let paced = lane.map(|lane| lane.starts.decide(self.pace.quota, 1, now));
        let paced = match paced {
            Some(Decision::Refuse { retry_at }) => Some(retry_at),
            _ => None,
        };
        (queue.in_flight.contains_key(&delivery), paced.max(queue.probe_at()))
    }

    /// How long the first lane that may do something has waited for it.
    #[must_use]
    pub fn past_due(&self, now: Tick) -> Duration {
        let due = self.lanes.values().filter_map(|lane| lane.due).map(|(due, _)| due).min();
        due.map_or(Duration::ZERO, |due| now.since(due))
    }

    /// Attempts under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.places.taken()
    }

    /// Lanes that are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Deliveries in memory that wait, and places in the heap.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.queues.values().map(Queue::held).sum::<usize>() + self.heap.len()
    }

    /// Forgets queues and lanes that have had nothing to do for a while.
    pub fn forget_idle(&mut self, now: Tick) {
        let idle = |queue: &Queue| queue.is_idle() && now.since(queue.used) >= IDLE;
        let gone: Vec<(WebhookId, LaneId)> = self
            .queues
            .iter()
            .filter(|(_, queue)| idle(queue))
            .map(|(id, queue)| (*id, queue.lane))
            .collect();
        for (webhook, lane) in &gone {
            self.remove(*webhook);
            self.lane(*lane).turns.retain(|one| one != webhook);
        }
        let quota = self.pace.quota;
        self.unseen.retain(|(_, at)| now.since(*at) < quota.window);
        self.lanes.retain(|_, lane| {
            !lane.turns.is_empty() || lane.in_flight > 0 || lane.starts.full_at(quota) > now
        });
    }

    fn lane(&mut self, id: LaneId) -> &mut Lane {
        // Whoever has not answered yet is tried by few: thousands of black holes would take every
        // place before the first of them times out.
        let room = (self.pace.per_lane / 4).max(1);
        let (quota, unseen) = (self.pace.quota, &self.unseen);
        self.lanes.entry(id).or_insert_with(|| {
            let starts = unseen
                .iter()
                .fold(Log::default(), |starts, (count, at)| suspicious(starts, quota, *count, *at));
            Lane { room, starts, ..Lane::default() }
        })
    }

    /// Puts a lane into the heap, unless it has a place further up.
    fn put(&mut self, id: LaneId, at: Tick) {
        let came = self.came;
        let lane = self.lane(id);
        if lane.due.is_none_or(|(due, _)| at < due) {
            lane.due = Some((at, came));
            self.came += 1;
            self.heap.push(Reverse((at, came, id)));
        }
        // A place that is out of date would stay until its time, be it a day away.
        if self.heap.len() > 2 * self.lanes.len() + HEAP_MIN {
            let lanes = &self.lanes;
            self.heap.retain(|Reverse((at, came, id))| {
                lanes.get(id).is_some_and(|lane| lane.due == Some((*at, *came)))
            });
        }
    }
}

/// The log with so many more starts, as far as they change anything.
fn suspicious(mut starts: Log, quota: Quota, count: usize, at: Tick) -> Log {
    for _ in 0..count {
        let _ = starts.charge(quota, 1, at);
    }
    starts
}

fn sooner(one: Option<Tick>, other: Tick) -> Option<Tick> {
    Some(one.map_or(other, |one| one.min(other)))
}
