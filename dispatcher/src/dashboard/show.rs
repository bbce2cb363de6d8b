//! How pages write times, states and outcomes: the same everywhere. (core)

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use weir_common::pages::show::{Mark, mark, span, utc};
use weir_common::time::UnixTime;

use crate::api::times::time_of;

/// The characters that a list has of a URL's beginning, and of its end, where URLs of one host
/// differ; the webhook's page has all of it.
const URL_SHOWN: (usize, usize) = (34, 13);

/// The characters of an identifier's end that tell a workspace's webhooks apart.
const ID_SHOWN: usize = 6;

/// A URL in a list: shortened in the middle, for many are on a page.
fn short_url(url: &str) -> String {
    let (first, last) = URL_SHOWN;
    let length = url.chars().count();
    if length <= first + last + 1 {
        return url.to_owned();
    }
    let shown = url.chars().take(first).chain(['…']).chain(url.chars().skip(length - last));
    shown.collect()
}

/// The URL of a webhook in a list of some. If that of another, which differs in the middle, is
/// shown alike, it has the end of the webhook's identifier as well.
pub(super) fn url_among<'u>(
    (id, url): (&str, &str),
    mut all: impl Iterator<Item = &'u str>,
) -> String {
    let shown = short_url(url);
    if shown == url || all.all(|one| one == url || short_url(one) != shown) {
        return shown;
    }
    let end = id.get(id.len().saturating_sub(ID_SHOWN)..).unwrap_or(id);
    format!("{shown} (…{end})")
}

/// Classes of outcomes in the order of charts: the name of each, and its class in the style.
pub(super) const CLASSES: [(&str, &str); 6] = [
    ("2xx", "ok"),
    ("other status", "warn"),
    ("5xx", "bad"),
    ("timeout", "late"),
    ("no connection", "gone"),
    ("not allowed", "blocked"),
];

/// A time, as the API wrote it: RFC 3339, in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct When(pub(super) String);

impl When {
    /// A time in seconds since 1970.
    pub(super) fn of_seconds(seconds: u64) -> Self {
        Self(UnixTime(seconds.saturating_mul(1_000_000)).rfc3339())
    }

    /// A time as the API writes it, if the text is one.
    pub(super) fn read(text: &str) -> Option<Self> {
        time_of(text).map(|_| Self(text.to_owned()))
    }

    /// For the attribute of `<time>`.
    pub(super) fn exact(&self) -> &str {
        &self.0
    }

    /// Microseconds since 1970.
    pub(super) fn unix(&self) -> UnixTime {
        time_of(&self.0).unwrap_or(UnixTime(0))
    }

    /// How long ago it was, or how far ahead it is.
    pub(super) fn relative(&self, now: UnixTime) -> String {
        let time = self.unix();
        if time > now {
            format!("in {}", span(time.since(now)))
        } else {
            format!("{} ago", span(now.since(time)))
        }
    }
}

/// `2026-11-24 05:12:03 UTC`; the script writes it in the reader's zone.
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&utc(&self.0))
    }
}

/// The mark of a webhook's state. One without a 2xx for `warn_for` fails, also while too little is
/// tried for a warning.
pub(super) fn webhook_mark(
    state: &str,
    down_since: Option<&When>,
    (warn_for, now): (Duration, UnixTime),
) -> Mark {
    let is_down = down_since.is_some_and(|since| now.since(since.unix()) >= warn_for);
    match state {
        "delivering" if is_down => mark("▲", "Failing", "warn"),
        "delivering" => mark("●", "Delivering", "ok"),
        "failing" => mark("▲", "Failing", "warn"),
        "paused" => mark("■", "Paused", "bad"),
        "disabled" => mark("○", "Disabled", "muted"),
        _ => mark("?", "Unknown", "muted"),
    }
}

/// The mark of a delivery's state.
pub(super) fn delivery_mark(state: &str) -> Mark {
    match state {
        "delivered" => mark("●", "Delivered", "ok"),
        "failed_permanent" => mark("✕", "Failed", "bad"),
        "in_flight" => mark("◐", "In flight", "info"),
        "waiting" => mark("◌", "Waiting", "info"),
        _ => mark("?", "Unknown", "muted"),
    }
}

