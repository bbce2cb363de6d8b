//! Metrics, the attempt log, log messages, and mails to owners.
//!
//! Invariant: bodies, secrets, paths and queries of URLs are never logged.

use log::Level;
use prometheus::IntCounter;
use serde_json::json;
use weir_common::log::events;
use weir_common::log::json_lines::LineLog;
use weir_common::log::line::Line;
use weir_common::time::micros;

use crate::domain::delivery::NextState;
use crate::domain::operator_event;
use crate::domain::outcome::Outcome;
use crate::email::templates::{Incident, paused, warning};
use crate::scheduler::Notification;
use crate::scheduler::webhooks::alerts::{HealthAlert, HealthChange};
use crate::scheduler::writes::AttemptReport;
use crate::store::mail::QueuedMail;
use crate::worker::Resources;

/// Counts and logs a notification.
pub(super) fn report(resources: &Resources, notification: Notification) {
    match notification {
        Notification::Attempt(attempt) => report_attempt(resources, &attempt),
        Notification::Health(alert) => report_health(resources, &alert),
        Notification::InvalidUrl(webhook) => {
            let fields = [("webhook", json!(resources.ids.webhook(webhook)))];
            events::event(Level::Error, "stored URL invalid", &fields);
        }
    }
}

fn report_attempt(resources: &Resources, report: &AttemptReport) {
    let metrics = &resources.metrics;
    metrics.attempt(&report.attempt.outcome, report.attempt.took);
    if matches!(report.attempt.outcome, Outcome::Failed(_)) {
        resources.most_failed.failed(report.webhook, &report.workspace);
    }
    let Some(after) = report.after else { return };
    if *report.workspace == *operator_event::WORKSPACE {
        let outcome = match after {
            NextState::Delivered => "sent",
            NextState::Again { .. } => "failed",
            NextState::FailedPermanent => "dropped",
        };
        metrics.operator_events.with_label_values(&[outcome]).inc();
    } else if !matches!(after, NextState::Again { .. }) {
        metrics.deliveries_ended.with_label_values(&[after.state().name()]).inc();
    }
    if let Some(log) = &resources.attempt_log {
        write_line(resources, log, report, after);
    }
}

fn write_line(resources: &Resources, log: &LineLog, report: &AttemptReport, after: NextState) {
    let (ids, attempt) = (&resources.ids, &report.attempt);
    let mut line = Line::new();
    line.text("time", &attempt.started_at.rfc3339());
    line.text("workspace", &report.workspace);
    line.text("webhook", &ids.webhook(report.webhook));
    line.text("delivery", &ids.delivery(report.delivery));
    line.text("event", &report.event_id);
    line.text("type", report.kind.name());
    line.number("attempt", attempt.number.into());
    line.text("outcome", &attempt.outcome.to_string());
    if let Some(status) = attempt.outcome.status() {
        line.number("status", status.into());
    }
    line.thousandths("duration_ms", micros(attempt.took));
    line.text("state", after.state().name());
    if let NextState::Again { due, .. } = after {
        line.text("next_attempt_at", &due.rfc3339());
    }
    log.add(&line.end());
}

fn report_health(resources: &Resources, alert: &HealthAlert) {
    let (level, message, count) = match alert.change {
        HealthChange::Failing => {
            (Level::Warn, "webhook failing", Some(&resources.metrics.warnings))
        }
        HealthChange::Paused => (Level::Warn, "webhook paused", Some(&resources.metrics.pauses)),
        HealthChange::Recovered => (Level::Info, "webhook recovered", None),
    };
    let fields = [
        ("webhook", json!(resources.ids.webhook(alert.webhook))),
        ("workspace", json!(&*alert.workspace)),
        ("outcome", json!(alert.last_outcome.as_ref().map(ToString::to_string))),
    ];
    events::event(level, message, &fields);
    count.into_iter().for_each(IntCounter::inc);
}

/// The mails of an alert to owners, in place of what waits to be sent about a webhook that has
/// recovered, or is paused.
pub(super) fn mails(resources: &Resources, alert: &HealthAlert) -> Vec<QueuedMail> {
    let mails = notices(resources, alert);
    match alert.change {
        HealthChange::Recovered | HealthChange::Paused if mails.is_empty() => {
            vec![QueuedMail::Withdrawn(alert.webhook)]
        }
        HealthChange::Recovered | HealthChange::Paused | HealthChange::Failing => mails,
    }
}

/// The mails of an alert to owners.
fn notices(resources: &Resources, alert: &HealthAlert) -> Vec<QueuedMail> {
    let active = resources.active.load();
    let mail = match alert.change {
        HealthChange::Failing => warning,
        HealthChange::Paused => paused,
        HealthChange::Recovered => return Vec::new(),
    };
    let id = resources.ids.webhook(alert.webhook);
    let about = Incident {
        id: alert.webhook,
        webhook: &id,
        workspace: &alert.workspace,
        url: &alert.url,
        since: alert.since,
        last: alert.last_outcome.as_ref(),
        link: active.settings.mail_link(),
    };
    active.to_owners(&alert.workspace, |owner| mail(&about, owner))
}
