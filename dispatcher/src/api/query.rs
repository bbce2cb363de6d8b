//! Reads the query of a request: known parameters, each once, each as it should be. What is wrong
//! with it is all named at once: names that are not known beside values that do not fit.

use percent_encoding::percent_decode_str;
use weir_common::time::UnixTime;

use crate::api::routes::Parameter;
use crate::api::times::time_of;
use crate::api::validate::hint;
use crate::domain::delivery::{Cursor, DeliveryState};
use crate::domain::event::EventType;
use crate::domain::id::WebhookId;
use crate::domain::public_id::PublicIds;
use crate::http_errors::{Flaw, Flaws};
use crate::store::Filter;

/// On a page where nobody asks for more or less.
pub(super) const LIMIT_DEFAULT: usize = 20;

/// On a page at most: what one read of the store gives without making others wait.
pub(super) const LIMIT_MAX: usize = 100;

/// A query that was taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// The parameters that are known, decoded, none of them twice.
    found: Vec<(&'static str, String)>,
    /// What is wrong so far; what else is, shows where the values are read.
    flaws: Flaws,
}

impl Query {
    /// Takes apart what stood behind the `?`.
    pub(super) fn read(text: Option<&str>, known: &'static [Parameter]) -> Self {
        let Self { mut found, mut flaws } = Self::default();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Ok(value) = percent_decode_str(value).decode_utf8() else {
                flaws.add(|| Flaw::of_parameter(name, "is not valid UTF-8"));
                continue;
            };
            let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
                flaws.add(|| unknown(name, known));
                continue;
            };
            if found.iter().any(|(given, _)| *given == parameter.name) {
                flaws.add(|| Flaw::of_parameter(name, "appears twice"));
            } else {
                found.push((parameter.name, value.into_owned()));
            }
        }
        Self { found, flaws }
    }

    /// Of an operation that takes no parameters.
    pub(super) fn nothing(&self) -> Result<(), Flaws> {
        if self.flaws.is_empty() { Ok(()) } else { Err(self.flaws.clone()) }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.found.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// The value of `name` as `read` reads it; where it cannot, it must be `wanted`.
    fn value<T>(
        &self,
        flaws: &mut Flaws,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = read(self.text(name)?);
        if value.is_none() {
            flaws.add(|| Flaw::of_parameter(name, format!("must be {wanted}")));
        }
        value
    }

    /// How many a page holds.
    fn limit(&self, flaws: &mut Flaws) -> usize {
        let wanted = format!("a whole number from 1 to {LIMIT_MAX}");
        let read = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|limit| digits && (1..=LIMIT_MAX).contains(limit))
        };
        self.value(flaws, "limit", &wanted, read).unwrap_or(LIMIT_DEFAULT)
    }

    /// Which page of webhooks: after which, and how many.
    pub(super) fn webhooks(&self, ids: &PublicIds) -> Result<(Option<WebhookId>, usize), Flaws> {
        let mut flaws = self.flaws.clone();
        let after = self.value(&mut flaws, "cursor", CURSOR, |text| ids.webhook_of(text));
        let limit = self.limit(&mut flaws);
        if flaws.is_empty() { Ok((after, limit)) } else { Err(flaws) }
    }

    /// Which page of which deliveries: after which, and how many.
    pub(super) fn deliveries(
        &self,
        ids: &PublicIds,
    ) -> Result<(Filter, Option<Cursor>, usize), Flaws> {
        let mut flaws = self.flaws.clone();
        let filter = Filter {
            state: self.value(&mut flaws, "state", STATE, state_of),
            webhook: self.value(&mut flaws, "webhook", WEBHOOK, |text| ids.webhook_of(text)),
            kind: self.kind(&mut flaws),
            since: self.time(&mut flaws, "since"),
            until: self.time(&mut flaws, "until"),
        };
        let after = self.value(&mut flaws, "cursor", CURSOR, |text| ids.cursor_of(text));
        let limit = self.limit(&mut flaws);
        if flaws.is_empty() { Ok((filter, after, limit)) } else { Err(flaws) }
    }

    fn kind(&self, flaws: &mut Flaws) -> Option<EventType> {
        let text = self.text("type")?;
        let kind = EventType::of_name(text);
        if kind.is_none() {
            let all = EventType::ALL.into_iter().chain([EventType::Ping]);
            let names: Vec<&str> = all.map(EventType::name).collect();
            let detail = format!("is not a known event type; {}", hint(text, &names));
            flaws.add(|| Flaw::of_parameter("type", detail));
        }
        kind
    }

    fn time(&self, flaws: &mut Flaws, name: &str) -> Option<UnixTime> {
        self.value(flaws, name, TIME, time_of)
    }
}

const CURSOR: &str = "the `next_cursor` of a page";
const STATE: &str = "`waiting` (which those in flight are as well), `delivered` or \
                     `failed_permanent`";
