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
    /// The last 2xx; null before the first.
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
    /// With `mails`, a warning is a mail.
    pub(in crate::api) fn of(state: WebhookState, forecast: &Forecast, mails: bool) -> Self {
        let Forecast { warned_at, paused_at, given_up_at } = *forecast;
        Self {
            warned_at: warned_at.map(Time),
            paused_at: paused_at.map(Time),
            given_up_at: given_up_at.map(Time),
            text: in_words(state, forecast, mails),
        }
    }
}

fn in_words(state: WebhookState, forecast: &Forecast, mails: bool) -> String {
    match state {
        WebhookState::Paused => {
            return "It is paused: nothing is sent, and nothing is lost.".into();
        }
        WebhookState::Disabled => {
            return "It is disabled: nothing is sent, and nothing is lost.".into();
        }
        WebhookState::Delivering | WebhookState::Failing => {}
    }
    let warned = if mails { "its owners get a mail" } else { "it counts as failing" };
    let steps = [
        (forecast.warned_at, warned),
        (forecast.given_up_at, "the first delivery fails permanently"),
        (forecast.paused_at, "deliveries pause, and what waits then is kept"),
    ];
    let mut steps: Vec<_> = steps.into_iter().filter_map(|(at, what)| Some((at?, what))).collect();
    if steps.is_empty() {
        return "If it stays down, what waits now leads to no warning, pause or loss.".into();
    }
    steps.sort_by_key(|(at, _)| *at);
    let steps: Vec<_> =
        steps.iter().map(|(at, what)| format!("at {} {what}", at.rfc3339())).collect();
    format!("If it stays down: {}.", steps.join("; "))
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;

    #[test]
    fn a_forecast_names_each_step_and_its_time() {
        let at = |hours: u64| Some(UnixTime(hours * 3_600_000_000));
        let words = |state, warned_at, given_up_at, paused_at, mails| {
            in_words(state, &Forecast { warned_at, paused_at, given_up_at }, mails)
        };
        let (up, failing) = (WebhookState::Delivering, WebhookState::Failing);
        assert_eq!(
            words(up, at(1), None, at(24), true),
            "If it stays down: at 1970-01-01T01:00:00.000Z its owners get a mail; at \
             1970-01-02T00:00:00.000Z deliveries pause, and what waits then is kept."
        );
        assert_eq!(
            words(failing, at(3), at(2), None, false),
            "If it stays down: at 1970-01-01T02:00:00.000Z the first delivery fails permanently; \
             at 1970-01-01T03:00:00.000Z it counts as failing."
        );
        let nothing = "If it stays down, what waits now leads to no warning, pause or loss.";
        assert_eq!(words(up, None, None, None, true), nothing);
        for (state, word) in
            [(WebhookState::Paused, "paused"), (WebhookState::Disabled, "disabled")]
        {
            let text = format!("It is {word}: nothing is sent, and nothing is lost.");
            assert_eq!(words(state, None, None, None, true), text);
        }
    }
}
