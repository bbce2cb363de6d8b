//! Explains why a delivery waits.
//!
//! The first that applies: it has ended; an attempt is in flight; its webhook was deleted, is
//! disabled or paused, or waits for another delivery's 2xx as a probe; its next attempt is due
//! later; its host name does not resolve; it is the probe; the endpoint's rate limit or earlier
//! deliveries come first; it is sent next.

use weir_common::limit::rolling::RollingQuota;
use weir_common::time::UnixTime;

use crate::api::dto::{Reason, Time, WaitingFor};
use crate::api::pace::{pace_in_words, paces_in_words};
use crate::domain::delivery::{Delivery, DeliveryState, DeliveryStatus};
use crate::domain::estimate::StartLimit;
use crate::domain::webhook::{Probe, Webhook};

/// The most deliveries ahead that are counted: a longer queue takes hours.
pub(super) const AHEAD_MAX: usize = 10_000;

/// The state that determines the reason.
#[derive(Clone, Debug)]
pub(super) struct WaitFacts<'a> {
    pub(super) delivery: &'a Delivery,
    /// `None` once it was deleted.
    pub(super) webhook: Option<&'a Webhook>,
    /// The worker's state of the delivery.
    pub(super) status: DeliveryStatus,
    /// Deliveries of its webhook that are sent first, if they were counted; [`AHEAD_MAX`] means
    /// that many or more.
    pub(super) ahead: Option<usize>,
    /// The limits of its webhook's starts, its endpoint's first.
    pub(super) limits: Vec<StartLimit>,
    /// Whether receivers are called through a proxy.
    pub(super) proxied: bool,
    pub(super) now: UnixTime,
}

/// Why it waits; `None` once it has ended.
pub(super) fn waiting_for(facts: &WaitFacts<'_>) -> Option<WaitingFor> {
    if facts.delivery.state != DeliveryState::Waiting {
        return None;
    }
    if facts.status.in_flight {
        let number = facts.delivery.attempts.saturating_add(1);
        return Some(plain(Reason::InFlight, format!("Attempt {number} is in flight.")));
    }
    let Some(webhook) = facts.webhook else {
        let text = "Its webhook was deleted; it is never sent.";
        return Some(plain(Reason::Deleted, text.to_owned()));
    };
    if let Some(since) = webhook.secret_lost_at() {
        return Some(without_secret(webhook, since));
    }
    if let Some(since) = webhook.disabled_at {
        return Some(disabled(webhook, since));
    }
    if let Some(since) = webhook.paused_at {
        return Some(paused(since));
    }
    let delivery = facts.delivery;
    match webhook.probing {
        Some(Probe::This(id)) if id == delivery.id => {}
        Some(Probe::This(_) | Probe::Any) => return Some(behind_probe()),
        None => {}
    }
    if delivery.due > facts.now {
        return Some(retry(facts, later(delivery.due, facts.status.blocked_until)));
    }
    if let Some(until) = facts.status.blocked_until.filter(|_| facts.status.unresolved) {
        return Some(name_unresolved(until, facts.proxied));
    }
    if webhook.probing.is_some() {
        return Some(probe(facts.status.blocked_until.filter(|until| *until > facts.now)));
    }
    if let Some(slots) = facts.status.slots.filter(|_| !is_blocked(facts)) {
        return Some(behind_timeouts(facts.ahead, slots));
    }
    Some(
        paced(facts)
            .unwrap_or_else(|| plain(Reason::Ready, "It is due and is sent next.".to_owned())),
    )
}

/// When the next attempt is due, if one is.
pub(super) fn next_attempt_at(facts: &WaitFacts<'_>) -> Option<UnixTime> {
    let delivery = facts.delivery;
    let webhook = facts.webhook.filter(|webhook| webhook.stopped_since().is_none())?;
    let passes = match webhook.probing {
        Some(Probe::This(id)) => id == delivery.id,
        Some(Probe::Any) | None => true,
    };
    let waits = delivery.state == DeliveryState::Waiting && !facts.status.in_flight;
    (waits && passes).then(|| later(delivery.due, facts.status.blocked_until))
}

