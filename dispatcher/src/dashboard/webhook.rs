//! The page of a webhook, and what its buttons do.

use askama::Template;
use http::Method;
use serde_json::{Value, json};
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::{Form, query};
use weir_common::pages::plot::swatch;
use weir_common::pages::reply::{html, see_other};
use weir_common::pages::show::{Mark, grouped, ms, share, span};
use weir_common::time::UnixTime;

use crate::dashboard::data::{
    ActivityData, DeliveryData, EventTypeData, List, RotatedData, WebhookDetailData,
};
use crate::dashboard::failure::Failure;
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::plot;
use crate::dashboard::prose::{Piece, Prose};
use crate::dashboard::show::{CLASSES, delivery_mark, outcome, webhook_mark};
use crate::dashboard::visit::{Visit, answer};
use crate::dashboard::webhooks;

/// Deliveries on the page of their webhook.
const ROWS: &str = "20";

#[derive(Template)]
#[template(path = "webhook.html")]
struct WebhookPage {
    frame: Frame,
    detail: WebhookDetailData,
    mark: Mark,
    activity: ActivityData,
    outcomes: String,
    times: String,
    deliveries: Vec<DeliveryData>,
    /// What the banner says; empty while deliveries succeed.
    banner: Vec<Prose>,
    types: Vec<EventTypeData>,
    now: UnixTime,
}

impl WebhookPage {
    fn path(&self) -> String {
        format!("{}/webhooks/{}", self.frame.base(), self.detail.webhook.id)
    }

    fn share(&self) -> String {
        let total = &self.activity.total;
        share(total.delivered, total.attempts).unwrap_or_else(|| "–".to_owned())
    }

    /// The newest delivery here whose last attempt failed.
    fn last_failed(&self) -> Option<&str> {
        let failed = |one: &&DeliveryData| {
            let outcome = one.last_outcome.as_deref();
            outcome.is_some_and(|name| !name.starts_with("status_2"))
        };
        self.deliveries.iter().find(failed).map(|one| one.id.as_str())
    }
}

/// An answer time; a dash where nothing was answered.
fn answered(time: &Option<f64>) -> String {
    time.map_or_else(|| "–".to_owned(), ms)
}

pub(super) async fn show(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = visit.get(&path, "").await?;
    let activity: ActivityData = visit.get(&format!("{path}/activity"), "").await?;
    let of_it = query([("webhook", id), ("limit", ROWS)]);
    let deliveries: List<DeliveryData> = visit.get("deliveries", &of_it).await?;
    let types = visit.event_types().await?.into_iter().filter(|one| !one.retired);
    let frame = Frame::of(visit, Section::Webhooks, detail.webhook.url.as_str()).refreshing();
    let now = visit.entrance.now();
    let page = WebhookPage {
        frame,
        mark: webhook_mark(&detail.webhook.state),
        banner: banner(&detail, &activity, now),
        outcomes: plot::outcomes(&activity.hours),
        times: plot::answer_times(&activity.hours),
        types: types.collect(),
        deliveries: deliveries.data,
        detail,
        activity,
        now,
    };
    Ok(html(200, &page))
}

