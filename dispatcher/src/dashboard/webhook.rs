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
    ActivityData, DeliveryData, EventTypeData, HealthData, List, RotatedData, WebhookDetailData,
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
    /// Whether one delivery goes first, and others wait behind it.
    probes: bool,
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
        !self.probes && !matches!(self.detail.webhook.state.as_str(), "paused" | "disabled")
    }

    /// Whether it waits for a new secret.
    fn is_secret_lost(&self) -> bool {
        self.detail.health.secret_lost_since.is_some()
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
    let probes = probes(request, &detail).await?;
    let facts = BannerFacts { probes, may_change: frame.may_change(), now };
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
        probes,
        detail,
        activity,
        now,
    };
    Ok(html(200, &page))
}

/// Whether one delivery goes first, and others wait behind it: those of a webhook all wait for the
/// same probe.
async fn probes(
    request: &SignedInRequest<'_>,
    detail: &WebhookDetailData,
) -> Result<bool, PageError> {
    if detail.waiting.count == 0 {
        return Ok(false);
    }
    let waiting = [("webhook", detail.webhook.id.as_str()), ("state", "waiting"), ("limit", "2")];
    let waiting: List<DeliveryData> = request.get("deliveries", &query(waiting)).await?;
    let probe =
        |one: &DeliveryData| one.waiting_for.as_ref().is_some_and(|why| why.reason == "probe");
    Ok(waiting.data.iter().any(probe))
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
                "This endpoint has been failing{}: {} of the last {} attempts did, in 24 hours.",
                since(&health.failing_since),
                grouped(activity.total.failed()),
                grouped(activity.total.attempts)
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "paused" => {
            lines.push(format!(
                "Deliveries are paused{}: no attempt was answered with 2xx{}. Nothing is lost.",
                since(&health.paused_since),
                since(&health.down_since)
            ));
            lines.extend(last.map(|(text, _)| format!("The last attempt: {text}.")));
        }
        "disabled" if health.secret_lost_since.is_some() => lines.push(format!(
            "Its secret was lost, so it has been disabled{}: deliveries are queued and none is \
             sent until you rotate the secret. No delivery is lost. If it had headers, a \
             certificate or an Ed25519 key, set them again first: they were lost as well.",
            since(&health.secret_lost_since)
        )),
        "disabled" => {
            let paused = if health.paused_since.is_some() { " and paused" } else { "" };
            lines.push(format!(
                "It is disabled{}{paused}{}: deliveries are queued and none is sent. Nothing is \
                 lost.",
                since(&health.disabled_since),
                since(&health.paused_since)
            ));
        }
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
    let steps = steps(health);
    if steps.is_empty() {
        lines.push(page.forecast.if_down.text.0.clone());
    }
    if page.waiting.count > 0 {
        lines.push(what_waits(page, &steps.join(", then ")));
    }
    if state == "failing" && facts.may_change && !facts.probes {
        lines.push("Once you have mended it, press “Send a test” to see its answer.".to_owned());
    }
    lines.into_iter().map(TextWithTimes::from).collect()
}

/// When what waits is sent: after `steps` of its owner, if there are any.
fn what_waits(page: &WebhookDetailData, steps: &str) -> String {
    let up = page.forecast.if_up.as_ref().map(|estimate| estimate.text.0.as_str());
    let (up, waiting) = (up.unwrap_or_default(), page.waiting);
    let sent = match (steps, waiting.is_one()) {
        ("", true) => "If it answers from now on, the delivery that waits is sent.".to_owned(),
        ("", false) => format!("If it answers from now on, the {waiting} that wait are sent."),
        (_, true) => format!("Once you {steps}, the delivery that waits is sent."),
        (_, false) => format!(
            "Once you {steps}, one of the {waiting} that wait is sent first. If the answer is \
             2xx, the others follow."
        ),
    };
    format!("{sent} {up}")
}

/// What an owner does so that deliveries are sent again, in this order; empty if they are.
fn steps(health: &HealthData) -> Vec<&'static str> {
    let stops = [
        (&health.secret_lost_since, "rotate the secret"),
        (&health.disabled_since, "enable it"),
        (&health.paused_since, "reactivate it"),
    ];
    stops.into_iter().filter_map(|(since, step)| since.as_ref().map(|_| step)).collect()
}

