//! The page of a webhook, and what its buttons do.

use std::time::Duration;

use askama::Template;
use http::Method;
use serde_json::{Value, json};
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::{Form, query};
use weir_common::pages::plot::swatch;
use weir_common::pages::reply::{html, see_other};
use weir_common::pages::show::{Mark, grouped, ms, share, span};
use weir_common::time::UnixTime;

use crate::dashboard::api_answers::{
    ActivityData, DeliveryData, EventTypeData, List, RotatedData, WebhookDetailData,
};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::plot;
use crate::dashboard::request::{SignedInRequest, answer};
use crate::dashboard::show::{CLASSES, When, delivery_mark, outcome, webhook_mark};
use crate::dashboard::times_in_text::{Piece, TextWithTimes};
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
    banner: Vec<TextWithTimes>,
    /// The class of the banner in the style.
    banner_class: &'static str,
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

    /// Whether a test would be sent now.
    fn sends_tests(&self) -> bool {
        !matches!(self.detail.webhook.state.as_str(), "paused" | "disabled")
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

pub(super) async fn show(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = request.get(&path, "").await?;
    let activity: ActivityData = request.get(&format!("{path}/activity"), "").await?;
    let of_it = query([("webhook", id), ("limit", ROWS)]);
    let deliveries: List<DeliveryData> = request.get("deliveries", &of_it).await?;
    let types = request.event_types().await?.into_iter().filter(|one| !one.retired);
    let frame = Frame::of(request, Section::Webhooks, detail.webhook.url.as_str()).refreshing();
    let (now, health) = (request.request.now(), &request.request.active.settings.health);
    let probe =
        |one: &DeliveryData| one.waiting_for.as_ref().is_some_and(|why| why.reason == "probe");
    let probes = deliveries.data.iter().any(probe);
    let facts = BannerFacts { probes, pause_after: health.pause_after, now };
    let down_since = detail.health.down_since.as_ref();
    let mark = webhook_mark(&detail.webhook.state, down_since, (health.warn_for, now));
    let banner = banner(&detail, &activity, &facts);
    // What was tried last has failed, whatever the state is called.
    let banner_class = if down_since.is_some() && mark.class == "ok" { "warn" } else { mark.class };
    let page = WebhookPage {
        frame,
        mark,
        banner,
        banner_class,
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
fn banner(
    page: &WebhookDetailData,
    activity: &ActivityData,
    facts: &BannerFacts,
) -> Vec<TextWithTimes> {
    let health = &page.health;
    let mut lines = Vec::new();
    let last = health.last_outcome.as_deref().map(outcome);
    let since = |at: &Option<When>| {
        at.as_ref().map(|at| format!(" since {}", at.exact())).unwrap_or_default()
    };
    let state = page.webhook.state.as_str();
    match state {
        "failing" => {
            lines.push(format!(
                "This endpoint fails: {} of the last {} attempts did, in 24 hours.",
                grouped(activity.total.failed()),
                grouped(activity.total.attempts)
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "paused" => {
            lines.push(format!(
                "Deliveries are paused{}: no attempt was answered with 2xx for {}. Nothing is \
                 lost.",
                since(&health.paused_since),
                span(facts.pause_after)
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "disabled" => lines.push(format!(
            "It is disabled{}: deliveries are queued and none is sent. Nothing is lost.",
            since(&health.disabled_since)
        )),
        _ if facts.probes => lines.push(
            "It was started again: one delivery is sent first, and the others follow after its \
             2xx."
                .to_owned(),
        ),
        _ if health.down_since.is_some() => {
            lines.extend(last.map(|(text, _)| format!("The last attempt failed: {text}.")));
        }
        _ => return Vec::new(),
    }
    lines.extend(health.last_success_at.as_ref().map(|at| {
        format!("It last answered with 2xx at {}, {}.", at.exact(), at.relative(facts.now))
    }));
    let stopped = match state {
        "paused" => Some("reactivate"),
        "disabled" => Some("enable"),
        _ => None,
    };
    if stopped.is_none() {
        lines.push(page.forecast.if_down.text.0.clone());
    }
    if page.waiting.count > 0 {
        let up = page.forecast.if_up.as_ref().map(|estimate| estimate.text.0.as_str());
        let up = up.unwrap_or_default();
        let (what, waiting) = (stopped.unwrap_or_default(), page.waiting);
        lines.push(match stopped {
            Some(_) => format!(
                "Once you {what} it, one of the {waiting} that wait is sent first. If the answer \
                 is 2xx, the others follow. {up}"
            ),
            None => format!("If it answers from now on, the {waiting} that wait are sent. {up}"),
        });
    }
    lines.into_iter().map(TextWithTimes::from).collect()
}

/// What the banner says apart from the webhook.
struct BannerFacts {
    /// Whether one delivery goes first.
    probes: bool,
    pause_after: Duration,
    now: UnixTime,
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

pub(super) async fn confirm_rotate(
    request: &SignedInRequest<'_>,
    id: &str,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = request.get(&path, "").await?;
    let overlap = request.request.active.settings.secrets.rotation_overlap;
    let text = format!(
        "{} gets a new secret, which is shown once. The present one signs as well for {}: change \
         it in your receiver before that ends.",
        detail.webhook.url,
        span(overlap)
    );
    Ok(html(
        200,
        &ConfirmPage {
            frame: Frame::of(request, Section::Webhooks, "Rotate the secret"),
            question: "Rotate the secret?",
            text,
            button: "Rotate",
            action: request.path(&format!("{path}/rotate")),
            back: request.path(&path),
        },
    ))
}

pub(super) async fn confirm_delete(
    request: &SignedInRequest<'_>,
    id: &str,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = request.get(&path, "").await?;
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
            frame: Frame::of(request, Section::Webhooks, "Delete the webhook"),
            question: "Delete the webhook?",
            text,
            button: "Delete",
            action: request.path(&format!("{path}/delete")),
            back: request.path(&path),
        },
    ))
}

pub(super) async fn rotate(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    // First: once it is rotated, nothing may fail before the secret is shown.
    let detail: WebhookDetailData = request.get(&format!("webhooks/{id}"), "").await?;
    let path = format!("webhooks/{id}:rotate-secret");
    let RotatedData { secret, previous_valid_until } = request.post(&path, &json!({})).await?;
    Ok(webhooks::rotated(request, detail.webhook, secret, previous_valid_until))
}

pub(super) async fn delete(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let reply = request.call(Method::DELETE, &format!("webhooks/{id}"), "", None).await;
    if reply.status == 204 {
        return Ok(see_other(request.path("webhooks")));
    }
    Err(PageError::of_api(&reply))
}

/// Sends a test, and shows its delivery.
pub(super) async fn test(
    request: &SignedInRequest<'_>,
    id: &str,
    form: &Form,
) -> Result<Reply, PageError> {
    let body = form.filled("type").map_or(json!({}), |kind| json!({"type": kind}));
    let sent: DeliveryData = request.post(&format!("webhooks/{id}:ping"), &body).await?;
    Ok(see_other(request.path(&format!("deliveries/{}", sent.id))))
}

pub(super) async fn reactivate(
    request: &SignedInRequest<'_>,
    id: &str,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}:reactivate");
    let _: Value = request.post(&path, &json!({})).await?;
    Ok(see_other(request.path(&format!("webhooks/{id}"))))
}

pub(super) async fn disable(
    request: &SignedInRequest<'_>,
    id: &str,
    disabled: bool,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let body = json!({"disabled": disabled});
    let reply = request.call(Method::PATCH, &path, "", Some(&body)).await;
    answer::<Value>(&reply)?;
    Ok(see_other(request.path(&path)))
}
