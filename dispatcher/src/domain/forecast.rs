//! Forecasts what becomes of a webhook whose receiver stays down. (core)
//!
//! It plays the deliveries that wait now by the rules that decide about real attempts: each attempt
//! starts when it is due, and fails at once. New events and the rate limit are left out: events
//! bring a warning or a pause forward, the limit and slow failures put them off. Beyond
//! the most attempts that it plays, it takes the others to follow as closely.
//!
//! Not here: when a queue is drained if the receiver answers (`estimate`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use weir_common::time::UnixTime;

use crate::domain::health::{Health, Notice, Observation, Policy};
use crate::domain::retry::{Failed, Next, Schedule};
use crate::domain::webhook::Webhook;

/// Attempts that are played, at most: those of a hundred deliveries for as long as they are kept.
const ATTEMPTS_MAX: usize = 5_000;

/// A delivery that waits, as far as its next attempts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcoming {
    /// When its next attempt may start.
    pub due: UnixTime,
    /// Failures since its schedule started.
    pub step: u32,
    /// When the first attempt of the schedule started.
    pub since: Option<UnixTime>,
    /// When its first attempt started.
    pub first_attempt_at: Option<UnixTime>,
    /// The webhook's total pause when the first attempt started.
    pub paused_before: Duration,
}

/// What happens if the receiver stays down; `None` where that does not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// When its owners are warned.
    pub warned_at: Option<UnixTime>,
    /// When its deliveries pause.
    pub paused_at: Option<UnixTime>,
    /// When the first delivery fails permanently; after a pause none does.
    pub given_up_at: Option<UnixTime>,
}

/// What happens to `webhook`, of which `waiting` are the deliveries that are due first, if every
/// attempt from `now` on fails. Nothing happens to one that is paused or disabled.
#[must_use]
pub fn forecast(
    webhook: &Webhook,
    waiting: &[Upcoming],
    policy: &Policy,
    schedule: &Schedule,
    now: UnixTime,
) -> Forecast {
    let (health, found) = (webhook.health.clone(), Forecast::default());
    let mut play = Play { policy, health, at: now, found };
    if webhook.stopped_since().is_some() {
        return play.found;
    }
    let mut waiting = waiting.to_vec();
    let mut queue: Queue =
        waiting.iter().enumerate().map(|(nth, one)| Reverse((one.due.max(now), nth))).collect();
    for _ in 0..ATTEMPTS_MAX {
        let due = queue.peek().map(|Reverse((due, _))| *due);
        play.wait(due);
        if due.is_none() || play.found.paused_at.is_some() {
            return play.found;
        }
        retry(&mut queue, &mut waiting, (webhook, schedule), &mut play.found);
        play.fail();
    }
    let end = |Reverse((due, nth)): &Reverse<(UnixTime, usize)>| {
        waiting.get(*nth).map(|one| one.deadline(webhook, schedule, *due))
    };
    let ends: Vec<UnixTime> = queue.iter().filter_map(end).collect();
    play.fail_until(&ends);
    play.found
}

/// A webhook while all its attempts fail.
struct Play<'p> {
    policy: &'p Policy,
    health: Health,
    at: UnixTime,
    found: Forecast,
}

impl Play<'_> {
    /// Passes time until the next attempt, or without further attempts until nothing more happens.
    fn wait(&mut self, attempt: Option<UnixTime>) {
        let is_before = |timer: &UnixTime| attempt.is_none_or(|attempt| *timer <= attempt);
        while let Some(timer) = self.health.look_at(self.policy, self.at).filter(is_before) {
            self.at = timer;
            let (after, notice) = self.health.look(self.policy, timer);
            self.record(after, notice);
        }
        self.at = attempt.unwrap_or(self.at);
    }

    /// An attempt fails now.
    fn fail(&mut self) {
        let (after, notice) = self.health.after(self.policy, Observation::Failed, self.at);
        self.record(after, notice);
    }

    /// Attempts go on as closely as before, until the last of `ends`: only one more counts, that
    /// without which there would be no pause.
    fn fail_until(&mut self, ends: &[UnixTime]) {
        let down_since = self.health.down_since().unwrap_or(self.at);
        let enough = down_since.plus(self.policy.pause_after / 2).max(self.at);
        if ends.iter().any(|end| *end >= enough) {
            self.wait(Some(enough));
            self.fail();
        }
        self.wait(None);
        let first = ends
            .iter()
            .min()
            .filter(|end| self.found.paused_at.is_none_or(|paused| **end < paused));
        self.found.given_up_at = self.found.given_up_at.or(first.copied());
    }

    fn record(&mut self, health: Health, notice: Option<Notice>) {
        self.health = health;
        let happens = match notice {
            Some(Notice::Warn) => &mut self.found.warned_at,
            Some(Notice::Pause) => &mut self.found.paused_at,
            None => return,
        };
        happens.get_or_insert(self.at);
    }
}

