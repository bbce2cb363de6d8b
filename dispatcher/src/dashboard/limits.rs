//! The page of a workspace's limits, as the gateway has them.

use std::time::Duration;

use askama::Template;
use log::Level;
use serde_json::{Map, Value};
use weir_common::http_server::reply::Reply;
use weir_common::log::events;
use weir_common::pages::reply::html;
use weir_common::pages::show::{grouped, share};
use weir_common::time::UnixTime;

use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::PageError;
use crate::dashboard::request::SignedInRequest;
use crate::dashboard::show::When;
use crate::live_config::limits_client::{LimitUsage, LimitsError};

#[derive(Template)]
#[template(path = "limits.html")]
struct LimitsPage {
    frame: Frame,
    read: LimitsRead,
    now: UnixTime,
}

/// What the gateway answered.
enum LimitsRead {
    Rows(Vec<Row>),
    /// Nothing more until then, if it is known: the read has a limit, too.
    UsedUp(Option<When>),
    /// It did not say.
    Unknown,
}

/// A limit, in words.
struct Row {
    limit: String,
    key: String,
    plan: Option<String>,
    allowance: String,
    used: Option<Used>,
    whole_at: Option<When>,
}

/// What is used of a limit.
struct Used {
    used: u64,
    remaining: u64,
    share: String,
}

impl Used {
    /// All that there is.
    fn all(&self) -> u64 {
        self.used.saturating_add(self.remaining)
    }
}

pub(super) async fn show(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let Some(client) = &request.request.active.limits else { return Err(PageError::not_found()) };
    let (answer, now) = (client.read(request.workspace()).await, request.request.now());
    if let Err(error) = &answer {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Warn, "limits of a workspace not read", &fields);
    }
    let frame = Frame::of(request, Section::Limits, "Limits");
    let (read, frame) = match answer {
        Ok(read) => {
            let rows = read.limits.into_iter().map(|usage| row(usage, now)).collect();
            (LimitsRead::Rows(rows), frame.refreshing())
        }
        // Each refresh would be one more request that is refused.
        Err(LimitsError::UsedUp { retry_after }) => {
            let back = retry_after.map(|seconds| now.plus(Duration::from_secs(seconds)));
            (LimitsRead::UsedUp(back.map(|at| When(at.rfc3339()))), frame)
        }
        Err(_) => (LimitsRead::Unknown, frame.refreshing()),
    };
    Ok(html(200, &LimitsPage { frame, read, now }))
}

fn row(usage: LimitUsage, now: UnixTime) -> Row {
    // A workspace without an organisation counts as one of its own.
    let key = usage.key.strip_prefix("workspace:").unwrap_or(&usage.key).to_owned();
    let used = usage.used.zip(usage.remaining).map(|(used, remaining)| Used {
        share: share(used, used.saturating_add(remaining)).unwrap_or_default(),
        used,
        remaining,
    });
    Row {
        allowance: allowance(&usage.allowance),
        limit: usage.limit,
        key,
        plan: usage.plan,
        whole_at: usage.reset.map(When::of_seconds).filter(|at| at.unix() > now),
        used,
    }
}

/// The values of a limit, as a person says them.
fn allowance(values: &Map<String, Value>) -> String {
    let text = |name: &str| match values.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.as_u64().map_or(number.to_string(), grouped),
        _ => String::new(),
    };
    match values.get("algorithm").and_then(Value::as_str) {
        Some("rolling_window") => {
            let window = match text("window").as_str() {
                "1s" => "second".to_owned(),
                "1m" => "minute".to_owned(),
                "1h" => "hour".to_owned(),
                "1d" | "24h" => "day".to_owned(),
                other => other.to_owned(),
            };
            format!("{} per {window}", text("requests"))
        }
        Some("token_bucket") => {
            let rate = match values.get("rate") {
                Some(Value::String(rate)) => rate.clone(),
                _ => format!("{} a second", text("rate")),
            };
            format!("{rate}, {} at once", text("burst"))
        }
        Some("concurrency") => format!("{} at the same time", text("requests")),
        Some("calendar_day") => format!("{} a day ({})", text("requests"), text("time_zone")),
        Some("calendar_month") => {
            format!("{} a month ({})", text("requests"), text("time_zone"))
        }
        // A gateway that is newer than this page.
        _ => text("requests"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unused_limit_has_nothing_to_come_back_and_a_workspace_is_no_organisation() {
        let now = UnixTime(60_000_000);
        let usage = |reset| LimitUsage {
            limit: "organisation".to_owned(),
            key: "workspace:ws_a".to_owned(),
            plan: None,
            allowance: Map::new(),
            used: Some(4),
            remaining: Some(56),
            reset: Some(reset),
        };
        assert_eq!(row(usage(60), now).whole_at, None);
        let used = row(usage(61), now);
        assert_eq!((used.key.as_str(), used.whole_at), ("ws_a", Some(When::of_seconds(61))));
        assert_eq!(used.used.map(|used| used.share).as_deref(), Some("6.7\u{202f}%"));
    }

    #[test]
    fn values_of_every_algorithm_have_words() {
        for (values, words) in [
            (
                json!({"algorithm": "rolling_window", "requests": 60, "window": "1m"}),
                "60 per minute",
            ),
            (
                json!({"algorithm": "rolling_window", "requests": 600, "window": "10m"}),
                "600 per 10m",
            ),
            (
                json!({"algorithm": "token_bucket", "rate": 50, "burst": 200}),
                "50 a second, 200 at once",
            ),
            (
                json!({"algorithm": "token_bucket", "rate": "5000/h", "burst": 10}),
                "5000/h, 10 at once",
            ),
            (json!({"algorithm": "concurrency", "requests": 7}), "7 at the same time"),
            (
                json!({"algorithm": "calendar_day", "requests": 9, "time_zone": "Europe/Oslo"}),
                "9 a day (Europe/Oslo)",
            ),
            (
                json!({"algorithm": "calendar_month", "requests": 9, "time_zone": "UTC"}),
                "9 a month (UTC)",
            ),
            (json!({"algorithm": "another", "requests": 3}), "3"),
        ] {
            assert_eq!(allowance(values.as_object().unwrap()), words);
        }
    }
}