const WEBHOOK: &str = "the `id` of a webhook";

/// How times are written.
pub(super) const TIME: &str = "a time such as 2026-11-20T14:03:00Z";

fn state_of(text: &str) -> Option<DeliveryState> {
    DeliveryState::ALL.into_iter().find(|state| state.to_string() == text)
}

fn unknown(name: &str, known: &[Parameter]) -> Flaw {
    let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
    let hint = match names.as_slice() {
        [] => "this path takes no parameters".to_owned(),
        names => hint(name, names),
    };
    Flaw::of_parameter(name, format!("is unknown; {hint}"))
}

#[cfg(test)]
mod tests {
    use crate::domain::id::DeliveryId;

    use super::*;
    use crate::api::routes::{DELIVERIES_QUERY, LIST_QUERY};

    fn flaws(text: &str) -> String {
        let ids = PublicIds::new([7; 32]);
        match Query::read(Some(text), DELIVERIES_QUERY).deliveries(&ids) {
            Ok(found) => panic!("{found:?}"),
            Err(flaws) => flaws.pointers().join(" "),
        }
    }

    #[test]
    fn a_query_says_which_deliveries_and_which_page() {
        let ids = PublicIds::new([7; 32]);
        let after = Cursor { created_at: Some(UnixTime(5)), id: DeliveryId(9) };
        let (webhook, cursor) = (ids.webhook(WebhookId(3)), ids.cursor(after));
        let text = format!(
            "state=failed_permanent&webhook={webhook}&type=user.created&limit=100&cursor={cursor}\
             &since=1970-01-01T00%3A00%3A01Z&until=1970-01-01T01:00:02+01:00&"
        );
        let query = Query::read(Some(&text), DELIVERIES_QUERY);
        let filter = Filter {
            state: Some(DeliveryState::FailedPermanent),
            webhook: Some(WebhookId(3)),
            kind: Some(EventType::UserCreated),
            since: Some(UnixTime(1_000_000)),
            until: Some(UnixTime(2_000_000)),
        };
        assert_eq!(query.deliveries(&ids), Ok((filter, Some(after), 100)));
    }

    #[test]
    fn no_query_is_the_first_page_of_everything() {
        let ids = PublicIds::new([7; 32]);
        for text in [None, Some("")] {
            let query = Query::read(text, DELIVERIES_QUERY);
            assert_eq!(query.deliveries(&ids), Ok((Filter::default(), None, LIMIT_DEFAULT)));
        }
        let query = Query::read(None, LIST_QUERY);
        assert_eq!(query.webhooks(&ids), Ok((None, LIMIT_DEFAULT)));
    }

    #[test]
    fn every_parameter_that_is_wrong_is_named() {
        let webhook = PublicIds::new([8; 32]).webhook(WebhookId(3));
        for (text, names) in [
            ("page=2&stat=x", "page stat"),
            ("colour=x&state=lost&limit=0&since=yesterday", "colour state since limit"),
            ("limit=2&limit=2", "limit"),
            ("limit=0&limit=2&webhook=%ff&type=x", "limit webhook type limit"),
            ("state=%ff", "state"),
            ("state=in_flight&type=x&since=yesterday&until=1", "state type since until"),
            (&format!("webhook={webhook}&cursor={webhook}"), "webhook cursor"),
            ("state=&limit=", "state limit"),
            ("%6cimit=1", "%6cimit"),
        ] {
            assert_eq!(flaws(text), names, "{text}");
        }
        for limit in ["0", "101", "-1", "+5", "1.0", "5x", "99999999999999999999", " 5", "\u{664}"]
        {
            assert_eq!(flaws(&format!("limit={limit}")), "limit", "{limit}");
        }
    }
    #[test]
    fn a_type_that_is_unknown_is_told_which_there_are() {
        let ids = PublicIds::new([7; 32]);
        let said = |text| match Query::read(Some(text), DELIVERIES_QUERY).deliveries(&ids) {
            Ok(found) => panic!("{found:?}"),
            Err(flaws) => flaws.to_string(),
        };
        let meant = "type: is not a known event type; did you mean `user.created`?";
        assert_eq!(said("type=user.create"), meant);
        let known = said("type=zebra");
        assert!(known.contains("known: user.created, user.updated"), "{known}");
        assert!(known.ends_with("webhook.ping"), "{known}");
    }

    #[test]
    fn a_path_without_parameters_says_that_it_takes_none() {
        let flaws = Query::read(Some("a=1&b"), &[]).nothing().expect_err("it takes none");
        assert_eq!(flaws.pointers(), ["a", "b"]);
        assert!(flaws.to_string().contains("this path takes no parameters"), "{flaws}");
        assert_eq!(Query::read(None, &[]).nothing(), Ok(()));
    }
}
