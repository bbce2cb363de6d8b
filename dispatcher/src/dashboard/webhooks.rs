//! The list of webhooks, and the form of one.

use askama::Template;
use http::Method;
use serde_json::{Map, Value};
use weir_common::http_server::reply::Reply;
use weir_common::pages::form::{Form, query};
use weir_common::pages::reply::{html, see_other};
use weir_common::pages::show::{Mark, share, span};
use weir_common::time::UnixTime;

use crate::dashboard::api_answers::{
    ActivityData, CheckData, CreatedData, EventTypeData, List, WebhookData, WebhookDetailData,
};
use crate::dashboard::page::{Frame, Section};
use crate::dashboard::page_error::{FieldError, PageError};
use crate::dashboard::plot;
use crate::dashboard::request::{SignedInRequest, answer};
use crate::dashboard::show::{When, url_among, webhook_mark};
use crate::dashboard::webhook_form::WebhookForm;

/// Webhooks on a page.
const ROWS: &str = "20";

/// How often a form is compared anew, after changes by others while it is saved.
const CHANGES_MAX: usize = 5;

#[derive(Template)]
#[template(path = "webhooks.html")]
struct ListPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    /// For how long a delivery is tried.
    retried: String,
    now: UnixTime,
}

/// A receiver to try webhooks with; a test runs it.
const LISTEN: &str = "weir-dispatcher listen --address 127.0.0.1:9010 --secret-file secret.txt";

struct Row {
    webhook: WebhookData,
    mark: Mark,
    activity: ActivityData,
    sparkline: String,
    share: String,
}

impl ListPage {
    fn shown_url(&self, webhook: &WebhookData) -> String {
        let all = self.rows.iter().map(|row| row.webhook.url.as_str());
        url_among((&webhook.id, &webhook.url), all)
    }
}

pub(super) async fn list(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    let asked = request.request.query();
    let query = query([("limit", ROWS), ("cursor", asked.get("cursor"))]);
    let list: List<WebhookData> = request.get("webhooks", &query).await?;
    let settings = &request.request.active.settings;
    let (warn_for, now) = (settings.health.warn_for, request.request.now());
    let mut rows = Vec::new();
    for webhook in list.data {
        let path = format!("webhooks/{}/activity", webhook.id);
        let activity: ActivityData = request.get(&path, "").await?;
        let total = &activity.total;
        rows.push(Row {
            mark: webhook_mark(&webhook.state, activity.down_since.as_ref(), (warn_for, now)),
            sparkline: plot::sparkline(&activity.hours),
            share: share(total.delivered, total.attempts).unwrap_or_else(|| "–".to_owned()),
            webhook,
            activity,
        });
    }
    let frame = Frame::of(request, Section::Webhooks, "Webhooks").refreshing();
    let next = list.next_cursor.map(|cursor| self::query([("cursor", cursor.as_str())]));
    let retried = span(settings.retry.give_up_after);
    Ok(html(200, &ListPage { frame, rows, next, retried, now }))
}

/// The form of a webhook, new or not, with what was typed.
#[derive(Template)]
#[template(path = "webhook_form.html")]
struct FormPage<'a> {
    frame: Frame,
    /// Its identifier; `None` if it is new.
    id: Option<&'a str>,
    types: Vec<TypeChoice>,
    values: WebhookForm,
    /// How long an attempt may take.
    deadline: String,
    allows_http: bool,
    failure: Option<&'a PageError>,
    /// What a check of the URL found.
    check: Option<CheckData>,
}

struct TypeChoice {
    name: String,
    description: String,
    chosen: bool,
}

/// The fields of the form, which have their errors beside them.
const FIELDS: [&str; 7] =
    ["url", "events", "description", "secret", "headers", "requests_per_minute", "metadata"];

impl FormPage<'_> {
    /// Whether what few need is open.
    fn shows_more(&self) -> bool {
        let fields = ["headers", "requests_per_minute", "answers", "metadata"];
        fields.iter().any(|field| !self.errors(field).is_empty())
    }

    fn errors(&self, field: &str) -> Vec<String> {
        let errors = self.failure.map(|failure| failure.of_field(field)).unwrap_or_default();
        match field {
            "events" if !errors.is_empty() && self.values.events.is_empty() => {
                vec!["Choose at least one event.".to_owned()]
            }
            // The API takes null, and a form an empty field.
            _ => errors.iter().map(|error| error.replace(" or null", " or empty")).collect(),
        }
    }

    /// The attributes of a field that has an error; the first one gets the focus.
    fn flaw(&self, field: &str) -> &'static str {
        let has_errors = |field: &&str| !self.errors(field).is_empty();
        match FIELDS.iter().find(|field| has_errors(field)) {
            Some(first) if *first == field => " aria-invalid=\"true\" autofocus",
            _ if has_errors(&field) => " aria-invalid=\"true\"",
            _ => "",
        }
    }

    /// Whether all that is wrong stands beside a field.
    fn shows_all_errors(&self) -> bool {
        let is_shown = |error: &FieldError| {
            let field = error.pointer.split('/').nth(1).unwrap_or_default();
            FIELDS.contains(&field) || (field == "verify" && self.id.is_none())
        };
        let errors = self.failure.map(|failure| failure.errors.as_slice()).unwrap_or_default();
        !errors.is_empty() && errors.iter().all(is_shown)
    }
}

pub(super) async fn new(request: &SignedInRequest<'_>) -> Result<Reply, PageError> {
    form_page(request, None, WebhookForm::default(), Seen::Nothing).await
}

pub(super) async fn edit(request: &SignedInRequest<'_>, id: &str) -> Result<Reply, PageError> {
    let detail: WebhookDetailData = request.get(&format!("webhooks/{id}"), "").await?;
    form_page(request, Some(id), WebhookForm::of_webhook(&detail.webhook), Seen::Nothing).await
}

