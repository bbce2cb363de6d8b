//! Says why a delivery has not been delivered yet.
//!
//! The first of these that holds: it has ended; an attempt is under way; its webhook is gone, is
//! paused, or lets one delivery through at a time; its last attempt failed and the next is due
//! later; others go first; nothing at all.

use std::time::Duration;

use weir_common::time::UnixTime;

use super::shapes::{Reason, Time, WaitingFor};
use crate::model::{Delivery, DeliveryState, Probe, Webhook};
use crate::worker::Standing;

/// How fast an endpoint is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// So many attempts
    pub(super) requests: u32,
    /// in so long.
    pub(super) window: Duration,
}

/// What is known of a delivery and of whom it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) delivery: &'a Delivery,
    /// None once it is deleted.
    pub(super) webhook: Option<&'a Webhook>,
    /// What the worker knows of it.
    pub(super) standing: Standing,
    /// How many deliveries of its webhook go first, where they were counted.
    pub(super) ahead: Option<usize>,
    pub(super) pace: Pace,
    pub(super) now: UnixTime,
}

/// Why it waits; nothing where it has ended.
pub(super) fn waiting_for(facts: &Facts<'_>) -> Option<WaitingFor> {
    if facts.delivery.state != DeliveryState::Waiting {
        return None;
    }
    if facts.standing.in_flight {
        let number = facts.delivery.attempts.saturating_add(1);
        return Some(plain(Reason::InFlight, format!("Attempt {number} is under way.")));
    }
    let Some(webhook) = facts.webhook else {
        let text = "Its webhook was deleted; it is never sent.";
        return Some(plain(Reason::Deleted, text.to_owned()));
    };
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
        return Some(retry(facts, later(delivery.due, facts.standing.held_until)));
    }
    if webhook.probing.is_some() {
        return Some(probe(facts.standing.held_until.filter(|until| *until > facts.now)));
    }
    Some(
        paced(facts).unwrap_or_else(|| {
            plain(Reason::Ready, "It is due, and is sent in a moment.".to_owned())
        }),
    )
}

/// When the next attempt is due, where one is.
pub(super) fn next_attempt_at(facts: &Facts<'_>) -> Option<UnixTime> {
    let delivery = facts.delivery;
    let webhook = facts.webhook.filter(|webhook| webhook.paused_at.is_none())?;
    let let_through = match webhook.probing {
        Some(Probe::This(id)) => id == delivery.id,
        Some(Probe::Any) | None => true,
    };
    let waits = delivery.state == DeliveryState::Waiting && !facts.standing.in_flight;
    (waits && let_through).then(|| later(delivery.due, facts.standing.held_until))
}

fn later(due: UnixTime, held_until: Option<UnixTime>) -> UnixTime {
    held_until.map_or(due, |until| until.max(due))
}

fn plain(reason: Reason, text: String) -> WaitingFor {
    WaitingFor { reason, since: None, until: None, position: None, seconds: None, text }
}

fn paused(since: UnixTime) -> WaitingFor {
    let shown = since.rfc3339();
    let text = format!("Its webhook is paused since {shown}, until it is reactivated.");
    WaitingFor { since: Some(Time(since)), ..plain(Reason::Paused, text) }
}

fn behind_probe() -> WaitingFor {
    let text = "Its webhook was reactivated; one delivery goes first, alone, until a 2xx.";
    plain(Reason::Probe, text.to_owned())
}

fn probe(until: Option<UnixTime>) -> WaitingFor {
    let text = "Its webhook was reactivated; this delivery goes first, alone.";
    WaitingFor { until: until.map(Time), ..plain(Reason::Probe, text.to_owned()) }
}

fn retry(facts: &Facts<'_>, until: UnixTime) -> WaitingFor {
    let (attempts, shown) = (facts.delivery.attempts, until.rfc3339());
    let text = match attempts {
        0 => format!("It is tried at {shown}."),
        _ => format!("Attempt {attempts} failed; the next one is at {shown}."),
    };
    WaitingFor {
        until: Some(Time(until)),
        seconds: Some(until.since(facts.now).as_micros().div_ceil(1_000_000) as u64),
        ..plain(Reason::Retry, text)
    }
}

fn paced(facts: &Facts<'_>) -> Option<WaitingFor> {
    let until = facts.standing.held_until.filter(|until| *until > facts.now);
    let ahead = facts.ahead.filter(|ahead| *ahead > 0);
    if until.is_none() && ahead.is_none() {
        return None;
    }
    let Pace { requests, window } = facts.pace;
    let turn = window.as_micros() * ahead.unwrap_or(0) as u128 / u128::from(requests.max(1));
    let held = until.map_or(0, |until| until.since(facts.now).as_micros());
    let seconds = u64::try_from(turn.max(held).div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let (asked, span) = (requests, weir_common::reader::shown(window));
    let text = match facts.ahead {
        Some(ahead) => format!(
            "It is number {} of its webhook's queue, about {seconds} s away: the endpoint is \
             called {asked} times in {span} at most.",
            ahead + 1
        ),
        None => format!("Its endpoint was called {asked} times within {span}; it is next in turn."),
    };
    Some(WaitingFor {
        until: until.map(Time),
        position: facts.ahead.map(|ahead| ahead + 1),
        seconds: Some(seconds),
        ..plain(Reason::Paced, text)
    })
}
