//! Events for operators of what happened to webhooks and deliveries.
//!
//! Invariant: none is about a workspace in `operator.opt_out`, nor about a webhook that has the
//! operator's own URL.

use serde_json::{Value, json};
use url::Url;

use crate::domain::event::EventType;
use crate::domain::operator_event::{About, OperatorEvent};
use crate::domain::outcome::Outcome;
use crate::scheduler::webhooks::alerts::{HealthAlert, HealthChange};
use crate::scheduler::writes::Exhausted;
use crate::worker::Resources;

/// The events of alerts and exhausted deliveries: none without `[operator]`.
pub(super) fn of(
    resources: &Resources,
    alerts: &[HealthAlert],
    exhausted: &[Exhausted],
) -> Vec<OperatorEvent> {
    let active = resources.active.load();
    let Some(operator) = &active.settings.operator else { return Vec::new() };
    let own = operator.endpoint.as_ref().map(|endpoint| &*endpoint.url);
    let concerns = |workspace: &str, url: &str| {
        Some(url) != own && operator.opt_out.iter().all(|one| one.value != workspace)
    };
    let alerts = alerts.iter().filter(|one| concerns(&one.workspace, &one.url));
    let exhausted = exhausted.iter().filter(|one| concerns(&one.workspace, &one.url));
    alerts
        .map(|one| of_alert(resources, one))
        .chain(exhausted.map(|one| of_exhausted(resources, one)))
        .collect()
}

fn of_alert(resources: &Resources, alert: &HealthAlert) -> OperatorEvent {
    let kind = match alert.change {
        HealthChange::Failing => EventType::FAILING,
        HealthChange::Paused => EventType::PAUSED,
        HealthChange::Recovered => EventType::RECOVERED,
    };
    let data = json!({
        "workspace_id": *alert.workspace,
        "webhook_id": resources.ids.webhook(alert.webhook),
        "url_host": host(&alert.url),
        "since": alert.since.rfc3339(),
        "last_outcome": alert.last_outcome.as_ref().map(Outcome::to_string),
    });
    OperatorEvent::new(kind, About::Webhook(alert.webhook), alert.at, &data)
}

fn of_exhausted(resources: &Resources, exhausted: &Exhausted) -> OperatorEvent {
    let data = json!({
        "workspace_id": *exhausted.workspace,
        "webhook_id": resources.ids.webhook(exhausted.webhook),
        "url_host": host(&exhausted.url),
        "delivery_id": resources.ids.delivery(exhausted.delivery),
        "event_id": *exhausted.event_id,
        "event_type": exhausted.kind.name(),
        "attempts": exhausted.attempts,
        "since": exhausted.first_attempt_at.rfc3339(),
        "last_outcome": exhausted.last_outcome.to_string(),
    });
    let about = About::Delivery(exhausted.delivery);
    OperatorEvent::new(EventType::EXHAUSTED, about, exhausted.at, &data)
}

fn host(url: &str) -> Value {
    Url::parse(url).ok().and_then(|url| url.host_str().map(Value::from)).unwrap_or_default()
}
