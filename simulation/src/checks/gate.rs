//! Checks each attempt as its receiver sees it start, and predicts what must follow from its end.

use std::time::Duration;

use weir_common::time::{Moment, Tick, UnixTime, micros};
use weir_dispatcher::config::settings::Settings;
use weir_dispatcher::delivery::connection::AttemptRequest;
use weir_dispatcher::delivery::signature;
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::EventType;
use weir_dispatcher::domain::health::Observation;
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::outcome::{Failure, Fault, Outcome};
use weir_dispatcher::domain::retry::Mode;
use weir_tests::promises::{Attempt, Cause, End as AttemptEnd, Ending, When};

use crate::model::flight::{Flight, Landed, Sent};
use crate::model::slots::InFlightSlots;
use crate::model::{Delivery, Hook, Model, violated};

impl Model {
    /// Checks an attempt that has reached the network, and returns its delivery.
    pub(crate) fn started(
        &mut self,
        request: &AttemptRequest,
        heard: bool,
        now: Moment,
    ) -> DeliveryId {
        let url = self.urls.iter().position(|url| *url == request.url.as_str());
        let Some(url) = url else {
            violated("address", format!("an attempt goes to {}, no receiver's URL", request.url))
        };
        let id = self.whose(request, url, now);
        self.counts.starts += 1;
        let ws = self.hooks[&self.deliveries[&id].hook].ws.clone();
        self.note(now, || format!("attempt starts: {id:?} of {ws} at url {url}"));
        // It had learned of the last fault before it stood still, and the backoff has ended.
        if now.tick > self.places[url].backed_off_at {
            self.places[url].end_backoff(now.tick);
        }
        self.paced(url, heard, now.tick);
        self.started_in_pace(id, url, now.tick);
        self.promised(id, request, heard, now.tick);
        let delivery = &self.deliveries[&id];
        if delivery.state != Some(DeliveryState::Waiting) {
            violated(
                "terminal",
                format!("an attempt of {id:?} starts in state {:?}", delivery.state),
            );
        }
        if delivery.flight.is_some() {
            violated("once", format!("{id:?} has two attempts in flight"));
        }
        if now.tick < delivery.soonest && now.unix < delivery.due {
            let early = delivery.due.since(now.unix);
            violated("schedule", format!("an attempt of {id:?} starts {early:?} before it is due"));
        }
        self.opened(&self.hooks[&delivery.hook], delivery);
        self.in_order(id, now);
        self.in_turn(id, url, now);
        self.probed(id, now);
        let sent = Sent { headers: request.headers.clone(), answered: None };
        let flight = Flight { started: now, url, sent, ended: None, loose: false };
        self.deliveries.get_mut(&id).unwrap().flight = Some(flight);
        self.under_way.insert(id, url);
        self.capped(url, now.tick);
        id
    }

    /// Finds an attempt's delivery by its event's identifier and its signature.
    fn whose(&self, request: &AttemptRequest, url: usize, now: Moment) -> DeliveryId {
        let text = |name: &str| {
            request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
        };
        let (name, signature) = (text("webhook-id"), text("service-signature"));
        let holds = |secret: &str| {
            let seconds = now.unix.0 / 1_000_000;
            signature::verify(secret, signature, &request.body, seconds, 0).is_ok()
        };
        let mut events = self.names.range((name.into(), WebhookId(0))..);
        let mine = |hook: &Hook| {
            let earlier = hook.earlier.as_ref();
            let there = hook.url == url || earlier.is_some_and(|one| one.urls.contains(&url));
            let before = earlier.is_some_and(|one| one.secrets.iter().any(|one| holds(one)));
            there && (holds(&hook.secret) || before)
        };
        while let Some(((event, hook), id)) = events.next().filter(|(key, _)| *key.0 == *name) {
            if mine(&self.hooks[hook]) {
                let hook = &self.hooks[hook];
                let mut before = hook.previous.iter().filter(|(_, until, _)| now.tick < *until);
                let settled = hook.earlier.is_none() && !self.clock_set;
                if settled && before.any(|(secret, ..)| !holds(secret)) {
                    violated(
                        "rotation",
                        format!("{event} lacks the signature of an earlier secret that is valid"),
                    );
                }
                return *id;
            }
        }
        self.judge(self.promises.arrives(&name.into()));
        violated("kept", format!("no delivery of `{name}` matches url {url} and the signature"))
    }

