//! Carries out a tool.
//!
//! Invariant: a destructive tool changes something only after `consent` said so.

use std::num::NonZeroU64;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_client::body::{Count, Filter, WebhookPatch};
use weir_client::call::CallError;
use weir_client::methods::{Paging, Workspace};
use weir_common::time::UnixTime;

use crate::caller::Caller;
use crate::consent::{self, Asked, Consent, Effect, Verdict};
use crate::output::{Mark, Output, quoted};
use crate::tools::arguments::{
    Limits, Listed, NewWebhook, Nothing, One, Redelivery, Rotation, Search, Test, Update,
};
use crate::tools::results;
use crate::tools::table::Tool;

/// What a call led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It ended.
    Done(Output),
    /// A person must agree first.
    Ask(Effect),
}

/// What a run needs apart from its arguments: whether a person can be asked, the time, chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// How consent can be had.
    pub consent: Consent,
    /// The time.
    pub now: UnixTime,
    /// A random number.
    pub dice: u64,
}

/// Why a tool ended early.
struct Ended(Step);

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        Self(Step::Done(error.into()))
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self(Step::Done(output))
    }
}

type Result<T> = std::result::Result<T, Ended>;

/// Carries out a tool.
pub(crate) async fn run(
    caller: &Caller,
    tool: Tool,
    arguments: Value,
    around: Circumstances,
) -> Step {
    let run = Run { caller, around };
    match run.tool(tool, arguments).await {
        Ok(output) => Step::Done(output),
        Err(Ended(step)) => step,
    }
}

struct Run<'a> {
    caller: &'a Caller,
    around: Circumstances,
}

