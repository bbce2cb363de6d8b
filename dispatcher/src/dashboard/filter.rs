//! Which deliveries a list shows, and a redelivery is about.

use serde_json::{Map, Value};
use weir_common::pages::form::Form;

use crate::dashboard::api_answers::PreviewData;
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::SignedInRequest;

/// The filters of a list, by their names in the API.
pub(super) const FILTERS: [&str; 8] =
    ["state", "webhook", "type", "event", "tenant", "outcome", "status", "since"];

/// The filters that a form or a query has, for the API.
pub(super) fn filters(asked: &Form, failed: bool) -> Vec<(&'static str, String)> {
    let value = |name: &'static str| match name {
        "state" if failed => "failed_permanent".to_owned(),
        _ => value(asked, name),
    };
    let all = FILTERS.into_iter().map(|name| (name, value(name)));
    all.filter(|(_, value)| !value.is_empty()).collect()
}

/// A filter, for the API.
pub(super) fn value(asked: &Form, name: &str) -> String {
    let value = asked.get(name);
    match name {
        // A field of a date has no time; the script adds that of the reader's midnight.
        "since" if value.len() == 10 => format!("{value}T00:00:00Z"),
        _ => value.to_owned(),
    }
}

/// What to redeliver, for the API.
pub(super) fn scope(filters: &[(&'static str, String)]) -> Map<String, Value> {
    let value = |(name, value): &(&'static str, String)| {
        let number = (*name == "status").then(|| value.parse::<u64>().ok()).flatten();
        ((*name).to_owned(), number.map_or_else(|| value.as_str().into(), Value::from))
    };
    filters.iter().map(value).collect()
}

/// How many match, and how long it would take.
pub(super) async fn preview(
    request: &SignedInRequest<'_>,
    filters: &[(&'static str, String)],
) -> Result<PreviewData, PageError> {
    dry_run(request, scope(filters)).await
}

pub(super) async fn dry_run(
    request: &SignedInRequest<'_>,
    mut body: Map<String, Value>,
) -> Result<PreviewData, PageError> {
    body.insert("dry_run".to_owned(), true.into());
    request.post("deliveries:redeliver", &body.into()).await
}
