//! Parses the query of a request: known parameters, each at most once, each with a valid value.
//!
//! Invariant: all errors are reported together: unknown names and invalid values.

use std::ops::RangeInclusive;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use weir_common::identifier::is_identifier;
use weir_common::time::UnixTime;

use crate::api::event_types::TypeNames;
use crate::api::times::time_of;
use crate::domain::delivery::DeliveryState;
use crate::domain::event::EventType;
use crate::domain::id::{JobId, WebhookId};
use crate::domain::outcome::OutcomeClass;
use crate::domain::public_id::PublicIds;
use crate::domain::webhook::WebhookState;
use crate::domain::webhook::filter::WebhookFilter;
use crate::http_errors::{ValidationError, ValidationErrors};
use crate::store::types::{Filter, Order, Paging};

/// The page size without a `limit`.
pub(super) const LIMIT_DEFAULT: usize = 20;

/// The largest page: one read of the store this large does not delay the others.
pub(super) const LIMIT_MAX: usize = 100;

/// A query, split into parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// Known parameters, decoded, without duplicates.
    found: Vec<(&'static str, String)>,
    /// Errors so far; invalid values are found when they are parsed.
    errors: ValidationErrors,
}

/// The webhooks that an operator means: a filter and a page, or whether to change nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperatorQuery {
    pub(crate) filter: WebhookFilter,
    pub(crate) after: Option<WebhookId>,
    pub(crate) limit: usize,
    pub(crate) dry_run: bool,
}

impl Query {
    /// Splits the text after the `?`, of which these parameters are known.
    pub(crate) fn read(text: Option<&str>, known: &[&'static str]) -> Self {
        let Self { mut found, mut errors } = Self::default();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Ok(value) = percent_decode_str(value).decode_utf8() else {
                errors.add(|| ValidationError::in_query(name, "is not valid UTF-8"));
                continue;
            };
            let Some(parameter) = known.iter().copied().find(|known| *known == name) else {
                unknown(name, known, &mut errors);
                continue;
            };
            if found.iter().any(|(given, _)| *given == parameter) {
                errors.add(|| ValidationError::in_query(name, "appears twice"));
            } else {
                found.push((parameter, value.into_owned()));
            }
        }
        Self { found, errors }
    }

