//! The page of a delivery: its attempts, what was sent and answered, what happens next.

use askama::Template;
use http::Method;
use serde_json::json;
use weir_common::http_server::reply::Reply;
use weir_common::pages::reply::{html, see_other};
use weir_common::pages::show::Mark;
use weir_common::time::UnixTime;

use crate::dashboard::api_answers::{
    AttemptData, DeliveryData, DeliveryDetailData, StopData, WebhookDetailData,
};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::plot::{self, Axis, AxisMark};
use crate::dashboard::request::SignedInRequest;
use crate::dashboard::show::{delivery_mark, outcome};
use crate::dashboard::times_in_text::Piece;

/// The most of a payload that a page shows; all of it can be loaded.
const PAYLOAD_BYTES_MAX: usize = 8 * 1024;

#[derive(Template)]
#[template(path = "delivery.html")]
struct DeliveryPage {
    frame: Frame,
    delivery: DeliveryData,
    mark: Mark,
    /// Newest first.
    attempts: Vec<AttemptData>,
    /// Whether there were earlier ones.
    attempts_truncated: bool,
    /// The webhook's URL; `None` once it is deleted.
    url: Option<String>,
    axis: Option<String>,
    stops: Vec<StopData>,
    payload: Option<Payload>,
    curl: Option<String>,
    now: UnixTime,
}

impl DeliveryPage {
    /// Whether it can be sent once more by this visitor.
    fn redelivers(&self) -> bool {
        let ended = matches!(self.delivery.state.as_str(), "delivered" | "failed_permanent");
        // One that waits for its next attempt is sent at once.
        let waits = self.delivery.waiting_for.as_ref().is_some_and(|why| why.reason == "retry");
        (ended || waits)
            && !self.delivery.is_test()
            && self.url.is_some()
            && self.payload.is_some()
            && self.frame.may_change()
    }
}

struct Payload {
    text: String,
    cut: bool,
}

pub(super) async fn show(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let DeliveryDetailData { delivery, stops, attempt_log: attempts, attempt_log_truncated } =
        request.get(&format!("deliveries/{id}"), "").await?;
    let path = format!("webhooks/{}", delivery.webhook_id);
    let webhook = match request.get::<WebhookDetailData>(&path, "").await {
        Ok(detail) => Some(detail.webhook),
        Err(failure) if failure.status() == 404 => None,
        Err(failure) => return Err(failure),
    };
    let body = request.call(Method::GET, &format!("events/{}", delivery.event_id), "", None).await;
    let body = (body.status == 200).then(|| String::from_utf8_lossy(&body.body).into_owned());
    let now = request.request.now();
    let waits = matches!(delivery.state.as_str(), "waiting" | "in_flight");
    let title = format!("{} {}", delivery.kind, delivery.event_id);
    let frame = Frame::of(request, Section::Deliveries, title);
    let page = DeliveryPage {
        frame: if waits { frame.refreshing() } else { frame },
        mark: delivery_mark(&delivery.state),
        axis: axis(&delivery, &attempts, &stops, now).map(|axis| plot::axis(&axis)),
        curl: attempts.last().and_then(|last| curl(last, body.as_deref()?)),
        payload: body.map(|body| {
            let text = cut(&body, PAYLOAD_BYTES_MAX);
            Payload { cut: text.len() < body.len(), text: text.to_owned() }
        }),
        attempts: attempts.into_iter().rev().collect(),
        attempts_truncated: attempt_log_truncated,
        url: webhook.map(|webhook| webhook.url),
        stops,
        delivery,
        now,
    };
    Ok(html(200, &page))
}

/// The first bytes of a text, up to the end of a character.
fn cut(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// The time that the delivery has; `None` before the first attempt.
fn axis(
    delivery: &DeliveryData,
    attempts: &[AttemptData],
    stops: &[StopData],
    now: UnixTime,
) -> Option<Axis> {
    // Attempts before a redelivery belong to an earlier schedule.
    let first = delivery.first_attempt_at.as_ref()?.unix();
    let of_schedule = attempts.iter().filter(|one| one.started_at.unix() >= first);
    let ended = delivery.ended_at.as_ref().map(|at| at.unix());
    let until = |stop: &StopData| stop.until.as_ref().map_or(now, |at| at.unix());
    Some(Axis {
        start: first,
        end: ended.or_else(|| delivery.deadline_at.as_ref().map(|at| at.unix())).unwrap_or(now),
        now,
        attempts: of_schedule
            .map(|one| AxisMark { at: one.started_at.unix(), class: outcome(&one.outcome).1 })
            .collect(),
        next: delivery.next_at(now).map(|at| at.unix()),
        stops: stops.iter().map(|stop| (stop.from.unix(), until(stop))).collect(),
        ended: ended.is_some(),
    })
}

/// A command that sends the same request; signatures are masked in what is kept.
fn curl(attempt: &AttemptData, body: &str) -> Option<String> {
    let (url, request) = (attempt.url.as_deref()?, attempt.request.as_ref()?);
    let mut command = format!("curl --globoff -X POST {}", quoted(url));
    // curl writes these itself.
    let own = ["host", "content-length"];
    for header in request.headers.iter().filter(|header| !own.contains(&header.name.as_str())) {
        let header = format!("{}: {}", header.name, header.value);
        command.push_str(&format!(" \\\n  -H {}", quoted(&header)));
    }
    command.push_str(&format!(" \\\n  --data-binary {}", quoted(body)));
    Some(command)
}

/// A word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub(super) async fn redeliver(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let again: DeliveryData =
        request.post(&format!("deliveries/{id}:redeliver"), &json!({})).await?;
    Ok(see_other(request.path(&format!("deliveries/{}", again.id))))
}

/// The whole payload, as it is delivered.
pub(super) async fn event(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let reply = request.call(Method::GET, &format!("events/{id}"), "", None).await;
    if reply.status != 200 {
        return Err(PageError::of_api(&reply));
    }
    Ok(reply.with("content-disposition", "attachment; filename=\"event.json\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("aé", 2), cut("aé", 3), cut("", 3)), ("a", "aé", ""));
    }

    #[test]
    fn a_shell_reads_what_was_quoted() {
        for text in ["plain", "it's", "$(x) `y` \\ \"z\"\nline", "''"] {
            let printed = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(printed.stdout).unwrap(), text);
        }
    }
}
