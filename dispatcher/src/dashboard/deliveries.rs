//! Lists of deliveries: those that were given up, and all.

use std::collections::BTreeSet;

use askama::Template;
use http::Method;
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::{Form, query};
use weir_common::pages::reply::html;
use weir_common::pages::show::span;
use weir_common::time::UnixTime;

use crate::dashboard::api_answers::{
    DeliveryData, EventTypeData, List, PreviewData, WebhookData, WebhookDetailData,
};
use crate::dashboard::filter::{self, FILTERS, filters};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::SignedInRequest;
use crate::dashboard::show::{delivery_mark, outcome, url_among};
use crate::dashboard::times_in_text::Piece;
use crate::domain::delivery::DeliveryState;
use crate::domain::outcome::OutcomeClass;

/// Deliveries on a page, which has less than 60 KiB with its files.
const ROWS: &str = "25";

/// Webhooks to choose from: more are found by their pages.
const CHOICES: &str = "100";

/// The states to choose from, with their words.
const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Waiting, "Waiting, or in flight"),
    (DeliveryState::Delivered, "Delivered"),
    (DeliveryState::FailedPermanent, "Failed"),
];

#[derive(Template)]
#[template(path = "deliveries.html")]
struct DeliveriesPage {
    frame: Frame,
    /// Whether it lists those that were given up.
    failed: bool,
    asked: Form,
    deliveries: Vec<DeliveryData>,
    /// The first, those of the deliveries here, and the one that is asked for.
    webhooks: Vec<WebhookData>,
    /// Whether the workspace has others.
    more_webhooks: bool,
    types: Vec<EventTypeData>,
    outcomes: Vec<(&'static str, String)>,
    /// How many match, and how long to redeliver them would take; of those given up.
    preview: Option<PreviewData>,
    /// The newest of all, where none was given up.
    newest: Option<DeliveryData>,
    /// For how long those that were given up are kept.
    kept: String,
    /// The queries of the next page and of the export.
    next: Option<String>,
    export: String,
    now: UnixTime,
    failure: Option<PageError>,
}

impl DeliveriesPage {
    fn url_of(&self, id: &str) -> String {
        let found = self.webhooks.iter().find(|webhook| webhook.id == id);
        found.map_or_else(|| id.to_owned(), |webhook| self.shown_url(webhook))
    }

    fn shown_url(&self, webhook: &WebhookData) -> String {
        let all = self.webhooks.iter().map(|webhook| webhook.url.as_str());
        url_among((&webhook.id, &webhook.url), all)
    }

    /// Whether the filter names a webhook that is not among the choices.
    fn names_another(&self) -> bool {
        let named = self.asked.get("webhook");
        !named.is_empty() && self.webhooks.iter().all(|webhook| webhook.id != named)
    }

    /// The time of the filter.
    fn since(&self) -> String {
        filter::value(&self.asked, "since")
    }

    /// Its date in UTC; a field of a date has no time.
    fn since_date(&self) -> &str {
        let since = self.asked.get("since");
        since.get(..10).unwrap_or(since)
    }

    /// Whether there is something to redeliver here, and the visitor may.
    fn selects(&self) -> bool {
        self.preview.as_ref().is_some_and(|preview| preview.total.count > 0)
    }

    /// What the form that selects carries of the filter.
    fn hidden_filters(&self) -> Vec<(&'static str, String)> {
        let filters = filters(&self.asked, self.failed).into_iter();
        filters.filter(|(name, _)| *name != "state").collect()
    }

    fn is_filtered(&self) -> bool {
        FILTERS.iter().any(|name| *name != "state" && self.asked.filled(name).is_some())
    }
}

pub(super) async fn failed(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    list(request, true).await
}

pub(super) async fn all(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    list(request, false).await
}

async fn list(request: &SignedInRequest<'_>, failed: bool) -> Result<Reply, PageError> {
    let asked = request.request.query();
    let filters = filters(&asked, failed);
    let pairs = || filters.iter().map(|(name, value)| (*name, value.as_str()));
    let paged = pairs().chain([("limit", ROWS), ("cursor", asked.get("cursor"))]);
    let list = request.get::<List<DeliveryData>>("deliveries", &query(paged)).await;
    // A filter that the API refuses is shown beside its form.
    let (list, failure) = match list {
        Ok(list) => (list, None),
        Err(failure) if failure.status() == 400 => {
            (List { data: Vec::new(), next_cursor: None }, Some(failure))
        }
        Err(failure) => return Err(failure),
    };
    let webhooks = webhooks(request, &list.data, asked.get("webhook")).await?;
    let preview = match failed && request.may_change() && failure.is_none() && !list.data.is_empty()
    {
        true => Some(filter::preview(request, &filters).await?),
        false => None,
    };
    let newest = match failed && list.data.is_empty() {
        true => newest(request).await?,
        false => None,
    };
    let (section, title) = match failed {
        true => (Section::Failed, "Failed"),
        false => (Section::Deliveries, "Deliveries"),
    };
    let classes = OutcomeClass::ALL.map(OutcomeClass::name);
    let cursor = list.next_cursor.as_deref();
    let next = cursor.map(|cursor| query(pairs().chain([("cursor", cursor)])));
    let export = query(pairs());
    let page = DeliveriesPage {
        frame: Frame::of(request, section, title),
        failed,
        deliveries: list.data,
        more_webhooks: webhooks.next_cursor.is_some(),
        webhooks: webhooks.data,
        types: request.event_types().await?,
        outcomes: classes.map(|name| (name, outcome(name).0)).into(),
        preview,
        newest,
        kept: span(request.request.active.settings.retention.failed),
        next,
        export,
        now: request.request.now(),
        failure,
        asked,
    };
    Ok(html(page.failure.as_ref().map_or(200, PageError::status), &page))
}

/// The newest delivery of the workspace.
async fn newest(request: &SignedInRequest<'_>) -> Result<Option<DeliveryData>, PageError> {
    let one: List<DeliveryData> = request.get("deliveries", &query([("limit", "1")])).await?;
    Ok(one.data.into_iter().next())
}

/// The webhooks to choose from: the first, those of the deliveries, and the one that is asked for.
async fn webhooks(
    request: &SignedInRequest<'_>,
    deliveries: &[DeliveryData],
    asked: &str,
) -> Result<List<WebhookData>, PageError> {
    let mut list: List<WebhookData> = request.get("webhooks", &query([("limit", CHOICES)])).await?;
    let is_identifier = asked.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let asked = Some(asked).filter(|_| is_identifier && !asked.is_empty());
    let wanted = deliveries.iter().map(|one| one.webhook_id.as_str()).chain(asked);
    for id in wanted.collect::<BTreeSet<_>>() {
        if list.data.iter().any(|webhook| webhook.id == id) {
            continue;
        }
        match request.get::<WebhookDetailData>(&format!("webhooks/{id}"), "").await {
            Ok(detail) => list.data.push(detail.webhook),
            // It was deleted: its identifier is shown.
            Err(failure) if failure.status() == 404 => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(list)
}

/// All that match, one in a line, as the API exports them.
pub(super) async fn export(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let filters = filters(&request.request.query(), false);
    let query = query(filters.iter().map(|(name, value)| (*name, value.as_str())));
    let reply = request.call(Method::GET, "deliveries/export", &query, None).await;
    if reply.status != 200 {
        return Err(PageError::of_api(&reply));
    }
    Ok(reply.with("content-disposition", "attachment; filename=\"deliveries.ndjson\""))
}