impl Run<'_> {
    async fn tool(&self, tool: Tool, arguments: Value) -> Result<Output> {
        match tool {
            Tool::ListWebhooks => {
                let listed: Listed = parse(arguments)?;
                let page = self.of(&listed.workspace)?.webhooks(&listed.paging()).await?;
                Ok(results::page("webhooks", &page))
            }
            Tool::GetWebhook => {
                let one: One = parse(arguments)?;
                Ok(results::webhook(&self.of(&one.workspace)?.webhook(&one.id).await?))
            }
            Tool::CreateWebhook => self.create(parse(arguments)?).await,
            Tool::UpdateWebhook => self.update(parse(arguments)?).await,
            Tool::ReactivateWebhook => {
                let one: One = parse(arguments)?;
                let webhook = self.of(&one.workspace)?.reactivate(&one.id).await?;
                let summary = format!("{} is {}: see get_webhook.", webhook.id, webhook.state);
                Ok(Output::new(summary, json!(webhook)))
            }
            Tool::RotateSecret => self.rotate(parse(arguments)?).await,
            Tool::TestWebhook => {
                let test: Test = parse(arguments)?;
                let workspace = self.of(&test.workspace)?;
                let sent = workspace.ping(&test.id, test.kind.as_deref()).await?;
                Ok(results::queued("Sent a test", &sent))
            }
            Tool::SearchDeliveries => {
                let search: Search = parse(arguments)?;
                let workspace = self.of(&search.workspace)?;
                let page = workspace.deliveries(&search.filter, &search.paging()).await?;
                Ok(results::page("deliveries", &page))
            }
            Tool::ExplainDelivery => {
                let one: One = parse(arguments)?;
                let detail = self.of(&one.workspace)?.delivery(&one.id).await?;
                Ok(results::explanation(&detail, self.mark()))
            }
            Tool::RedeliverDelivery => {
                let one: One = parse(arguments)?;
                let queued = self.of(&one.workspace)?.redeliver(&one.id).await?;
                Ok(results::queued("Queued again", &queued))
            }
            Tool::RedeliverMatching => self.redeliver(parse(arguments)?).await,
            Tool::ListRedeliveries | Tool::GetRedelivery | Tool::CancelRedelivery => {
                self.jobs(tool, arguments).await
            }
            Tool::ListEventTypes | Tool::GetEvent | Tool::GetLimits => {
                self.others(tool, arguments).await
            }
        }
    }

    async fn create(&self, new: NewWebhook) -> Result<Output> {
        let workspace = self.of(&new.workspace)?;
        let file = self.secret_file()?;
        let body = json!({"url": new.url, "events": new.events, "description": new.description});
        let created = workspace.create_webhook(&body).await?;
        let id = created.webhook.id.clone();
        let output = kept(file.keep(&id, &created.secret), &id);
        Ok(output.with("webhook", json!(created.webhook)))
    }

    async fn update(&self, update: Update) -> Result<Output> {
        let workspace = self.of(&update.workspace)?;
        let asked = Asked { dry_run: update.dry_run, confirm: update.confirm };
        if let Some(what) = destroys(&update.changes) {
            let now = workspace.webhook(&update.id).await?;
            let at = quoted(&now.webhook.url);
            let text = format!("Of webhook {}, now at {at}, {what}.", update.id);
            self.agreed(Effect { text, count: now.waiting }, asked)?;
        } else if asked.dry_run {
            let none = Count { count: 0, at_least: false };
            self.agreed(Effect { text: "No delivery is affected.".into(), count: none }, asked)?;
        }
        let webhook = workspace.change_webhook(&update.id, &update.changes).await?;
        Ok(Output::new(format!("Changed {}.", webhook.id), json!(webhook)))
    }

    async fn rotate(&self, rotation: Rotation) -> Result<Output> {
        let workspace = self.of(&rotation.workspace)?;
        let asked = Asked { dry_run: rotation.dry_run, confirm: rotation.confirm };
        let now = workspace.webhook(&rotation.id).await?;
        let text = format!(
            "Webhook {} at {} gets a new secret; the previous one ends after a while.",
            rotation.id,
            quoted(&now.webhook.url)
        );
        self.agreed(Effect { text, count: now.waiting }, asked)?;
        let file = self.secret_file()?;
        let rotated = workspace.rotate_secret(&rotation.id).await?;
        let output = kept(file.keep(&rotated.id, &rotated.secret), &rotated.id);
        Ok(output.with("previous_valid_until", rotated.previous_valid_until))
    }

    async fn redeliver(&self, wanted: Redelivery) -> Result<Output> {
        let workspace = self.of(&wanted.workspace)?;
        let asked = Asked { dry_run: wanted.dry_run, confirm: wanted.confirm };
        let preview = workspace.preview_redelivery(&wanted.filter).await?;
        let estimate = preview.estimate.as_ref().map_or("", |estimate| estimate.text.as_str());
        let (which, webhooks) = (words(&wanted.filter), preview.webhooks.len());
        let text = format!("Deliveries with {which} go to {webhooks} webhooks again. {estimate}");
        self.agreed(Effect { text, count: preview.total }, asked)?;
        Ok(results::redelivery(&workspace.redeliver_all(&wanted.filter).await?))
    }

    async fn jobs(&self, tool: Tool, arguments: Value) -> Result<Output> {
        if tool == Tool::ListRedeliveries {
            let listed: Listed = parse(arguments)?;
            let page = self.of(&listed.workspace)?.redeliveries(&listed.paging()).await?;
            return Ok(results::page("redeliveries", &page));
        }
        let one: One = parse(arguments)?;
        let workspace = self.of(&one.workspace)?;
        let job = if tool == Tool::CancelRedelivery {
            workspace.cancel_redelivery(&one.id).await?
        } else {
            workspace.redelivery(&one.id).await?
        };
        Ok(results::redelivery(&job))
    }

    async fn others(&self, tool: Tool, arguments: Value) -> Result<Output> {
        match tool {
            Tool::ListEventTypes => {
                let Nothing {} = parse(arguments)?;
                Ok(results::event_types(&self.caller.client.event_types().await?.data))
            }
            Tool::GetEvent => {
                let one: One = parse(arguments)?;
                let envelope = self.of(&one.workspace)?.event(&one.id).await?;
                Ok(results::event(&one.id, &envelope, self.mark()))
            }
            _ => self.limits(&parse(arguments)?).await,
        }
    }

    async fn limits(&self, limits: &Limits) -> Result<Output> {
        let workspace = self.of(&limits.workspace)?;
        let requests = limits.requests.map_or(1, NonZeroU64::get);
        match workspace.standing().await {
            Ok(standing) => Ok(results::standing(&standing, requests, self.around.now)),
            // Without its route, the call went to a server that does not know it.
            Err(CallError::NoAnswer(_)) => self.last(&workspace, requests).await,
            Err(CallError::Refused(problem)) if matches!(problem.status, 404 | 405 | 502) => {
                self.last(&workspace, requests).await
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn last(&self, workspace: &Workspace<'_>, requests: u64) -> Result<Output> {
        // Any call shows the limits in its headers, and this one proves that the token is good.
        workspace.webhooks(&Paging { limit: Some(1), cursor: None }).await?;
        Ok(results::last_allowance(self.caller.client.allowance().as_ref(), requests))
    }

    /// Ends the tool unless what it would do was agreed to.
    fn agreed(&self, effect: Effect, asked: Asked) -> Result<()> {
        match consent::decide(effect, asked, self.around.consent) {
            Verdict::Proceed => Ok(()),
            Verdict::End(output) => Err(output.into()),
            Verdict::Ask(effect) => Err(Ended(Step::Ask(effect))),
        }
    }

    fn of(&self, named: &Option<String>) -> Result<Workspace<'_>> {
        let workspace = self.caller.workspace(named.as_deref())?;
        Ok(self.caller.client.workspace(&workspace)?)
    }

    fn mark(&self) -> Mark {
        Mark(self.around.dice)
    }

    fn secret_file(&self) -> Result<crate::secrets::SecretFile> {
        let refuse = |why: String| Output::error(why, json!({"error": {"detail": "secrets"}}));
        let Some(folder) = &self.caller.secrets else {
            let why = "Nothing was sent: a new secret would have no place. Start weir-agent with \
                       --secrets FOLDER, where each is written to a file.";
            return Err(refuse(why.to_owned()).into());
        };
        let prepared = folder.prepare(self.around.dice);
        let why = |error| format!("Nothing was sent: no file can be made for the secret: {error}");
        Ok(prepared.map_err(|error| refuse(why(error)))?)
    }
}

/// What a change does that cannot be taken back; none if it does nothing of the kind.
fn destroys(changes: &WebhookPatch) -> Option<String> {
    let url = changes.url.as_ref();
    let url = url.map(|url| format!("what waits and what comes goes to {}", quoted(url)));
    let events = changes.events.as_ref().map(|events| {
        format!("events come only of these types from now on: {}", quoted(&events.join(", ")))
    });
    let disabled = (changes.disabled == Some(true)).then(|| "deliveries stop".to_owned());
    let parts: Vec<String> = [url, events, disabled].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// A filter in words.
fn words(filter: &Filter) -> String {
    let state = filter.state.clone().unwrap_or_else(|| "failed_permanent".to_owned());
    let filter = Filter { state: Some(state), ..filter.clone() };
    let members = json!(filter).as_object().cloned().unwrap_or_default();
    let word = |(name, value): (String, Value)| match value {
        Value::String(text) => format!("{name} {}", quoted(&text)),
        other => format!("{name} {other}"),
    };
    members.into_iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Where a new secret is.
fn kept(path: std::io::Result<std::path::PathBuf>, webhook: &str) -> Output {
    match path {
        Ok(path) => {
            let path = path.display().to_string();
            let summary = format!(
                "{webhook} has a new signing secret, in the file {path}. It was shown this once \
                 and is nowhere else: give the file, not its text, to the receiver's operator."
            );
            Output::new(summary, json!({"secret_file": path, "secret_shown_again": false}))
        }
        Err(why) => {
            let summary = format!(
                "{webhook} has a new secret, but it could not be written to its file ({why}) and \
                 is lost: rotate_secret makes another."
            );
            Output::error(summary, json!({"secret_file": null}))
        }
    }
}

/// Reads a tool's arguments.
fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T> {
    serde_json::from_value(with_integers(arguments)).map_err(|why| {
        let detail = format!("The arguments do not fit the tool's schema: {why}");
        let value = json!({"error": {"detail": detail}});
        Ended(Step::Done(Output::error(format!("{detail}. Nothing was sent."), value)))
    })
}

/// The same value with integers as such: in JSON Schema 1.0 is one, and some clients write it.
fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            let integer =
                number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 2e15);
            integer
                .filter(|_| number.is_f64())
                .map_or(Value::Number(number), |one| json!(one as i64))
        }
        Value::Array(items) => items.into_iter().map(with_integers).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, with_integers(value))).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_fraction_is_an_integer_however_it_is_written() {
        let arguments = json!({"limit": 1.0, "filter": {"status": 5.03e2}});
        let Ok(search) = parse::<Search>(arguments) else { panic!("refused") };
        assert_eq!((search.limit, search.filter.status), (Some(1), Some(503)));
        for wrong in [json!({"limit": 1.5}), json!({"limit": -1.0}), json!({"limit": 1e30})] {
            assert!(parse::<Search>(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(parse::<Limits>(json!({"requests": 0})).is_err());
    }

    #[test]
    fn a_filter_is_named_whole() {
        let filter = Filter {
            webhook: Some("wh_1".to_owned()),
            kind: Some("a\n\"b".to_owned()),
            status: Some(503),
            ..Filter::default()
        };
        let expected = r#"state "failed_permanent", webhook "wh_1", type "a 'b", status 503"#;
        assert_eq!(words(&filter), expected);
    }

    #[test]
    fn a_change_asks_first_only_where_receivers_feel_it() {
        let patch = |value: Value| serde_json::from_value::<WebhookPatch>(value).unwrap();
        for (change, asks) in [
            (json!({"url": "https://b.example/"}), true),
            (json!({"events": ["user.created"]}), true),
            (json!({"disabled": true}), true),
            (json!({"disabled": false}), false),
            (json!({"description": "x"}), false),
            (json!({"requests_per_minute": 5}), false),
            (json!({"description": "x", "url": "https://b.example/"}), true),
        ] {
            assert_eq!(destroys(&patch(change.clone())).is_some(), asks, "{change}");
        }
    }
}