type Queue = BinaryHeap<Reverse<(UnixTime, usize)>>;

/// Queues the delivery that is due first again after its failure, if it is retried.
fn retry(
    queue: &mut Queue,
    waiting: &mut [Upcoming],
    (webhook, schedule): (&Webhook, &Schedule),
    forecast: &mut Forecast,
) {
    let Some(Reverse((at, nth))) = queue.pop() else { return };
    let Some(one) = waiting.get_mut(nth) else { return };
    if one.first_attempt_at.is_none() {
        (one.first_attempt_at, one.paused_before) = (Some(at), webhook.paused_total);
    }
    let since = *one.since.get_or_insert(at);
    let deadline = one.deadline(webhook, schedule, at);
    match schedule.next(Failed { step: one.step, since, deadline, hint: None }, at) {
        Next::At(due) => {
            one.step = one.step.saturating_add(1);
            queue.push(Reverse((due, nth)));
        }
        Next::GiveUp => {
            forecast.given_up_at.get_or_insert(at);
        }
    }
}

impl Upcoming {
    /// When it fails permanently, if its next attempt starts at `at`.
    fn deadline(&self, webhook: &Webhook, schedule: &Schedule, at: UnixTime) -> UnixTime {
        let (first, before) = match self.first_attempt_at {
            Some(first) => (first, self.paused_before),
            None => (at, webhook.paused_total),
        };
        webhook.deadline(first, before, schedule.give_up_after, at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use weir_common::secret::Secret;

    use super::*;
    use crate::domain::event::EventSet;
    use crate::domain::id::{EndpointId, WebhookId};
    use crate::domain::retry::Mode;
    use crate::domain::webhook::options::WebhookOptions;
    use crate::domain::webhook::secrets::Secrets;

    /// At the start of a bucket of every policy here.
    const NOW: UnixTime = UnixTime(1_800_000_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);
    const STEP: Duration = Duration::from_millis(100);

    fn webhook(health: Health) -> Webhook {
        Webhook {
            id: WebhookId(1),
            workspace: "ws_a".into(),
            url: "https://a.example/".into(),
            endpoint: EndpointId(1),
            events: EventSet::default(),
            created_at: NOW,
            secrets: Arc::new(Secrets::of(Secret::new(String::new()))),
            paused_at: None,
            disabled_at: None,
            options: WebhookOptions::default(),
            paused_total: Duration::ZERO,
            probing: None,
            reordering: false,
            health,
            last_outcome: None,
        }
    }

    fn contract() -> (Policy, Schedule) {
        let policy = Policy { warn_share: 0.05, warn_for: 30 * MINUTE, pause_after: 24 * HOUR };
        let delays = [MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 6 * HOUR];
        let delays = [delays.as_slice(), &[12 * HOUR, 24 * HOUR, 48 * HOUR]].concat();
        let give_up_after = 48 * HOUR;
        (policy, Schedule { mode: Mode::Delay, delays, give_up_after, retry_after_max: HOUR })
    }

    fn fresh(due: UnixTime) -> Upcoming {
        let paused_before = Duration::ZERO;
        Upcoming { due, step: 0, since: None, first_attempt_at: None, paused_before }
    }

    #[test]
    fn one_event_warns_after_thirty_minutes_and_pauses_after_a_day() {
        let (policy, schedule) = contract();
        let waiting = [fresh(NOW)];
        let found = forecast(&webhook(Health::default()), &waiting, &policy, &schedule, NOW);
        // Attempts at 0, 1, 6, 36 minutes; the span of failures is half a day at 20 h 36 min.
        let expected = Forecast {
            warned_at: Some(NOW.plus(30 * MINUTE)),
            paused_at: Some(NOW.plus(24 * HOUR)),
            given_up_at: None,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_delivery_at_its_deadline_is_given_up_before_a_pause() {
        let (policy, schedule) = contract();
        let first = UnixTime(NOW.0 - 47 * 3_600_000_000);
        let old = Upcoming {
            due: NOW.plus(HOUR),
            step: 8,
            since: Some(first),
            first_attempt_at: Some(first),
            paused_before: Duration::ZERO,
        };
        let found = forecast(&webhook(Health::default()), &[old], &policy, &schedule, NOW);
        let given_up_at = Some(NOW.plus(HOUR));
        assert_eq!(found, Forecast { given_up_at, ..Forecast::default() });
    }

    #[test]
    fn attempts_beyond_those_that_are_played_warn_pause_and_lose_as_well() {
        let (policy, schedule) = contract();
        let second = Duration::from_secs(1);
        let after = |hours: Option<u32>| hours.map(|hours| NOW.plus(HOUR * hours));
        for (delay, count, give_up, paused, lost) in [
            (10 * MINUTE, 100, 48, Some(24), None),
            (30 * second, 100, 48, Some(24), None),
            (5 * second, 2, 48, Some(24), None),
            (5 * second, 100, 13, Some(24), Some(13)),
            (5 * second, 100, 6, None, Some(6)),
        ] {
            let give_up_after = HOUR * give_up;
            let schedule = Schedule { delays: vec![delay], give_up_after, ..schedule.clone() };
            let waiting = vec![fresh(NOW); count];
            let found = forecast(&webhook(Health::default()), &waiting, &policy, &schedule, NOW);
            let expected = Forecast {
                warned_at: Some(NOW.plus(30 * MINUTE)),
                paused_at: after(paused),
                given_up_at: after(lost),
            };
            assert_eq!(found, expected, "{count} each {delay:?} for {give_up} hours");
        }
    }

    #[test]
    fn nothing_happens_to_a_paused_webhook_or_an_empty_queue() {
        let (policy, schedule) = contract();
        let paused = Webhook { paused_at: Some(NOW), ..webhook(Health::default()) };
        for (webhook, waiting) in
            [(&paused, vec![fresh(NOW)]), (&webhook(Health::default()), vec![])]
        {
            let found = forecast(webhook, &waiting, &policy, &schedule, NOW);
            assert_eq!(found, Forecast::default());
        }
    }

    /// Looks at the health at every step, and starts every attempt in the step when it is due.
    fn model(
        webhook: &Webhook,
        waiting: &[Upcoming],
        policy: &Policy,
        schedule: &Schedule,
    ) -> Forecast {
        let (mut found, mut health) = (Forecast::default(), webhook.health.clone());
        let mut waiting: Vec<Option<Upcoming>> = waiting.iter().copied().map(Some).collect();
        for step in 0..1_000 {
            let at = NOW.plus(STEP * step);
            let (looked, notice) = health.look(policy, at);
            health = looked;
            let mut notices = vec![notice];
            for one in &mut waiting {
                while let Some(due) = one.filter(|one| one.due <= at) {
                    let (first, since) =
                        (due.first_attempt_at.unwrap_or(at), due.since.unwrap_or(at));
                    let deadline = first.plus(schedule.give_up_after);
                    let failed = Failed { step: due.step, since, deadline, hint: None };
                    if notices.contains(&Some(Notice::Pause)) {
                        break;
                    }
                    *one = match schedule.next(failed, at) {
                        Next::At(next) => Some(Upcoming {
                            due: next,
                            step: due.step + 1,
                            since: Some(since),
                            first_attempt_at: Some(first),
                            ..due
                        }),
                        Next::GiveUp => None,
                    };
                    if one.is_none() {
                        found.given_up_at.get_or_insert(at);
                    }
                    let (after, notice) = health.after(policy, Observation::Failed, at);
                    health = after;
                    notices.push(notice);
                }
            }
            if notices.contains(&Some(Notice::Warn)) {
                found.warned_at.get_or_insert(at);
            }
            if notices.contains(&Some(Notice::Pause)) {
                return Forecast { paused_at: Some(at), ..found };
            }
        }
        found
    }

    proptest! {
        #[test]
        fn a_forecast_is_what_happens(
            dues in prop::collection::vec(0_u32..120, 0..6),
            past in prop::collection::vec((1_u32..80, any::<bool>()), 0..20),
            delays in prop::collection::vec(1_u32..100, 1..4),
            give_up in 1_u32..400,
        ) {
            let policy = Policy {
                warn_share: 0.05,
                warn_for: 30 * STEP,
                pause_after: 200 * STEP,
            };
            let schedule = Schedule {
                mode: Mode::Delay,
                delays: delays.into_iter().map(|delay| STEP * delay).collect(),
                give_up_after: STEP * give_up,
                retry_after_max: STEP,
            };
            let mut health = Health::default();
            let mut past = past;
            past.sort_unstable_by_key(|(ago, _)| Reverse(*ago));
            for (ago, failed) in past {
                let at = UnixTime(NOW.0 - u64::from(ago) * 100_000);
                let seen = if failed { Observation::Failed } else { Observation::Succeeded };
                health = health.after(&policy, seen, at).0;
            }
            // A notice that is due now is given when the webhook is looked at, before a forecast.
            health = health.look(&policy, NOW).0;
            let waiting: Vec<Upcoming> =
                dues.into_iter().map(|due| fresh(NOW.plus(STEP * due))).collect();
            let webhook = webhook(health);
            let found = forecast(&webhook, &waiting, &policy, &schedule, NOW);
            let played = model(&webhook, &waiting, &policy, &schedule);
            prop_assert_eq!(found, played);
        }
    }
}