    /// Checks that no window has more starts than the pace allows.
    fn paced(&mut self, url: usize, heard: bool, now: Tick) {
        let window = self.settings.egress.window;
        let most = self.decided_by().map(|settings| settings.egress.requests).max().unwrap();
        let recent = |at: &Tick| now.since(*at) < window;
        let hidden = recent(&self.repaced_at) && self.doubts.iter().any(|(at, _)| recent(at));
        let most = if hidden { usize::MAX } else { most as usize };
        let start = When::exactly(now.0);
        let judged = self.starts[url].started(start, heard, micros(window), most);
        self.judge(judged);
    }

    /// Checks what an outsider can check of a start: its body, and that it may come now.
    fn promised(&mut self, id: DeliveryId, request: &AttemptRequest, heard: bool, now: Tick) {
        let delivery = &self.deliveries[&id];
        let pair = delivery.pair();
        let same = self.bodies.is(&delivery.event, &request.body);
        self.judge(same);
        self.counts.duplicates += u64::from(self.promises.is_settled(&pair));
        if heard {
            let attempt =
                Attempt { start: When::exactly(now.0), reused: !request.fresh_connection };
            let judged = self.promises.started(pair, attempt);
            self.judge(judged);
        }
    }

    /// Reports how an attempt ended, as its endpoint saw it. After a failure the next one waits for
    /// a delay, unless it may be decided otherwise (`loose`).
    fn promises_end(&mut self, id: DeliveryId, outcome: &Outcome, loose: bool, at: Tick) {
        let first_delay = |settings: &Settings| match settings.retry.mode {
            Mode::Delay if !loose => micros(settings.retry.delays[0]),
            Mode::Delay | Mode::Offset => 0,
        };
        let delay = self.decided_by().map(first_delay).min().unwrap();
        let (ending, cause) = match outcome {
            Outcome::Delivered { .. } => (Ending::Taken, None),
            Outcome::Internal(Fault::Resources | Fault::Resolver) => return,
            // It is sent again at once; on any connection, if it is read from disk for that.
            Outcome::Internal(Fault::StaleConnection) => (Ending::Closed { delay: 0 }, None),
            Outcome::Internal(_) => (Ending::Failed { delay }, Some(Cause::Frozen)),
            Outcome::Failed(_) => (Ending::Failed { delay }, None),
        };
        let end = AttemptEnd { ending, at: at.0, cause, recorded: u64::MAX };
        self.promises.ended(self.deliveries[&id].pair(), end);
    }

    fn opened(&self, hook: &Hook, delivery: &Delivery) {
        let id = delivery.id;
        if hook.earlier.is_none() && hook.deleted {
            violated("deleted", format!("an attempt of {id:?} starts for a deleted webhook"));
        }
        if hook.earlier.is_none() && hook.disabled {
            violated("disabled", format!("an attempt of {id:?} starts for a disabled webhook"));
        }
        if hook.earlier.is_none() && (hook.paused_at.is_some() || hook.reordering) {
            violated(
                "paused",
                format!("an attempt of {id:?} starts, {:?} is paused or not reordered", hook.id),
            );
        }
    }

    /// Checks a reactivated webhook: a probe alone until it is delivered, then all in order.
    fn probed(&mut self, id: DeliveryId, now: Moment) {
        let delivery = &self.deliveries[&id];
        let (key, hook_id) = ((delivery.created_at, id), delivery.hook);
        let again = delivery.drained;
        let redelivered = delivery.redelivered;
        let probes = self.hooks[&hook_id].probes;
        let others = self.waiting(hook_id).filter(|other| other.id != id);
        let (mut busy, mut oldest) = (0, true);
        for other in others.take_while(|_| probes) {
            busy += usize::from(other.flight.is_some());
            // The worker may learn later of one that was stored at this moment.
            let unheard = other.put_off > Tick(0) || other.came == now.tick;
            oldest &= (other.due, other.id) > (delivery.due, id) || unheard;
        }
        let settled = !self.clock_set && self.hooks[&hook_id].earlier.is_none();
        let hook = self.hooks.get_mut(&hook_id).unwrap();
        if hook.probes {
            let is_probe = hook.probe.map_or(oldest, |probe| probe == id);
            if busy > 0 || (!is_probe && settled) {
                violated(
                    "probe",
                    format!("an attempt of {id:?} starts, expected only the probe of {hook_id:?}"),
                );
            }
            hook.probe_is_recorded &= hook.probe.replace(id) == Some(id);
        } else if hook.drains_since.is_some_and(|since| delivery.created_at < since)
            && again != hook.drains_since
            && !redelivered
            && settled
        {
            if hook.drained_to.is_some_and(|to| key < to) {
                violated(
                    "order",
                    format!("an attempt of {id:?} starts after that of a later delivery"),
                );
            }
            hook.drained_to = Some(key);
        }
        self.deliveries.get_mut(&id).unwrap().drained = hook.drains_since;
    }