fn later(due: UnixTime, blocked_until: Option<UnixTime>) -> UnixTime {
    blocked_until.map_or(due, |until| until.max(due))
}

fn plain(reason: Reason, text: String) -> WaitingFor {
    WaitingFor { reason, since: None, until: None, position: None, seconds: None, text }
}

fn paused(since: UnixTime) -> WaitingFor {
    let shown = since.rfc3339();
    let text = format!("Its webhook has been paused since {shown}, until it is reactivated.");
    WaitingFor { since: Some(Time(since)), ..plain(Reason::Paused, text) }
}

fn disabled(webhook: &Webhook, since: UnixTime) -> WaitingFor {
    let (shown, then) = (since.rfc3339(), then_reactivates(webhook));
    let text =
        format!("Its webhook has been disabled since {shown}, until its owner enables it{then}.");
    WaitingFor { since: Some(Time(since)), ..plain(Reason::Disabled, text) }
}

fn without_secret(webhook: &Webhook, since: UnixTime) -> WaitingFor {
    let (shown, then) = (since.rfc3339(), then_reactivates(webhook));
    let enables = if webhook.disabled_at.is_some() { ", then enables it" } else { "" };
    let text = format!(
        "The secret of its webhook was lost; it has been disabled since {shown}, until its owner \
         rotates the secret{enables}{then}."
    );
    WaitingFor { since: Some(Time(since)), ..plain(Reason::Disabled, text) }
}

/// What the owner of a disabled webhook does last, if it is paused as well.
fn then_reactivates(webhook: &Webhook) -> &'static str {
    if webhook.paused_at.is_some() { ", then reactivates it" } else { "" }
}

fn behind_probe() -> WaitingFor {
    let text = "Its webhook starts again; a single delivery is sent first, until a 2xx.";
    plain(Reason::Probe, text.to_owned())
}

fn probe(until: Option<UnixTime>) -> WaitingFor {
    let text = "Its webhook starts again; this delivery is sent first, alone.";
    WaitingFor { until: until.map(Time), ..plain(Reason::Probe, text.to_owned()) }
}

fn retry(facts: &WaitFacts<'_>, until: UnixTime) -> WaitingFor {
    let (attempts, shown) = (facts.delivery.attempts, until.rfc3339());
    let text = match &facts.delivery.last_outcome {
        _ if attempts == 0 => format!("The next attempt is at {shown}."),
        None => format!("Attempt {attempts} failed; the next one is at {shown}."),
        Some(outcome) => {
            let why = outcome.in_words();
            let was = if outcome.status().is_some() { "was" } else { "failed:" };
            format!("Attempt {attempts} {was} {why}; the next one is at {shown}.")
        }
    };
    WaitingFor {
        until: Some(Time(until)),
        seconds: Some(until.since(facts.now).as_micros().div_ceil(1_000_000) as u64),
        ..plain(Reason::Retry, text)
    }
}

fn name_unresolved(until: UnixTime, proxied: bool) -> WaitingFor {
    let shown = until.rfc3339();
    let text = match proxied {
        false => format!("The host name did not resolve; the next lookup is at {shown}."),
        true => format!(
            "The host name did not resolve, or the platform's proxy cannot be used; the next try \
             is at {shown}."
        ),
    };
    WaitingFor { until: Some(Time(until)), ..plain(Reason::NameUnresolved, text) }
}

/// Whether a limit of starts admits none now.
fn is_blocked(facts: &WaitFacts<'_>) -> bool {
    facts.status.blocked_until.is_some_and(|until| until > facts.now)
}

