//! The attempts between the process and its receivers: which are in flight, when each will end,
//! and how.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use tokio::sync::oneshot;
use weir_common::time::{Moment, Tick};
use weir_dispatcher::delivery::transport::Answer;
use weir_dispatcher::domain::id::DeliveryId;
use weir_dispatcher::domain::outcome::{Failure, Fault, Outcome};

use crate::receivers::Reaction;
use crate::world::World;

/// A deadline that is noticed so much too late was missed because the process stood still.
const STALL: Duration = Duration::from_secs(1);

/// How long the process then waits for an answer that may have arrived.
const GRACE: Duration = Duration::from_millis(500);

/// An attempt in flight. After a crash it continues at its receiver.
struct Pending {
    process: u64,
    delivery: DeliveryId,
    reaction: Reaction,
    answer: oneshot::Sender<Result<Answer, Outcome>>,
    called: Tick,
    deadline: Duration,
    /// Whether [`GRACE`] runs: the process stood still past the deadline.
    grace: bool,
}

/// All attempts in flight, and when each is next checked.
#[derive(Default)]
pub(crate) struct Wire {
    ends: BinaryHeap<Reverse<(Tick, u64)>>,
    pending: BTreeMap<u64, Pending>,
    numbers: u64,
}

impl Wire {
    /// When the next attempt ends.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.ends.peek().map(|Reverse((at, _))| *at)
    }

    fn add(&mut self, pending: Pending, at: Tick) {
        self.numbers += 1;
        self.ends.push(Reverse((at, self.numbers)));
        self.pending.insert(self.numbers, pending);
    }

    fn take(&mut self, now: Tick) -> Option<Pending> {
        let Reverse((at, number)) = *self.ends.peek()?;
        if at > now {
            return None;
        }
        self.ends.pop();
        self.pending.remove(&number)
    }
}

impl World {
    /// Takes the attempts that have reached the network, and schedules their ends.
    pub(crate) fn take_calls(&mut self, now: Moment) -> bool {
        let calls = std::mem::take(&mut *self.machine.calls.lock().unwrap());
        let any = !calls.is_empty();
        for call in calls {
            let receiver = self.receivers.iter().find(|one| one.url == call.request.url.as_str());
            let deadline = self.model.settings.egress.deadline;
            let reaction = receiver.unwrap().react(&call.request, deadline, &mut self.rng);
            let unheard = Outcome::Internal(Fault::Resolver);
            let heard = ![Outcome::Internal(Fault::Resources), unheard].contains(&reaction.outcome);
            let delivery = self.model.started(&call.request, heard, now);
            let at = now.tick.plus(reaction.after.min(deadline));
            let (process, called) = (self.processes, now.tick);
            let answer = call.answer;
            let grace = false;
            let pending = Pending { process, delivery, reaction, answer, called, deadline, grace };
            self.wire.add(pending, at);
        }
        any
    }

    /// Ends the attempts that are due to end.
    pub(crate) fn end_attempts(&mut self) {
        let now = self.now();
        while let Some(pending) = self.wire.take(now.tick) {
            let since = now.tick.since(pending.called);
            let Pending { deadline, .. } = pending;
            let Reaction { after, ref outcome, retry_after, .. } = pending.reaction;
            if pending.process != self.processes || self.process.is_none() {
                // The caller is gone. Its receiver may have accepted the event all the same.
                let taken = after <= deadline && matches!(outcome, Outcome::Delivered { .. });
                if taken {
                    let pair = self.model.deliveries[&pending.delivery].pair();
                    self.model.promises.taken(pair, now.tick.0);
                }
            } else if after <= since {
                let status = outcome.status();
                let believed = status.is_some_and(|status| (400..600).contains(&status));
                let retry_after = retry_after.filter(|_| believed);
                let answer = pending.reaction.answer();
                let flight = self.model.deliveries.get_mut(&pending.delivery);
                if let Some(flight) = flight.and_then(|one| one.flight.as_mut()) {
                    flight.sent.answered = status.map(|_| pending.reaction.body.clone());
                }
                self.model.ended(pending.delivery, outcome, retry_after, now);
                let _ = pending.answer.send(answer);
            } else if since < deadline + STALL {
                // The caller's own timer ends the attempt.
                let outcome = Outcome::Failed(Failure::Timeout);
                self.model.ended(pending.delivery, &outcome, None, now);
            } else if pending.grace {
                let outcome = Outcome::Internal(Fault::Stalled);
                self.model.ended(pending.delivery, &outcome, None, now);
            } else {
                let at = now.tick.plus(GRACE.min(after - since));
                self.wire.add(Pending { grace: true, ..pending }, at);
            }
        }
    }
}