    /// Deliveries of a webhook that wait or are in flight.
    pub(crate) fn waiting(&self, hook: WebhookId) -> impl Iterator<Item = &Delivery> {
        let range = (hook, DeliveryId(0))..=(hook, DeliveryId(i64::MAX));
        let all = self.open.range(range).map(|(_, id)| &self.deliveries[id]);
        all.filter(move |one| one.state == Some(DeliveryState::Waiting))
    }

    fn capped(&mut self, url: usize, now: Tick) {
        self.forgotten(url, now);
        let (here, all) = (self.in_flight(Some(url)), self.in_flight(None));
        let over = |settings: &Settings| {
            let egress = &settings.egress;
            here > egress.in_flight_per_endpoint() || all > egress.in_flight_max
        };
        if self.decided_by().all(over) {
            violated(
                "caps",
                format!("{here} in-flight slots used at url {url}, {all} in total, above a limit"),
            );
        }
        // The worker may learn of the ends of one moment in any order.
        let InFlightSlots { most, used, .. } = self.places[url];
        if here > most.saturating_mul(2) && self.turns.knows(used) {
            violated(
                "caps",
                format!("{here} in-flight slots used at url {url}, expected at most twice {most}"),
            );
        }
    }

    /// Records the end of an attempt. After a fault of ours, nothing follows.
    pub(crate) fn ended(
        &mut self,
        id: DeliveryId,
        outcome: &Outcome,
        retry_after: Option<u64>,
        at: Moment,
    ) {
        self.note(at, || format!("attempt ends: {id:?}, {outcome}"));
        self.lately.end(id, at.tick);
        let loose = self.is_loose(id, at);
        let reordering = self.hooks[&self.deliveries[&id].hook].reordering;
        self.promises_end(id, outcome, loose || reordering, at.tick);
        let delivery = self.deliveries.get_mut(&id).unwrap();
        let Some(flight) = &delivery.flight else { return };
        let started = flight.started;
        let hook = self.hooks.get_mut(&delivery.hook).unwrap();
        if let Outcome::Internal(_) = outcome {
            delivery.put_off = at.tick.plus(Duration::from_secs(1));
            let url = flight.url;
            delivery.flight = None;
            self.lately.forget(|start| start.delivery == id && start.at == started.tick);
            self.under_way.remove(&id);
            let deleted = hook.deleted;
            self.freed(url, outcome, at.tick.since(started.tick), at.tick);
            if deleted {
                self.drop_gone(id);
            }
            return;
        }
        let end = End { started, outcome, retry_after, at };
        let landed = follows(&self.settings, delivery, hook, &end);
        let sign = match (outcome, delivery.kind) {
            (Outcome::Delivered { .. }, EventType::PING) => Some(Observation::PingSucceeded),
            (Outcome::Delivered { .. }, _) => Some(Observation::Succeeded),
            (_, EventType::PING) => None,
            _ => Some(Observation::Failed),
        };
        let flight = delivery.flight.as_mut().unwrap();
        // Another URL's outcome says nothing about the present one.
        if let Some(sign) = sign.filter(|_| flight.url == hook.url) {
            hook.record.add(sign, id, at.unix);
        }
        flight.loose = loose;
        flight.ended = Some(landed);
        let url = flight.url;
        if hook.deleted {
            // Nothing more is written of it.
            self.freed(url, outcome, at.tick.since(started.tick), at.tick);
            self.drop_gone(id);
        }
    }

    /// Whether what follows from the end of an attempt cannot be predicted.
    fn is_loose(&self, id: DeliveryId, at: Moment) -> bool {
        let delivery = &self.deliveries[&id];
        let hook = &self.hooks[&delivery.hook];
        let pauses = |settings: &Settings| {
            hook.record.pauses_at(&settings.health).is_some_and(|pause| pause <= at.unix)
        };
        delivery.flight.as_ref().is_some_and(|flight| flight.loose)
            || hook.paused_at.is_some()
            || hook.earlier.is_some()
            || self.decided_by().any(pauses)
    }