    /// The errors of an operation without parameters.
    pub(crate) fn none(&self) -> Result<(), ValidationErrors> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.errors.clone()) }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.found.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// The value of `name`, parsed by `read`; an error states that it must be `wanted`.
    fn value<T>(
        &self,
        errors: &mut ValidationErrors,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = read(self.text(name)?);
        if value.is_none() {
            errors.add(|| ValidationError::in_query(name, format!("must be {wanted}")));
        }
        value
    }

    fn limit(&self, errors: &mut ValidationErrors) -> usize {
        let wanted = format!("a whole number from 1 to {LIMIT_MAX}");
        let read = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|limit| digits && (1..=LIMIT_MAX).contains(limit))
        };
        self.value(errors, "limit", &wanted, read).unwrap_or(LIMIT_DEFAULT)
    }

    /// The cursor and the limit of a page of webhooks.
    pub(super) fn webhooks(
        &self,
        ids: &PublicIds,
    ) -> Result<(Option<WebhookId>, usize), ValidationErrors> {
        self.page(|text| ids.webhook_of(text))
    }

    /// The cursor and the limit of a page of redelivery jobs.
    pub(super) fn jobs(&self, ids: &PublicIds) -> Result<(Option<JobId>, usize), ValidationErrors> {
        self.page(|text| ids.job_of(text))
    }

    fn page<Id>(
        &self,
        id_of: impl FnOnce(&str) -> Option<Id>,
    ) -> Result<(Option<Id>, usize), ValidationErrors> {
        let mut errors = self.errors.clone();
        let after = self.value(&mut errors, "cursor", CURSOR, id_of);
        let limit = self.limit(&mut errors);
        if errors.is_empty() { Ok((after, limit)) } else { Err(errors) }
    }

    /// The filter of a list of deliveries, and its page.
    pub(super) fn deliveries(
        &self,
        ids: &PublicIds,
        types: &TypeNames<'_>,
    ) -> Result<(Filter, Paging), ValidationErrors> {
        let mut errors = self.errors.clone();
        let filter = Filter {
            state: self.value(&mut errors, "state", STATE, state_of),
            webhook: self.value(&mut errors, "webhook", WEBHOOK, |text| ids.webhook_of(text)),
            kind: self.kind(types, &mut errors),
            event: self.value(&mut errors, "event", IDENTIFIER, identifier_of),
            tenant: self.value(&mut errors, "tenant", IDENTIFIER, identifier_of),
            outcome: self.outcome(&mut errors),
            status: self.value(&mut errors, "status", STATUS, status_of),
            since: self.time(&mut errors, "since"),
            until: self.time(&mut errors, "until"),
        };
        let order = self.value(&mut errors, "order", ORDER, order_of).unwrap_or_default();
        let after = self.value(&mut errors, "cursor", CURSOR, |text| ids.cursor_of(text));
        let limit = self.limit(&mut errors);
        if errors.is_empty() { Ok((filter, Paging { order, after, limit })) } else { Err(errors) }
    }

    /// Which webhooks of all workspaces an operator means.
    pub(crate) fn operator_webhooks(
        &self,
        ids: &PublicIds,
    ) -> Result<OperatorQuery, ValidationErrors> {
        let mut errors = self.errors.clone();
        let filter = WebhookFilter {
            workspace: self.value(&mut errors, "workspace", IDENTIFIER, identifier_of),
            state: self.value(&mut errors, "state", WEBHOOK_STATE, webhook_state_of),
            host: self.value(&mut errors, "host", HOST, host_of),
            since: self.time(&mut errors, "since"),
            until: self.time(&mut errors, "until"),
        };
        let after = self.value(&mut errors, "cursor", CURSOR, |text| ids.webhook_of(text));
        let limit = self.limit(&mut errors);
        let dry_run =
            self.value(&mut errors, "dry_run", "`true` or `false`", |text| text.parse().ok());
        let dry_run = dry_run.unwrap_or(false);
        if errors.is_empty() {
            Ok(OperatorQuery { filter, after, limit, dry_run })
        } else {
            Err(errors)
        }
    }

    fn outcome(&self, errors: &mut ValidationErrors) -> Option<OutcomeClass> {
        let text = self.text("outcome")?;
        let class = OutcomeClass::of_name(text);
        if class.is_none() {
            errors.add_unknown(text, OutcomeClass::ALL.map(|one| one.name()), |hint| {
                ValidationError::in_query("outcome", format!("is unknown{hint}"))
            });
        }
        class
    }

    fn kind(&self, types: &TypeNames<'_>, errors: &mut ValidationErrors) -> Option<EventType> {
        let text = self.text("type")?;
        let kind = types.delivered().find(|one| one.name() == text);
        if kind.is_none() {
            errors.add_unknown(text, types.delivered().map(EventType::name), |hint| {
                ValidationError::in_query("type", format!("is not a known event type{hint}"))
            });
        }
        kind
    }

    fn time(&self, errors: &mut ValidationErrors, name: &str) -> Option<UnixTime> {
        self.value(errors, name, TIME, time_of)
    }
}

const CURSOR: &str = "the `next_cursor` of a page";
const STATE: &str = "`waiting` (deliveries in flight included), `delivered` or \
                     `failed_permanent`";
const WEBHOOK: &str = "the `id` of a webhook";

/// The expected form of an identifier that a customer or the ingest chose.
pub(super) const IDENTIFIER: &str = "an identifier: letters, digits, `_` and `-`, 64 at most";
const ORDER: &str = "`newest` or `oldest`, whichever is first";