/// What became of a form that was sent.
enum Seen<'f> {
    Nothing,
    /// The API refused it.
    PageError(&'f PageError),
    /// Its URL was called.
    Check(CheckData),
}

async fn form_page(
    request: &SignedInRequest<'_>,
    id: Option<&str>,
    values: WebhookForm,
    seen: Seen<'_>,
) -> Result<Reply, PageError> {
    let (failure, check) = match seen {
        Seen::Nothing => (None, None),
        Seen::PageError(failure) => (Some(failure), None),
        Seen::Check(check) => (None, Some(check)),
    };
    let types = request.event_types().await?;
    let choice = |one: EventTypeData| TypeChoice {
        chosen: values.events.contains(&one.name),
        description: one.description.unwrap_or_default(),
        name: one.name,
    };
    // A type that is no longer offered can be kept.
    let offered = types.into_iter().filter(|one| !one.retired || values.events.contains(&one.name));
    let types = offered.map(choice).collect();
    let title = if id.is_some() { "Edit the webhook" } else { "Add a webhook" };
    let frame = Frame::of(request, Section::Webhooks, title);
    let status = failure.map_or(200, PageError::status);
    let egress = &request.request.active.settings.egress;
    let (deadline, allows_http) = (span(egress.deadline), egress.allow_http);
    let page = FormPage { frame, id, types, values, deadline, allows_http, failure, check };
    Ok(html(status, &page))
}

#[derive(Template)]
#[template(path = "secret.html")]
struct SecretPage {
    frame: Frame,
    id: String,
    url: String,
    secret: String,
    public_key: Option<String>,
    /// Until when the previous secret signs as well.
    previous_until: Option<When>,
    /// Whether requests have the headers of Standard Webhooks.
    is_standard: bool,
}

fn is_standard(request: &SignedInRequest<'_>) -> bool {
    request.request.active.settings.signature.standard_webhooks
}

/// Calls the URL that was typed, and shows the form again.
async fn check(request: &SignedInRequest<'_>, form: &Form) -> Result<Reply, PageError> {
    let values = WebhookForm::of_form(form);
    let mut body = Map::from_iter([("url".to_owned(), Value::from(values.url.as_str()))]);
    if let Some(secret) = form.filled("secret") {
        body.insert("secret".to_owned(), secret.into());
    }
    match request.post::<CheckData>("webhooks:check", &body.into()).await {
        Ok(check) => form_page(request, None, values, Seen::Check(check)).await,
        Err(failure) => form_page(request, None, values, Seen::PageError(&failure)).await,
    }
}

pub(super) async fn create(request: &SignedInRequest<'_>, form: &Form) -> Result<Reply, PageError> {
    if form.filled("check").is_some() {
        return check(request, form).await;
    }
    let values = WebhookForm::of_form(form);
    if let Some(failure) = values.repeated().map(PageError::repeated) {
        return form_page(request, None, values, Seen::PageError(&failure)).await;
    }
    let mut body = values.new_webhook();
    if let Some(secret) = form.filled("secret") {
        body.insert("secret".to_owned(), secret.into());
    }
    match request.post::<CreatedData>("webhooks", &body.into()).await {
        Ok(created) => {
            let frame = Frame::of(request, Section::Webhooks, "Keep the secret");
            let CreatedData { id, url, secret, public_key } = created;
            let (previous_until, is_standard) = (None, is_standard(request));
            let page =
                SecretPage { frame, id, url, secret, public_key, previous_until, is_standard };
            Ok(html(201, &page))
        }
        Err(failure) => form_page(request, None, values, Seen::PageError(&failure)).await,
    }
}

/// The page of a secret that was rotated.
pub(super) fn rotated(
    request: &SignedInRequest<'_>,
    webhook: WebhookData,
    secret: String,
    previous_until: Option<When>,
) -> Reply {
    let frame = Frame::of(request, Section::Webhooks, "Keep the secret");
    let WebhookData { id, url, public_key, .. } = webhook;
    let is_standard = is_standard(request);
    html(200, &SecretPage { frame, id, url, secret, public_key, previous_until, is_standard })
}

pub(super) async fn change(
    request: &SignedInRequest<'_>,
    id: &str,
    form: &Form,
) -> Result<Reply, PageError> {
    let path = format!("webhooks/{id}");
    let mut values = WebhookForm::of_form(form);
    let shown = values.read_shown().ok_or_else(PageError::incomplete_form)?;
    let mut changes = 0;
    let failure = loop {
        let read = request.call(Method::GET, &path, "", None).await;
        let now = WebhookForm::of_webhook(&answer::<WebhookDetailData>(&read)?.webhook);
        let overtaken = || values.overtaken(&shown, &now).map(PageError::overtaken);
        if let Some(failure) = values.repeated().map(PageError::repeated).or_else(overtaken) {
            break failure;
        }
        let body = values.change_of(&shown, &now);
        if body.is_empty() {
            return Ok(see_other(request.path(&path)));
        }
        let reply = request.patch_as_read(&path, &read.headers, &body.into()).await;
        match answer::<WebhookData>(&reply) {
            Ok(_) => return Ok(see_other(request.path(&path))),
            // It was changed since it was read, perhaps in another field.
            Err(_) if reply.status == 412 && changes < CHANGES_MAX => changes += 1,
            Err(failure) => break failure,
        }
    };
    values.kept_metadata = shown.kept_metadata;
    form_page(request, Some(id), values, Seen::PageError(&failure)).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::CliCommand;

    #[test]
    fn the_receiver_to_try_webhooks_with_is_a_command_that_exists() {
        CliCommand::try_parse_from(LISTEN.split(' ')).unwrap();
    }
}