/// An outcome, as a person says it, and its class in the style.
pub(super) fn outcome(name: &str) -> (String, &'static str) {
    let text = |text: &str, class| (text.to_owned(), class);
    if let Some(status) = name.strip_prefix("status_") {
        let class = match status.as_bytes().first() {
            Some(b'2') => "ok",
            Some(b'5') => "bad",
            _ => "warn",
        };
        return (status.to_owned(), class);
    }
    match name {
        "timeout" => text("no answer in time", "late"),
        "dns" => text("name does not resolve", "gone"),
        "refused" => text("connection refused", "gone"),
        "connection" => text("connection broke", "gone"),
        "tls" => text("TLS failed", "gone"),
        "blocked_address" => text("not allowed", "blocked"),
        _ => text("fault of the platform", "muted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_url_keeps_its_host_and_its_end() {
        let url = |path: usize| format!("https://hooks.example/{}/end", "p".repeat(path));
        assert_eq!(short_url(&url(22)), url(22));
        let long = format!("https://hooks.example/{}…{}/end", "p".repeat(12), "p".repeat(9));
        assert_eq!(short_url(&url(23)), long);
        assert_eq!(short_url(&"ä".repeat(2_000)).chars().count(), 48);
    }

    #[test]
    fn urls_that_differ_in_the_middle_have_the_end_of_an_identifier() {
        let url = |middle: &str| format!("https://hooks.example/{}{middle}/end", "p".repeat(30));
        let (one, other) = (url("one-of-these-two"), url("two-of-these-two"));
        let alike = url("x").replace("x/end", "/other");
        let shown = |of: &str, all: &[&str]| url_among(("wh_0123456789", of), all.iter().copied());
        assert_eq!(shown(&one, &[&one, &alike]), short_url(&one));
        assert_eq!(shown(&one, &[&one, &one]), short_url(&one), "it is the same URL");
        assert_ne!(short_url(&one), short_url(&alike));
        let expected = format!("{} (…456789)", short_url(&one));
        assert_eq!(short_url(&one), short_url(&other));
        assert_eq!(shown(&one, &[&one, &other]), expected);
    }

    #[test]
    fn times_are_absolute_and_relative() {
        let when = When("2026-11-24T05:12:03.000Z".to_owned());
        assert_eq!(when.to_string(), "2026-11-24 05:12:03 UTC");
        let after = |seconds: u64| when.unix().plus(Duration::from_secs(seconds));
        assert_eq!(when.relative(after(0)), "0 seconds ago");
        assert_eq!(when.relative(after(61)), "1 minute ago");
        assert_eq!(when.relative(after(3 * 3_600)), "3 hours ago");
        assert_eq!(when.relative(after(3 * 86_400)), "3 days ago");
        assert_eq!(when.relative(UnixTime(when.unix().0 - 120_000_000)), "in 2 minutes");
    }

    #[test]
    fn each_state_of_the_api_has_a_mark_of_its_own() {
        let at = (Duration::from_secs(1_800), UnixTime(0));
        let states = ["delivering", "failing", "paused", "disabled"];
        let webhooks = states.map(|state| webhook_mark(state, None, at));
        let deliveries =
            ["waiting", "in_flight", "delivered", "failed_permanent"].map(delivery_mark);
        for marks in [webhooks, deliveries] {
            let shapes: std::collections::BTreeSet<_> =
                marks.iter().map(|mark| mark.shape).collect();
            assert_eq!(shapes.len(), marks.len());
            assert!(marks.iter().all(|mark| mark.shape != "?"));
        }
    }

    #[test]
    fn a_webhook_without_a_2xx_for_long_fails_however_few_attempts_there_are() {
        let since = When("1970-01-01T00:00:00.000Z".to_owned());
        let word = |state, minutes: u64| {
            let at = (Duration::from_secs(1_800), UnixTime(minutes * 60_000_000));
            webhook_mark(state, Some(&since), at).word
        };
        assert_eq!((word("delivering", 29), word("delivering", 30)), ("Delivering", "Failing"));
        assert_eq!(word("paused", 90), "Paused");
    }

    #[test]
    fn every_outcome_of_a_receiver_has_words() {
        use crate::domain::outcome::OutcomeClass;
        for class in OutcomeClass::ALL {
            let (text, _) = outcome(class.name());
            assert_ne!(text, "fault of the platform", "{}", class.name());
        }
    }
}