const WEBHOOK_STATE: &str = "`paused`, `failing` or `disabled`";
const HOST: &str = "a host name, or an address (IPv6 in brackets), without a port";

const STATUS: &str = "a status: three digits";

/// The statuses that a filter may name.
pub(super) const STATUSES: RangeInclusive<u16> = 100..=999;

/// The expected form of a time.
pub(super) const TIME: &str = "a time such as 2026-11-20T14:03:00Z";

fn state_of(text: &str) -> Option<DeliveryState> {
    DeliveryState::ALL.into_iter().find(|state| state.to_string() == text)
}

fn webhook_state_of(text: &str) -> Option<WebhookState> {
    match text {
        "paused" => Some(WebhookState::Paused),
        "failing" => Some(WebhookState::Failing),
        "disabled" => Some(WebhookState::Disabled),
        _ => None,
    }
}

/// A host as canonical URLs have it.
fn host_of(text: &str) -> Option<String> {
    url::Host::parse(text).ok().map(|host| host.to_string())
}

/// An identifier of an event, a tenant or a workspace.
pub(super) fn identifier_of(text: &str) -> Option<Arc<str>> {
    is_identifier(text).then(|| text.into())
}

fn status_of(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|status| digits && STATUSES.contains(status))
}

fn order_of(text: &str) -> Option<Order> {
    match text {
        "newest" => Some(Order::Newest),
        "oldest" => Some(Order::Oldest),
        _ => None,
    }
}

fn unknown(name: &str, known: &[&str], errors: &mut ValidationErrors) {
    if known.is_empty() {
        let detail = "is unknown; this path accepts no parameters";
        return errors.add(|| ValidationError::in_query(name, detail));
    }
    errors.add_unknown(name, known.iter().copied(), |hint| {
        ValidationError::in_query(name, format!("is unknown{hint}"))
    });
}

#[cfg(test)]
mod tests {
    use crate::domain::delivery::Cursor;
    use crate::domain::id::DeliveryId;

    use super::*;
    use crate::catalogue::Catalogue;

