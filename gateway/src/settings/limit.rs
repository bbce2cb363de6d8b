//! Reads a limit: its key and its quota, with the values that each algorithm has.

use std::time::Duration;

use weir_common::config::document::Spanned;
use weir_common::config::document::table::Table;
use weir_common::limit::{rolling, token_bucket};

use crate::limit::Quota;
use crate::settings::values::small;
use crate::settings::{LimitKey, RawLimit};

pub(super) fn limit(table: &mut Table<'_>) -> RawLimit {
    table.require("key");
    table.require("algorithm");
    let keys = [
        ("workspace", LimitKey::Workspace),
        ("organisation", LimitKey::Organisation),
        ("instance", LimitKey::Instance),
        ("address", LimitKey::Address),
    ];
    let key = table.choice("key", &keys, "What each counter is kept for.");
    let rolling = table.choice(
        "algorithm",
        &[("rolling_window", true), ("token_bucket", false)],
        "rolling_window: so many requests in any window; token_bucket: a rate and a burst.",
    );
    let enforced = table.choice(
        "mode",
        &[("enforce", true), ("observe", false)],
        "observe: logs and counts what it would refuse.",
    );
    let requests =
        table.number("requests", 1..=u64::MAX >> 1, "rolling_window: requests per window.");
    table.set_maximum("requests", rolling::REQUESTS_MAX.into());
    let windows = Duration::from_millis(1)..=rolling::WINDOW_MAX;
    let window = table.span("window", windows, "rolling_window: the length of the window.");
    let tokens = 1..=u64::from(token_bucket::TOKENS_MAX);
    let rate = table.number("rate", tokens.clone(), "token_bucket: tokens per second.");
    let burst = table.number("burst", tokens, "token_bucket: tokens of a full bucket.");
    let quota = if rolling {
        belongs(table, "token_bucket", &[("rate", &rate), ("burst", &burst)]);
        rolling_quota(table, requests, window)
    } else {
        belongs(table, "rolling_window", &[("requests", &requests)]);
        if let Some(window) = window {
            table.fault_at(
                window.at,
                "`window` is used only with algorithm = \"rolling_window\": remove it",
            );
        }
        table.need("rate");
        table.need("burst");
        Quota::Bucket(token_bucket::BucketQuota {
            rate: rate.map_or(1, |rate| small(rate.value)),
            burst: burst.map_or(1, |burst| small(burst.value)),
        })
    };
    let doc = "Whether the headers of responses may show it.";
    let shown = table.flag("headers", true, doc);
    RawLimit { key, quota, enforced, shown }
}

/// Reports values that belong to the other algorithm.
fn belongs(table: &Table<'_>, algorithm: &str, values: &[(&str, &Option<Spanned<u64>>)]) {
    for (name, value) in values {
        if let Some(value) = value {
            let text = format!("`{name}` is used only with algorithm = \"{algorithm}\": remove it");
            table.fault_at(value.at, text);
        }
    }
}

fn rolling_quota(
    table: &mut Table<'_>,
    requests: Option<Spanned<u64>>,
    window: Option<Spanned<Duration>>,
) -> Quota {
    table.need("requests");
    table.need("window");
    if let Some(Spanned { value, at }) =
        requests.as_ref().filter(|n| n.value > rolling::REQUESTS_MAX.into())
    {
        table.fault_at(
            *at,
            format!(
                "`requests` must be at most {} in a rolling window, not {value}: lower it, or use \
                 algorithm = \"token_bucket\"",
                rolling::REQUESTS_MAX,
            ),
        );
    }
    Quota::Rolling(rolling::Quota {
        requests: requests.map_or(1, |requests| small(requests.value)),
        window: window.map_or(Duration::from_secs(1), |window| window.value),
    })
}