/// It waits for an attempt in flight, of which the endpoint may have so many.
fn behind_timeouts(ahead: Option<usize>, slots: usize) -> WaitingFor {
    let why = format!(
        "the endpoint's attempts time out, so it has at most {slots} in flight until it answers"
    );
    let text = match ahead {
        Some(AHEAD_MAX..) => {
            format!("{AHEAD_MAX} or more deliveries of its webhook go first: {why}.")
        }
        Some(ahead) => format!("It is number {} in its webhook's queue: {why}.", ahead + 1),
        None => format!("It waits for an attempt in flight to end: {why}."),
    };
    let position = ahead.filter(|ahead| *ahead < AHEAD_MAX).map(|ahead| ahead + 1);
    WaitingFor { position, ..plain(Reason::Paced, text) }
}

fn paced(facts: &WaitFacts<'_>) -> Option<WaitingFor> {
    let until = facts.status.blocked_until.filter(|until| *until > facts.now);
    let ahead = facts.ahead.filter(|ahead| *ahead > 0);
    if until.is_none() && ahead.is_none() {
        return None;
    }
    let turn = |limit: &&StartLimit| {
        let RollingQuota { requests, window } = limit.quota;
        window.as_micros() * ahead.unwrap_or(0) as u128 / u128::from(requests.max(1))
    };
    // Of equals the endpoint's.
    let slowest = facts.limits.iter().rev().max_by_key(turn)?;
    let (turn, pace) = (turn(&slowest), pace_in_words(slowest));
    let blocked = until.map_or(0, |until| until.since(facts.now).as_micros());
    let seconds = u64::try_from(turn.max(blocked).div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let counted = facts.ahead.filter(|ahead| *ahead < AHEAD_MAX);
    let text = match facts.ahead {
        Some(AHEAD_MAX..) => format!(
            "{AHEAD_MAX} or more deliveries of its webhook go first, which takes {seconds} s or \
             more: {pace}."
        ),
        Some(ahead) => format!(
            "It is number {} in its webhook's queue, which takes about {seconds} s: {pace}.",
            ahead + 1
        ),
        // A list counts no queue positions, so the wait is unknown.
        None => format!("A rate limit holds it back: {}.", paces_in_words(&facts.limits)),
    };
    Some(WaitingFor {
        until: until.map(Time),
        position: counted.map(|ahead| ahead + 1),
        seconds: counted.map(|_| seconds),
        ..plain(Reason::Paced, text)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use weir_common::secret::Secret;

    use super::*;
    use crate::domain::estimate::LimitScope;
    use crate::domain::event::{EventSet, EventType};
    use crate::domain::health::Health;
    use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
    use crate::domain::outcome::{Failure, Outcome};
    use crate::domain::webhook::options::WebhookOptions;
    use crate::domain::webhook::secrets::Secrets;

    const NOW: UnixTime = UnixTime(1_700_000_000_000_000);

    fn at(seconds: u64) -> UnixTime {
        NOW.plus(Duration::from_secs(seconds))
    }

    fn delivery(due: UnixTime, attempts: u32) -> Delivery {
        Delivery {
            id: DeliveryId(7),
            event_id: "evt_1".into(),
            webhook: WebhookId(1),
            kind: EventType::new("user.created"),
            state: DeliveryState::Waiting,
            attempts,
            created_at: UnixTime(0),
            due,
            first_attempt_at: None,
            paused_before: Duration::ZERO,
            ended_at: None,
            last_outcome: None,
        }
    }

    fn webhook(paused_at: Option<UnixTime>, probing: Option<Probe>) -> Webhook {
        Webhook {
            id: WebhookId(1),
            workspace: "ws_a".into(),
            url: Arc::from("https://example.com/"),
            endpoint: EndpointId(1),
            events: EventSet::default(),
            created_at: UnixTime(0),
            options: WebhookOptions::default(),
            secrets: Arc::new(Secrets::of(Secret::new(String::new()))),
            paused_at,
            disabled_at: None,
            paused_total: Duration::ZERO,
            probing,
            reordering: false,
            health: Health::default(),
            last_outcome: None,
        }
    }

    fn limit(scope: LimitScope, requests: u32) -> StartLimit {
        StartLimit { scope, quota: RollingQuota { requests, window: Duration::from_secs(60) } }
    }

    struct Case {
        delivery: Delivery,
        webhook: Option<Webhook>,
        status: DeliveryStatus,
        ahead: Option<usize>,
        proxied: bool,
    }

    fn case(due: u64, attempts: u32) -> Case {
        let webhook = Some(webhook(None, None));
        let status = DeliveryStatus::default();
        let delivery = delivery(at(due), attempts);
        Case { delivery, webhook, status, ahead: None, proxied: false }
    }

    /// Reason, until, position and seconds, and when the next attempt is due.
    fn check(case: &Case) -> (Option<WaitingFor>, String) {
        let facts = WaitFacts {
            delivery: &case.delivery,
            webhook: case.webhook.as_ref(),
            status: case.status,
            ahead: case.ahead,
            limits: vec![limit(LimitScope::Endpoint(EndpointId(1)), 100)],
            proxied: case.proxied,
            now: NOW,
        };
        let seconds = |time: UnixTime| time.since(NOW).as_secs();
        let next = next_attempt_at(&facts).map(seconds);
        let waiting = waiting_for(&facts);
        let shown = waiting.as_ref().map_or("ended".to_owned(), |waiting| {
            let until = waiting.until.map(|time| seconds(time.0));
            format!("{:?} {until:?} {:?} {:?}", waiting.reason, waiting.position, waiting.seconds)
        });
        (waiting, format!("{shown}, next {next:?}").replace("Some(", "").replace(')', ""))
    }

    fn shown(case: Case) -> String {
        check(&case).1
    }

    #[test]
    fn an_ended_delivery_has_no_reason() {
        for state in [DeliveryState::Delivered, DeliveryState::FailedPermanent] {
            let mut ended = case(9, 3);
            ended.delivery.state = state;
            ended.status.in_flight = true;
            assert_eq!(shown(ended), "ended, next None");
        }
    }

    #[test]
    fn an_attempt_in_flight_precedes_every_other_reason() {
        let mut flying = case(0, 1);
        flying.status.in_flight = true;
        flying.webhook = Some(webhook(Some(NOW), Some(Probe::Any)));
        let (waiting, shown) = check(&flying);
        assert_eq!(shown, "InFlight None None None, next None");
        assert_eq!(waiting.map(|one| one.text).as_deref(), Some("Attempt 2 is in flight."));
    }

    #[test]
    fn a_pause_has_its_start_and_no_next_attempt() {
        let mut paused = case(9, 3);
        paused.webhook = Some(webhook(Some(UnixTime(0)), None));
        let (waiting, shown) = check(&paused);
        assert_eq!(shown, "Paused None None None, next None");
        let waiting = waiting.expect("it waits");
        assert_eq!(waiting.since, Some(Time(UnixTime(0))));
        assert_eq!(
            waiting.text,
            "Its webhook has been paused since 1970-01-01T00:00:00.000Z, until it is reactivated."
        );
    }

    #[test]
    fn a_disabled_webhook_is_shown_as_such_even_if_it_is_also_paused() {
        for paused_at in [None, Some(UnixTime(0))] {
            let mut disabled = case(9, 3);
            let since = UnixTime(1_000_000);
            disabled.webhook =
                Some(Webhook { disabled_at: Some(since), ..webhook(paused_at, None) });
            let (waiting, shown) = check(&disabled);
            assert_eq!(shown, "Disabled None None None, next None");
            let waiting = waiting.expect("it waits");
            assert_eq!(waiting.since, Some(Time(since)));
            let then = if paused_at.is_some() { ", then reactivates it" } else { "" };
            let expected = format!(
                "Its webhook has been disabled since 1970-01-01T00:00:01.000Z, until its owner \
                 enables it{then}."
            );
            assert_eq!(waiting.text, expected);
        }
    }

    #[test]
    fn a_lost_secret_comes_before_all_else_that_stops_a_webhook() {
        let since = UnixTime(1_000_000);
        for (disabled_at, paused_at, steps) in [
            (None, None, "rotates the secret."),
            (None, Some(NOW), "rotates the secret, then reactivates it."),
            (Some(NOW), None, "rotates the secret, then enables it."),
            (Some(NOW), Some(NOW), "rotates the secret, then enables it, then reactivates it."),
        ] {
            let mut lost = case(9, 3);
            let secrets = Arc::new(Secrets::lost(since));
            lost.webhook = Some(Webhook { disabled_at, secrets, ..webhook(paused_at, None) });
            let (waiting, shown) = check(&lost);
            assert_eq!(shown, "Disabled None None None, next None");
            let text = waiting.expect("it waits").text;
            assert!(text.contains("since 1970-01-01T00:00:01.000Z"), "{text}");
            assert!(text.ends_with(steps), "{text}");
        }
    }

    #[test]
    fn a_delivery_of_a_deleted_webhook_is_never_sent() {
        let mut gone = case(9, 3);
        gone.webhook = None;
        assert_eq!(shown(gone), "Deleted None None None, next None");
    }

    #[test]
    fn behind_a_probe_all_but_one_wait_for_a_2xx() {
        let probing = |probe, due, blocked_until| {
            let mut case = case(due, 1);
            case.webhook = Some(webhook(None, Some(probe)));
            case.status.blocked_until = blocked_until;
            shown(case)
        };
        let (this, other) = (Probe::This(DeliveryId(7)), Probe::This(DeliveryId(8)));
        assert_eq!(probing(other, 0, None), "Probe None None None, next None");
        assert_eq!(probing(Probe::Any, 0, None), "Probe None None None, next 0");
        assert_eq!(probing(this, 0, None), "Probe None None None, next 0");
        assert_eq!(probing(this, 0, Some(at(5))), "Probe 5 None None, next 5");
        assert_eq!(probing(this, 60, Some(at(5))), "Retry 60 None 60, next 60");
    }

    #[test]
    fn a_failed_delivery_waits_for_its_next_attempt() {
        let (waiting, shown) = check(&case(61, 2));
        assert_eq!(shown, "Retry 61 None 61, next 61");
        assert_eq!(
            waiting.map(|one| one.text).as_deref(),
            Some("Attempt 2 failed; the next one is at 2023-11-14T22:14:21.000Z.")
        );
        let mut blocked = case(1, 2);
        blocked.status.blocked_until = Some(at(30));
        assert_eq!(shown_of(&blocked), "Retry 30 None 30, next 30");
    }

    #[test]
    fn a_retry_has_the_outcome_of_the_last_attempt() {
        for (failure, expected) in [
            (Failure::Status(503), "was answered 503, which is not 2xx;"),
            (Failure::Status(302), "was answered 302, a redirect, which is not followed;"),
            (Failure::Refused, "failed: the connection was refused;"),
            (Failure::Timeout, "failed: no answer in time;"),
        ] {
            let mut failed = case(61, 1);
            failed.delivery.last_outcome = Some(Outcome::Failed(failure));
            let text = check(&failed).0.expect("it waits").text;
            let expected = format!("Attempt 1 {expected} the next one is at 2023-11-14T22:14");
            assert!(text.starts_with(&expected), "{text}");
        }
    }

    fn shown_of(case: &Case) -> String {
        check(case).1
    }

    #[test]
    fn a_queued_delivery_has_its_position_and_an_estimate() {
        let paced = |ahead, blocked_until| {
            let mut case = case(0, 0);
            case.ahead = ahead;
            case.status.blocked_until = blocked_until;
            shown(case)
        };
        assert_eq!(paced(Some(312), None), "Paced None 313 188, next 0");
        assert_eq!(paced(Some(1), Some(at(20))), "Paced 20 2 20, next 20");
        assert_eq!(paced(Some(0), Some(at(20))), "Paced 20 1 20, next 20");
        assert_eq!(paced(None, Some(at(20))), "Paced 20 None None, next 20");
        assert_eq!(paced(Some(9_999), None), "Paced None 10000 6000, next 0");
        assert_eq!(paced(Some(10_000), None), "Paced None None None, next 0", "counted no further");
        assert_eq!(paced(Some(0), None), "Ready None None None, next 0");
        assert_eq!(paced(None, Some(NOW)), "Ready None None None, next 0");
    }

    #[test]
    fn an_unresolved_name_has_the_time_of_the_next_lookup() {
        let mut unresolved = case(0, 0);
        unresolved.ahead = Some(3);
        unresolved.status = DeliveryStatus {
            blocked_until: Some(at(32)),
            unresolved: true,
            ..DeliveryStatus::default()
        };
        let (waiting, shown) = check(&unresolved);
        assert_eq!(shown, "NameUnresolved 32 None None, next 32");
        assert_eq!(
            waiting.map(|one| one.text).as_deref(),
            Some(
                "The host name did not resolve; the next lookup is at \
                 2023-11-14T22:13:52.000Z."
            )
        );
        unresolved.proxied = true;
        let text = check(&unresolved).0.map(|waiting| waiting.text).unwrap_or_default();
        assert!(text.contains("or the platform's proxy cannot be used; the next try"), "{text}");
        unresolved.webhook = Some(webhook(None, Some(Probe::This(DeliveryId(7)))));
        assert_eq!(shown_of(&unresolved), "NameUnresolved 32 None None, next 32");
        unresolved.delivery.due = at(60);
        assert_eq!(shown_of(&unresolved), "Retry 60 None 60, next 60");
    }

    #[test]
    fn a_delivery_in_a_list_has_no_position() {
        let mut listed = case(0, 0);
        listed.status.blocked_until = Some(at(20));
        let text = check(&listed).0.map(|one| one.text);
        assert_eq!(
            text.as_deref(),
            Some("A rate limit holds it back: an endpoint is called at most 100 times in 1m.")
        );
    }

    #[test]
    fn a_delivery_behind_timeouts_waits_for_attempts_in_flight_and_for_no_rate() {
        let waiting = |ahead, blocked_until| {
            let mut queued = case(0, 0);
            queued.ahead = ahead;
            queued.status = DeliveryStatus { slots: Some(1), blocked_until, ..queued.status };
            check(&queued)
        };
        for (ahead, position, text) in [
            (Some(4), "5", "It is number 5 in its webhook's queue: the endpoint's attempts time"),
            (Some(AHEAD_MAX), "None", "10000 or more deliveries of its webhook go first: the"),
            (None, "None", "It waits for an attempt in flight to end: the endpoint's attempts"),
        ] {
            let (waiting, shown) = waiting(ahead, Some(NOW));
            assert_eq!(shown, format!("Paced None {position} None, next 0"));
            let shown = waiting.map(|one| one.text).unwrap_or_default();
            assert!(shown.starts_with(text) && shown.contains("at most 1 in flight"), "{shown}");
        }
        let (waiting, _) = waiting(Some(4), Some(at(20)));
        let text = waiting.map(|one| one.text).unwrap_or_default();
        assert!(text.contains("100 times in 1m"), "the rate comes after them: {text}");
    }

    #[test]
    fn the_text_of_a_queued_delivery_has_its_numbers() {
        let text = |ahead| {
            let mut queued = case(0, 0);
            queued.ahead = Some(ahead);
            check(&queued).0.map(|one| one.text).unwrap_or_default()
        };
        assert_eq!(
            text(9),
            "It is number 10 in its webhook's queue, which takes about 6 s: an endpoint is \
             called at most 100 times in 1m."
        );
        assert_eq!(
            text(AHEAD_MAX),
            "10000 or more deliveries of its webhook go first, which takes 6000 s or more: an \
             endpoint is called at most 100 times in 1m."
        );
    }
}
