//! The health of a webhook, and what becomes of it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::dto::Time;
use crate::api::dto::redelivery::{EstimateView, MatchCount};
use crate::api::dto::webhook::WebhookView;
use crate::domain::forecast::Forecast;
use crate::domain::webhook::{Webhook, WebhookState};

/// A webhook, its health, and what becomes of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::api) struct WebhookDetail {
    #[serde(flatten)]
    pub(in crate::api) webhook: WebhookView,
    /// How its attempts went.
    pub(in crate::api) health: HealthView,
    /// How many deliveries wait.
    pub(in crate::api) waiting: MatchCount,
    /// What happens next.
    pub(in crate::api) forecast: ForecastView,
}

/// How the attempts of a webhook went.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Health")]
pub(in crate::api) struct HealthView {
    /// When the failures began of which its owners were warned; null unless it is failing.
    pub(in crate::api) failing_since: Option<Time>,
    /// The first failure since the last 2xx; null after a 2xx.
    pub(in crate::api) down_since: Option<Time>,
    /// Since when it is paused.
    pub(in crate::api) paused_since: Option<Time>,
    /// Since when its owner has it disabled.
    pub(in crate::api) disabled_since: Option<Time>,
    /// Since when it waits for a new secret, because the earlier ones were lost.
    pub(in crate::api) secret_lost_since: Option<Time>,
    /// The last 2xx; null before the first, and after a reactivation.
    pub(in crate::api) last_success_at: Option<Time>,
    /// The outcome of the last attempt.
    pub(in crate::api) last_outcome: Option<String>,
}

impl HealthView {
    pub(in crate::api) fn of(webhook: &Webhook) -> Self {
        Self {
            failing_since: webhook.health.failing_since().map(Time),
            down_since: webhook.health.down_since().map(Time),
            paused_since: webhook.paused_at.map(Time),
            disabled_since: webhook.disabled_at.map(Time),
            secret_lost_since: webhook.secret_lost_at().map(Time),
            last_success_at: webhook.health.last_success().map(Time),
            last_outcome: webhook.last_outcome.as_ref().map(ToString::to_string),
        }
    }
}

/// What happens to a webhook next.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Forecast")]
pub(in crate::api) struct ForecastView {
    /// If its receiver stays down.
    pub(in crate::api) if_down: IfDown,
    /// If its receiver answers from now on, and its owner ends a pause now: when all that waits is
    /// sent; null if nothing waits.
    pub(in crate::api) if_up: Option<EstimateView>,
}

/// What happens if a receiver stays down, from the deliveries that wait now: new events bring a
/// warning and a pause forward.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(in crate::api) struct IfDown {
    /// When its owners are warned; null if they were, or will not be.
    pub(in crate::api) warned_at: Option<Time>,
    /// When its deliveries pause; null if they do not.
    pub(in crate::api) paused_at: Option<Time>,
    /// When the first delivery fails permanently; null if none does before a pause.
    pub(in crate::api) given_up_at: Option<Time>,
    /// The same as a sentence.
    pub(in crate::api) text: String,
}

impl IfDown {
    pub(in crate::api) fn of(state: WebhookState, forecast: &Forecast) -> Self {
        let Forecast { warned_at, paused_at, given_up_at } = *forecast;
        Self {
            warned_at: warned_at.map(Time),
            paused_at: paused_at.map(Time),
            given_up_at: given_up_at.map(Time),
            text: in_words(state, forecast),
        }
    }
}

fn in_words(state: WebhookState, forecast: &Forecast) -> String {
    match state {
        WebhookState::Paused => {
            return "It is paused: nothing is sent, and nothing is lost.".into();
        }
        WebhookState::Disabled => {
            return "It is disabled: nothing is sent, and nothing is lost.".into();
        }
        WebhookState::Delivering | WebhookState::Failing => {}
    }
    let at = |what: &str, time: Option<weir_common::time::UnixTime>| {
        time.map(|time| format!("{what} at {}", time.rfc3339()))
    };
    let steps = [
        at("its owners are warned", forecast.warned_at),
        at("the first delivery fails permanently", forecast.given_up_at),
        at("deliveries pause", forecast.paused_at),
    ];
    let steps: Vec<String> = steps.into_iter().flatten().collect();
    if steps.is_empty() {
        return "If it stays down, what waits now leads to no warning, pause or loss.".into();
    }
    let kept = if forecast.paused_at.is_some() { ", and what waits then is kept" } else { "" };
    format!("If it stays down: {}{kept}.", steps.join("; "))
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;

    #[test]
    fn a_forecast_names_each_step_and_its_time() {
        let at = |hours: u64| Some(UnixTime(hours * 3_600_000_000));
        let words = |state, warned_at, given_up_at, paused_at| {
            in_words(state, &Forecast { warned_at, paused_at, given_up_at })
        };
        let (up, failing) = (WebhookState::Delivering, WebhookState::Failing);
        assert_eq!(
            words(up, at(1), None, at(24)),
            "If it stays down: its owners are warned at 1970-01-01T01:00:00.000Z; deliveries \
             pause at 1970-01-02T00:00:00.000Z, and what waits then is kept."
        );
        assert_eq!(
            words(failing, None, at(2), None),
            "If it stays down: the first delivery fails permanently at 1970-01-01T02:00:00.000Z."
        );
        let nothing = "If it stays down, what waits now leads to no warning, pause or loss.";
        assert_eq!(words(up, None, None, None), nothing);
        for (state, word) in
            [(WebhookState::Paused, "paused"), (WebhookState::Disabled, "disabled")]
        {
            let text = format!("It is {word}: nothing is sent, and nothing is lost.");
            assert_eq!(words(state, None, None, None), text);
        }
    }
}