/// Why, since when, what happens next, and what to do; in this order.
fn banner(detail: &WebhookDetailData, activity: &ActivityData, now: UnixTime) -> Vec<Prose> {
    let health = &detail.health;
    let mut lines = Vec::new();
    let last = health.last_outcome.as_deref().map(outcome);
    let (failed, all) = (activity.total.failed(), activity.total.attempts);
    match detail.webhook.state.as_str() {
        "failing" => {
            lines.push(format!(
                "This endpoint fails: {} of the last {} attempts did, in 24 hours.",
                grouped(failed),
                grouped(all)
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "paused" => {
            let since = health.paused_since.as_ref();
            let since = since.map(|at| format!(" since {}", at.exact())).unwrap_or_default();
            lines.push(format!(
                "Deliveries are paused{since}: no attempt was answered with 2xx for too long. \
                 Nothing is lost; what waits is sent once you reactivate it."
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "disabled" => {
            let since = health.disabled_since.as_ref();
            let since = since.map(|at| format!(" since {}", at.exact())).unwrap_or_default();
            lines.push(format!(
                "It is disabled{since}: deliveries are queued and none is sent. Nothing is lost."
            ));
        }
        _ if health.down_since.is_some() => {
            lines.extend(last.map(|(text, _)| format!("The last attempt failed: {text}.")));
        }
        _ => return Vec::new(),
    }
    lines.extend(
        health.last_success_at.as_ref().map(|at| {
            format!("It last answered with 2xx at {}, {}.", at.exact(), at.relative(now))
        }),
    );
    let down = &detail.forecast.if_down;
    let steps = [
        ("you get a mail", &down.warned_at),
        ("the first delivery is given up", &down.given_up_at),
        ("deliveries pause, and what waits then is kept", &down.paused_at),
    ];
    let steps = steps
        .into_iter()
        .filter_map(|(what, at)| Some(format!("{what} at {}", at.as_ref()?.exact())));
    let steps: Vec<String> = steps.collect();
    if !steps.is_empty() {
        lines.push(format!("If it stays down: {}.", steps.join("; ")));
    }
    if detail.waiting.count > 0 {
        let up = detail.forecast.if_up.as_ref().map(|estimate| estimate.text.0.as_str());
        lines.push(format!(
            "If it answers from now on, the {} that wait are sent. {}",
            detail.waiting,
            up.unwrap_or_default()
        ));
    }
    lines.into_iter().map(Prose::from).collect()
}

/// A question before something that cannot be undone.
#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage {
    frame: Frame,
    question: &'static str,
    text: String,
    button: &'static str,
    /// Where the form goes, and what leads back.
    action: String,
    back: String,
}

pub(super) async fn confirm_rotate(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = visit.get(&path, "").await?;
    let overlap = visit.entrance.active.settings.secrets.rotation_overlap;
    let text = format!(
        "{} gets a new secret, which is shown once. The present one signs as well for {}: change \
         it in your receiver before that ends.",
        detail.webhook.url,
        span(overlap)
    );
    Ok(html(
        200,
        &ConfirmPage {
            frame: Frame::of(visit, Section::Webhooks, "Rotate the secret"),
            question: "Rotate the secret?",
            text,
            button: "Rotate",
            action: visit.path(&format!("{path}/rotate")),
            back: visit.path(&path),
        },
    ))
}

pub(super) async fn confirm_delete(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = visit.get(&path, "").await?;
    let text = match detail.waiting.count {
        0 => format!("{} receives no more events. Nothing waits for it.", detail.webhook.url),
        _ => format!(
            "{} receives no more events, and the {} deliveries that wait for it are never sent. \
             To keep them, disable it instead.",
            detail.webhook.url, detail.waiting
        ),
    };
    Ok(html(
        200,
        &ConfirmPage {
            frame: Frame::of(visit, Section::Webhooks, "Delete the webhook"),
            question: "Delete the webhook?",
            text,
            button: "Delete",
            action: visit.path(&format!("{path}/delete")),
            back: visit.path(&path),
        },
    ))
}

pub(super) async fn rotate(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}:rotate-secret");
    let RotatedData { secret, previous_valid_until } = visit.post(&path, &json!({})).await?;
    let detail: WebhookDetailData = visit.get(&format!("webhooks/{id}"), "").await?;
    Ok(webhooks::rotated(visit, detail.webhook, secret, previous_valid_until))
}

pub(super) async fn delete(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let reply = visit.call(Method::DELETE, &format!("webhooks/{id}"), "", None).await;
    if reply.status == 204 {
        return Ok(see_other(visit.path("webhooks")));
    }
    Err(Failure::of_api(&reply))
}

/// Sends a test, and shows its delivery.
pub(super) async fn test(visit: &Visit<'_>, id: &str, form: &Form) -> Result<Reply, Failure> {
    let body = form.filled("type").map_or(json!({}), |kind| json!({"type": kind}));
    let sent: DeliveryData = visit.post(&format!("webhooks/{id}:ping"), &body).await?;
    Ok(see_other(visit.path(&format!("deliveries/{}", sent.id))))
}

pub(super) async fn reactivate(visit: &Visit<'_>, id: &str) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}:reactivate");
    let _: Value = visit.post(&path, &json!({})).await?;
    Ok(see_other(visit.path(&format!("webhooks/{id}"))))
}

pub(super) async fn disable(visit: &Visit<'_>, id: &str, disabled: bool) -> Result<Reply, Failure> {
    let path = format!("webhooks/{id}");
    let body = json!({"disabled": disabled});
    let reply = visit.call(Method::PATCH, &path, "", Some(&body)).await;
    answer::<Value>(&reply)?;
    Ok(see_other(visit.path(&path)))
}
