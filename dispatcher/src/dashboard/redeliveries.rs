//! Redelivery of many: the question, the job with its progress, the list of jobs.

use askama::Template;
use serde_json::{Map, Value, json};
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::{Form, query};
use weir_common::pages::reply::{html, see_other};
use weir_common::pages::show::{grouped, span};

use crate::dashboard::api_answers::{JobData, List, PreviewData};
use crate::dashboard::filter::{dry_run, filters, scope};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::SignedInRequest;
use crate::dashboard::times_in_text::Piece;

/// Jobs on a page.
const ROWS: &str = "50";

/// What a form selects: the deliveries that were ticked, or all that match its filters.
fn selected(form: &Form) -> Map<String, Value> {
    if form.get("all").is_empty() {
        let ticked: Vec<&str> = form.all("delivery").collect();
        return Map::from_iter([("deliveries".to_owned(), ticked.into())]);
    }
    scope(&filters(form, true))
}

#[derive(Template)]
#[template(path = "redeliver.html")]
struct RedeliverPage {
    frame: Frame,
    preview: PreviewData,
    /// For how long each is tried.
    retried: String,
    /// The fields of the form that was sent, to be sent again.
    fields: Vec<(&'static str, String)>,
}

/// Asks, with how many there are and how long it takes. It is read, so that Back leads to it.
pub(super) async fn confirm(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let form = &request.request.query();
    let mut fields: Vec<(&'static str, String)> =
        form.all("delivery").map(|id| ("delivery", id.to_owned())).collect();
    if form.filled("all").is_some() {
        fields = filters(form, true);
        fields.push(("all", "yes".to_owned()));
    } else if fields.is_empty() {
        return Err(PageError::nothing_ticked());
    }
    let preview = dry_run(request, selected(form)).await?;
    let frame = Frame::of(request, Section::Failed, "Redeliver");
    let retried = span(request.request.active.settings.retry.give_up_after);
    Ok(html(200, &RedeliverPage { frame, preview, retried, fields }))
}

pub(super) async fn create(request: &SignedInRequest<'_>, form: &Form) -> Result<Reply, PageError> {
    let job: JobData = request.post("deliveries:redeliver", &selected(form).into()).await?;
    Ok(see_other(request.path(&format!("redeliveries/{}", job.id))))
}

pub(super) async fn cancel(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let path = format!("redeliveries/{id}");
    let _: Value = request.post(&format!("{path}:cancel"), &json!({})).await?;
    Ok(see_other(request.path(&path)))
}

/// What a job is at, as a person says it, and its class in the style: its own end is when all are
/// queued, and then they are still sent.
fn state(job: &JobData) -> (&'static str, &'static str) {
    match (job.state.as_str(), job.waiting) {
        ("running", _) => ("Queuing", "info"),
        ("cancelled", 0) => ("Cancelled", "muted"),
        ("cancelled", _) => ("Cancelled, the queued ones wait", "info"),
        (_, 0) => ("Done", "ok"),
        // Whether they are sent depends on their webhooks.
        _ => ("All queued", "info"),
    }
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    job: JobData,
}

impl JobPage {
    fn total(&self) -> u64 {
        self.job.total.map_or(self.job.redelivered, |total| total.count).max(self.job.redelivered)
    }

    /// Those of which it is known what became of them.
    fn done(&self) -> u64 {
        self.job.delivered + self.job.failed_permanent
    }

    /// Whether more is to come.
    fn goes_on(&self) -> bool {
        self.job.state == "running" || self.job.waiting > 0
    }
}

pub(super) async fn show(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let job: JobData = request.get(&format!("redeliveries/{id}"), "").await?;
    let frame = Frame::of(request, Section::Redeliveries, "Redelivery");
    let mut page = JobPage { frame, job };
    page.frame.refreshes = page.goes_on();
    Ok(html(200, &page))
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    jobs: Vec<JobData>,
    next: Option<String>,
}

pub(super) async fn list(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let asked = request.request.query();
    let paged = query([("limit", ROWS), ("cursor", asked.get("cursor"))]);
    let list: List<JobData> = request.get("redeliveries", &paged).await?;
    let frame = Frame::of(request, Section::Redeliveries, "Redeliveries").refreshing();
    let next = list.next_cursor.map(|cursor| query([("cursor", cursor.as_str())]));
    Ok(html(200, &JobsPage { frame, jobs: list.data, next }))
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;
    use crate::dashboard::page::FrameSession;

    #[test]
    fn a_cancelled_redelivery_has_the_time_when_it_was_cancelled() {
        let page = |state: &str| {
            let job = json!({
                "id": "job_1", "state": state, "total": null, "redelivered": 1, "waiting": 0,
                "delivered": 1, "failed_permanent": 0, "created_at": "2026-11-27T00:00:00Z",
                "ended_at": "2026-11-27T00:01:00Z", "estimate": null,
            });
            let session = FrameSession {
                workspace: "ws_acme".to_owned(),
                section: Section::Redeliveries,
                form_token: String::new(),
                made_at: UnixTime(0),
                may_change: true,
                has_limits: false,
            };
            let (title, session) = ("Redelivery".to_owned(), Some(session));
            let frame = Frame { title, session, theme: None, logo: None, refreshes: false };
            let job = serde_json::from_value(job).expect("a job");
            JobPage { frame, job }.render().expect("a page")
        };
        assert!(page("done").contains(", all queued"));
        let cancelled = page("cancelled");
        assert!(cancelled.contains(", cancelled") && !cancelled.contains("all queued"));
    }
}