/// What the banner says apart from the webhook.
struct BannerFacts {
    /// Whether one delivery goes first.
    probes: bool,
    /// Whether the session may press its buttons.
    may_change: bool,
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
    let text = rotation(&detail, overlap);
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

/// What a rotation does.
fn rotation(detail: &WebhookDetailData, overlap: Duration) -> String {
    let url = &detail.webhook.url;
    match detail.health.secret_lost_since {
        Some(_) => format!(
            "{url} gets a new secret, which is shown once. The present one was lost and signs \
             nothing any more: the next delivery is signed with the new one alone."
        ),
        None => format!(
            "{url} gets a new secret, which is shown once. The present one signs as well for {}: \
             change it in your receiver before that ends.",
            span(overlap)
        ),
    }
}

pub(super) async fn confirm_delete(
    request: &SignedInRequest<'_>,
    id: &str,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let detail: WebhookDetailData = request.get(&path, "").await?;
    let text = match detail.waiting.count {
        0 => format!("{} receives no more events. Nothing waits for it.", detail.webhook.url),
        _ => {
            let wait = match detail.waiting.is_one() {
                true => "delivery that waits for it is".to_owned(),
                false => format!("{} deliveries that wait for it are", detail.waiting),
            };
            format!(
                "{} receives no more events, and the {wait} never sent. To keep what waits, \
                 disable it instead.",
                detail.webhook.url
            )
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::page::FrameSession;

    const SINCE: &str = "2026-11-24T05:12:03.000Z";
    const FACTS: BannerFacts = BannerFacts { probes: false, may_change: true, now: UnixTime(0) };

    /// A webhook with these members of its health, and its activity.
    fn webhook(state: &str, waiting: u64, health: &[&str]) -> (WebhookDetailData, ActivityData) {
        let health: Value = health.iter().map(|name| (*name, SINCE)).collect();
        let waiting = json!({"count": waiting, "at_least": false});
        let detail = json!({
            "id": "wh_1", "url": "https://a.example/", "events": [], "created_at": SINCE,
            "state": state, "metadata": {}, "headers": {}, "answers": "failures",
            "health": health, "waiting": waiting,
            "forecast": {"if_down": {"text": "If it stays down: …"}},
        });
        let total = json!({
            "attempts": 0, "delivered": 0, "client_errors": 0, "server_errors": 0, "timeouts": 0,
            "unreachable": 0, "blocked": 0,
        });
        let activity = json!({"waiting": waiting, "total": total, "hours": []});
        let read = "a webhook and its activity";
        (serde_json::from_value(detail).expect(read), serde_json::from_value(activity).expect(read))
    }

    /// The lines of a webhook's banner, and its page.
    fn shown(state: &str, waiting: u64, health: &[&str], probes: bool) -> (String, String) {
        let (detail, activity) = webhook(state, waiting, health);
        let lines = banner(&detail, &activity, &BannerFacts { probes, ..FACTS });
        let text: Vec<_> = lines.into_iter().map(|line| line.0).collect();
        let session = FrameSession {
            workspace: "ws_a".to_owned(),
            section: Section::Webhooks,
            form_token: String::new(),
            made_at: UnixTime(0),
            may_change: true,
            has_limits: false,
        };
        let title = String::new();
        let frame =
            Frame { title, session: Some(session), theme: None, logo: None, refreshes: false };
        let page = WebhookPage {
            frame,
            mark: webhook_mark(state, None, (Duration::ZERO, UnixTime(0))),
            detail,
            activity,
            outcomes: String::new(),
            times: String::new(),
            deliveries: Vec::new(),
            banner: Vec::new(),
            banner_class: "",
            types: Vec::new(),
            probes,
            now: UnixTime(0),
        };
        (text.join(" "), page.render().expect("a page"))
    }

    #[test]
    fn the_page_of_a_stopped_webhook_has_the_steps_that_start_it_again_in_order() {
        let (lost, disabled, paused) = ("secret_lost_since", "disabled_since", "paused_since");
        for (state, health, steps) in [
            ("paused", &[paused][..], "Once you reactivate it, one of the 3 that wait"),
            ("disabled", &[disabled], "Once you enable it, one of the 3"),
            ("disabled", &[disabled, paused], "Once you enable it, then reactivate it, one of"),
            ("disabled", &[lost], "Once you rotate the secret, one of the 3"),
            (
                "disabled",
                &[lost, disabled, paused],
                "Once you rotate the secret, then enable it, then reactivate it, one of",
            ),
        ] {
            let (text, page) = shown(state, 3, health, false);
            assert!(text.contains(steps), "{health:?}: {text}");
            let is_lost = health.contains(&lost);
            let why = format!("secret was lost, so it has been disabled since {SINCE}");
            assert_eq!(text.contains(&why), is_lost, "{text}");
            assert_eq!(page.contains(">Enable</button>"), !is_lost && state == "disabled");
            assert_eq!(page.matches("/webhooks/wh_1/rotate").count(), 1, "{page}");
            assert_eq!(page.contains("class=\"button main\" href"), is_lost, "{page}");
        }
    }

    #[test]
    fn one_delivery_that_waits_is_counted_as_one() {
        let (text, _) = shown("disabled", 1, &["disabled_since"], false);
        assert!(text.contains("Once you enable it, the delivery that waits is sent."), "{text}");
        let (text, _) = shown("failing", 1, &[], false);
        assert!(text.contains("from now on, the delivery that waits is sent."), "{text}");
    }

    #[test]
    fn a_banner_has_since_when_an_endpoint_fails_and_what_to_press() {
        let (text, page) = shown("failing", 3, &["failing_since", "down_since"], false);
        assert!(text.contains(&format!("has been failing since {SINCE}: ")), "{text}");
        assert!(text.contains("press “Send a test”") && page.contains(">Send a test<"), "{text}");
        let (text, page) = shown("failing", 3, &["failing_since", "down_since"], true);
        assert!(!text.contains("press") && !page.contains(">Send a test<"), "{text}");
        let (text, _) = shown("paused", 3, &["paused_since", "down_since"], false);
        assert!(text.contains(&format!("answered with 2xx since {SINCE}. ")), "{text}");
    }

    #[test]
    fn a_test_is_offered_only_where_one_would_be_sent() {
        for (state, probes, expected) in [
            ("delivering", false, true),
            ("delivering", true, false),
            ("paused", false, false),
            ("disabled", false, false),
        ] {
            let (_, page) = shown(state, 3, &[], probes);
            assert_eq!(page.contains("Send a test"), expected, "{state} {probes}");
        }
    }

    #[test]
    fn a_rotation_keeps_the_present_secret_for_a_while_unless_it_was_lost() {
        let day = Duration::from_secs(86_400);
        let of = |health: &[&str]| rotation(&webhook("disabled", 0, health).0, day);
        assert!(of(&["disabled_since"]).contains("The present one signs as well for "));
        let lost = of(&["secret_lost_since"]);
        assert!(lost.contains("was lost") && !lost.contains("as well"), "{lost}");
    }
}