    /// Records that the process stood still: it may have learned of an earlier fault only now.
    pub(crate) fn stood_still(&mut self, since: Moment, now: Moment) {
        self.stood = Some((since.unix, now.unix));
        let by = now.tick.since(since.tick);
        for places in self.places.iter_mut().filter(|one| one.backed_off_at == since.tick) {
            places.backs_off_until = places.backs_off_until.plus(by);
        }
        for one in self.deliveries.values_mut().filter(|one| one.put_off > since.tick) {
            one.put_off = one.put_off.plus(by);
        }
    }

    pub(crate) fn quarter(&self) -> usize {
        (self.settings.egress.in_flight_per_endpoint() / 4).max(1)
    }

    /// An endpoint that the worker may have evicted starts again with a quarter of the slots.
    pub(crate) fn forgotten(&mut self, url: usize, now: Tick) {
        let quarter = self.quarter();
        let places = &mut self.places[url];
        if now.since(places.used) >= Duration::from_secs(40) {
            places.room = places.room.min(quarter);
            places.most = places.most.max(quarter);
            places.answers = false;
        }
    }

    /// Releases an attempt's slot. How many slots there then are depends on how it ended, and on
    /// how long it took.
    pub(crate) fn freed(&mut self, url: usize, outcome: &Outcome, took: Duration, now: Tick) {
        self.forgotten(url, now);
        let egress = &self.settings.egress;
        let (most, slow) = (egress.in_flight_per_endpoint(), took > egress.deadline / 4);
        let places = &mut self.places[url];
        if let Outcome::Internal(Fault::Resolver) = outcome {
            // It is not about the receiver. Its attempts back off for a while.
            if now >= places.backs_off_until {
                let wait = [1, 2, 4, 8, 16, 32, 60][places.backoffs.min(6)];
                places.backed_off_at = now;
                places.backs_off_until = now.plus(Duration::from_secs(wait));
                places.backoffs += 1;
            }
            return;
        }
        places.backoffs = 0;
        places.answers = !slow && !matches!(outcome, Outcome::Failed(Failure::Timeout));
        let then = |room: usize| match outcome {
            Outcome::Failed(Failure::Timeout) => (room / 2).max(1),
            _ => room.saturating_mul(2).clamp(1, most),
        };
        // Of several ends at one instant the worker may learn in any order: the fewest slots.
        let room = then(places.room);
        places.room = if places.used == now { room.min(places.room) } else { room };
        places.most = then(places.most);
        places.used = now;
    }
}

/// How an attempt ended.
struct End<'a> {
    started: Moment,
    outcome: &'a Outcome,
    retry_after: Option<u64>,
    at: Moment,
}

/// What must follow from an attempt: the contract's schedule, implemented a second time.
fn follows(settings: &Settings, delivery: &Delivery, hook: &Hook, end: &End<'_>) -> Landed {
    let End { started, outcome, retry_after, at } = *end;
    let landed = |state, due| Landed { at, outcome: outcome.clone(), state, due };
    if let Outcome::Delivered { .. } = outcome {
        return landed(DeliveryState::Delivered, UnixTime(0));
    }
    let before = if delivery.first.is_some() { delivery.paused_before } else { hook.paused_total };
    let paused = hook.paused_total.saturating_sub(before);
    let first = delivery.first.unwrap_or(started.unix);
    let deadline = first.plus(settings.retry.give_up_after).plus(paused);
    if delivery.kind == EventType::PING || at.unix >= deadline {
        return landed(DeliveryState::FailedPermanent, UnixTime(0));
    }
    let delays = &settings.retry.delays;
    let since = delivery.since.unwrap_or(started.unix).min(at.unix);
    let listed = match settings.retry.mode {
        Mode::Delay => at.unix.plus(delays[delivery.step.min(delays.len() - 1)]),
        Mode::Offset => {
            let mut offsets = delays.iter().map(|offset| since.plus(*offset));
            offsets.find(|then| *then > at.unix).unwrap_or(deadline)
        }
    };
    let asked = Duration::from_secs(retry_after.unwrap_or(0)).min(settings.retry.retry_after_max);
    let asked = at.unix.plus(asked);
    landed(DeliveryState::Waiting, listed.max(asked).min(deadline))
}