    fn types(catalogue: &Catalogue) -> TypeNames<'_> {
        TypeNames::of(catalogue, Vec::new())
    }
    use crate::api::routes::names;
    use crate::api::routes::table::{DELIVERIES_QUERY, LIST_QUERY};

    fn errors(text: &str) -> String {
        let ids = PublicIds::new([7; 32]);
        match Query::read(Some(text), &names(DELIVERIES_QUERY))
            .deliveries(&ids, &types(&Catalogue::shipped()))
        {
            Ok(found) => panic!("{found:?}"),
            Err(errors) => errors.pointers().join(" "),
        }
    }

    #[test]
    fn a_query_is_parsed_into_a_filter_a_cursor_and_a_limit() {
        let ids = PublicIds::new([7; 32]);
        let after = Cursor { created_at: Some(UnixTime(5)), id: DeliveryId(9) };
        let (webhook, cursor) = (ids.webhook(WebhookId(3)), ids.cursor(after));
        let text = format!(
            "state=failed_permanent&webhook={webhook}&type=user.created&limit=100&cursor={cursor}\
             &since=1970-01-01T00%3A00%3A01Z&until=1970-01-01T01:00:02+01:00&\
             event=evt_1&tenant=tn_1&outcome=status_5xx&status=503&order=oldest&"
        );
        let query = Query::read(Some(&text), &names(DELIVERIES_QUERY));
        let filter = Filter {
            state: Some(DeliveryState::FailedPermanent),
            webhook: Some(WebhookId(3)),
            kind: Some(EventType::new("user.created")),
            event: Some("evt_1".into()),
            tenant: Some("tn_1".into()),
            outcome: OutcomeClass::of_name("status_5xx"),
            status: Some(503),
            since: Some(UnixTime(1_000_000)),
            until: Some(UnixTime(2_000_000)),
        };
        assert_eq!(
            query.deliveries(&ids, &types(&Catalogue::shipped())),
            Ok((filter, Paging { order: Order::Oldest, after: Some(after), limit: 100 }))
        );
    }

    #[test]
    fn an_empty_query_is_the_first_page_of_everything() {
        let ids = PublicIds::new([7; 32]);
        for text in [None, Some("")] {
            let query = Query::read(text, &names(DELIVERIES_QUERY));
            assert_eq!(
                query.deliveries(&ids, &types(&Catalogue::shipped())),
                Ok((Filter::default(), Paging::first(LIMIT_DEFAULT)))
            );
        }
        let query = Query::read(None, &names(LIST_QUERY));
        assert_eq!(query.webhooks(&ids), Ok((None, LIMIT_DEFAULT)));
    }

    #[test]
    fn an_operator_finds_webhooks_by_workspace_state_host_and_time() {
        let ids = PublicIds::new([7; 32]);
        let names = ["workspace", "state", "host", "since", "until", "cursor", "limit", "dry_run"];
        let read = |text: &str| Query::read(Some(text), &names).operator_webhooks(&ids);
        let after = Some(WebhookId(3));
        let filter = WebhookFilter {
            workspace: Some("ws_a".into()),
            state: Some(WebhookState::Failing),
            host: Some("xn--bcher-kva.example".to_owned()),
            since: Some(UnixTime(1_000_000)),
            until: Some(UnixTime(2_000_000)),
        };
        let text = format!(
            "workspace=ws_a&state=failing&host=B%C3%9CCHER.example&since=1970-01-01T00:00:01Z\
             &until=1970-01-01T00:00:02Z&cursor={}&limit=7&dry_run=true",
            ids.webhook(WebhookId(3))
        );
        assert_eq!(read(&text), Ok(OperatorQuery { filter, after, limit: 7, dry_run: true }));
        let filter = WebhookFilter::default();
        let all = OperatorQuery { filter, after: None, limit: LIMIT_DEFAULT, dry_run: false };
        assert_eq!(read(""), Ok(all));
        let wrong = "workspace=&state=delivering&host=a:1&since=1&dry_run=yes&cursor=x&url=y";
        let errors = read(wrong).expect_err("nothing is right").pointers().join(" ");
        assert_eq!(errors, "url workspace state host since cursor dry_run");
    }

    #[test]
    fn every_invalid_parameter_is_listed() {
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
            ("event=a.b&tenant=&outcome=5xx&status=99", "event tenant outcome status"),
            ("status=1000&order=asc", "status order"),
            ("status=+503&order=", "status order"),
            ("%6cimit=1", "%6cimit"),
        ] {
            assert_eq!(errors(text), names, "{text}");
        }
        for limit in ["0", "101", "-1", "+5", "1.0", "5x", "99999999999999999999", " 5", "\u{664}"]
        {
            assert_eq!(errors(&format!("limit={limit}")), "limit", "{limit}");
        }
    }

    #[test]
    fn an_unknown_type_is_refused_with_the_known_ones() {
        let ids = PublicIds::new([7; 32]);
        let detail = |text| match Query::read(Some(text), &names(DELIVERIES_QUERY))
            .deliveries(&ids, &types(&Catalogue::shipped()))
        {
            Ok(found) => panic!("{found:?}"),
            Err(errors) => errors.to_string(),
        };
        let meant = "type: is not a known event type; did you mean `user.created`?";
        assert_eq!(detail("type=user.create"), meant);
        let known = detail("type=zebra");
        assert!(known.contains("known: user.created, user.updated"), "{known}");
        assert!(known.ends_with("webhook.ping"), "{known}");
    }

    #[test]
    fn a_parameter_of_a_path_without_parameters_is_refused() {
        let errors = Query::read(Some("a=1&b"), &[]).none().expect_err("it accepts none");
        assert_eq!(errors.pointers(), ["a", "b"]);
        assert!(errors.to_string().contains("this path accepts no parameters"), "{errors}");
        assert_eq!(Query::read(None, &[]).none(), Ok(()));
    }
}
