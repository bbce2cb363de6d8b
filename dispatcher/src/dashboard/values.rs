//! What the fields of a webhook's form have, and what the API is sent of them. (core)
//!
//! Invariant: a form that is saved unchanged changes nothing, whatever the webhook has.

use serde_json::{Map, Value, json};
use weir_common::pages::form::{Form, members};

use crate::dashboard::data::WebhookData;

/// What fields have.
#[derive(Default)]
pub(super) struct Values {
    pub(super) url: String,
    pub(super) events: Vec<String>,
    pub(super) description: String,
    pub(super) metadata: String,
    /// Entries that no line holds. They are kept as they are.
    pub(super) kept_metadata: Vec<(String, String)>,
    pub(super) headers: String,
    /// Names of headers that are kept unless their field names them.
    pub(super) kept_headers: Vec<String>,
    pub(super) requests_per_minute: String,
    pub(super) answers: String,
    pub(super) ed25519: bool,
    pub(super) verify: bool,
    /// Whether a secret was filled in, which no page shows again.
    pub(super) had_secret: bool,
}

impl Values {
    /// What was typed.
    pub(super) fn of_form(form: &Form) -> Self {
        Self {
            url: form.get("url").to_owned(),
            events: form.all("events").map(ToOwned::to_owned).collect(),
            description: form.get("description").to_owned(),
            metadata: form.get("metadata").to_owned(),
            kept_metadata: Vec::new(),
            headers: form.get("headers").to_owned(),
            kept_headers: form.all("kept_headers").map(ToOwned::to_owned).collect(),
            requests_per_minute: form.get("requests_per_minute").to_owned(),
            answers: form.get("answers").to_owned(),
            ed25519: form.get("ed25519") == "on",
            verify: form.get("verify") == "on",
            had_secret: form.filled("secret").is_some(),
        }
    }

    /// What a webhook has. Values of headers are never shown.
    pub(super) fn of_webhook(webhook: &WebhookData) -> Self {
        let lines = webhook.metadata.iter().filter_map(|(name, value)| line(name, value));
        Self {
            url: webhook.url.clone(),
            events: webhook.events.clone(),
            description: webhook.description.clone().unwrap_or_default(),
            metadata: lines.collect(),
            kept_metadata: kept_metadata(webhook),
            headers: String::new(),
            kept_headers: webhook.headers.keys().cloned().collect(),
            requests_per_minute: webhook
                .requests_per_minute
                .map(|rate| rate.to_string())
                .unwrap_or_default(),
            answers: webhook.answers.clone(),
            ed25519: webhook.public_key.is_some(),
            verify: false,
            had_secret: false,
        }
    }

    /// A new webhook, without its secret.
    pub(super) fn new_webhook(&self) -> Map<String, Value> {
        let mut body = self.body();
        if self.verify {
            body.insert("verify".to_owned(), true.into());
        }
        if !self.description.is_empty() {
            body.insert("description".to_owned(), self.description.as_str().into());
        }
        if !self.requests_per_minute.is_empty() {
            body.insert("requests_per_minute".to_owned(), self.rate());
        }
        body.insert("metadata".to_owned(), object(members(&self.metadata)));
        body.insert("headers".to_owned(), object(members(&self.headers)));
        body
    }

    /// The change that makes a webhook what was typed. What was not changed stays as it is, though
    /// a field cannot show it; what a field does not name any more is removed.
    pub(super) fn change_of(&self, before: &WebhookData) -> Map<String, Value> {
        let mut body = self.body();
        if self.description != sent_back(before.description.as_deref().unwrap_or_default()) {
            body.insert("description".to_owned(), self.description.as_str().into());
        }
        let rate = if self.requests_per_minute.is_empty() { 0.into() } else { self.rate() };
        body.insert("requests_per_minute".to_owned(), rate);
        let mut metadata = object(members(&self.metadata));
        let shown = before.metadata.iter().filter(|(name, value)| line(name, value).is_some());
        remove(&mut metadata, shown.map(|(name, _)| name));
        body.insert("metadata".to_owned(), metadata);
        let mut headers = object(members(&self.headers));
        let kept = |name: &&String| self.kept_headers.contains(*name);
        remove(&mut headers, before.headers.keys().filter(|name| !kept(name)));
        body.insert("headers".to_owned(), headers);
        body
    }

    /// The members that both a new webhook and a change have.
    fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("url".to_owned(), self.url.as_str().into());
        body.insert("events".to_owned(), self.events.clone().into());
        let answers = if self.answers.is_empty() { "failures" } else { &self.answers };
        body.insert("answers".to_owned(), answers.into());
        body.insert("ed25519".to_owned(), self.ed25519.into());
        body
    }

    /// The owner's limit; text that is no number is the API's to refuse.
    fn rate(&self) -> Value {
        let text = &self.requests_per_minute;
        text.parse::<u64>().map_or_else(|_| text.as_str().into(), Value::from)
    }
}

/// The entries of the metadata that no line holds.
pub(super) fn kept_metadata(webhook: &WebhookData) -> Vec<(String, String)> {
    let kept = webhook.metadata.iter().filter(|(name, value)| line(name, value).is_none());
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// An entry as a line of its field; `None` if the browser and [`members`] would make another of it.
fn line(name: &str, value: &str) -> Option<String> {
    let line = format!("{name}: {value}\n");
    let is_plain = |c: char| c == '\t' || !c.is_control();
    let is_held =
        name.chars().chain(value.chars()).all(is_plain) && members(&line).eq([(name, value)]);
    is_held.then_some(line)
}

/// What a browser sends of a text in an `<input>` that was not changed, as [`Form::get`] reads it.
fn sent_back(text: &str) -> String {
    text.replace(['\r', '\n'], "").trim().to_owned()
}

fn object<'m>(members: impl Iterator<Item = (&'m str, &'m str)>) -> Value {
    Value::Object(members.map(|(name, value)| (name.to_owned(), value.into())).collect())
}

/// Removes those of `names` that `object` does not have.
fn remove<'n>(object: &mut Value, names: impl Iterator<Item = &'n String>) {
    for name in names {
        if object.get(name).is_none() {
            object[name.as_str()] = json!(null);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::btree_map;
    use proptest::prelude::*;
    use url::form_urlencoded::Serializer;

    use super::*;

    fn webhook(description: &str, metadata: &BTreeMap<String, String>) -> WebhookData {
        let webhook = json!({
            "id": "wh_1", "url": "https://a.example/", "events": ["user.created"],
            "created_at": "2026-11-27T00:00:00Z", "state": "delivering",
            "description": description, "metadata": metadata, "headers": {},
            "answers": "failures", "requests_per_minute": null, "public_key": null,
        });
        serde_json::from_value(webhook).expect("a webhook")
    }

    /// What a browser sends of fields that were not changed.
    fn unchanged(values: &Values) -> Form {
        let description = values.description.replace(['\r', '\n'], "");
        let lines = values.metadata.replace("\r\n", "\n").replace('\r', "\n");
        let mut sent = Serializer::new(String::new());
        sent.append_pair("description", &description);
        sent.append_pair("metadata", &lines.replace('\n', "\r\n"));
        Form::read(sent.finish().as_bytes())
    }

    /// A webhook's description and metadata after its form was saved unchanged.
    fn saved(before: &WebhookData) -> (Option<String>, BTreeMap<String, String>) {
        let form = unchanged(&Values::of_webhook(before));
        let change = Values::of_form(&form).change_of(before);
        let description = change.get("description").and_then(Value::as_str).map(str::to_owned);
        let mut metadata = before.metadata.clone();
        for (name, value) in change["metadata"].as_object().expect("an object") {
            match value.as_str() {
                Some(value) => metadata.insert(name.clone(), value.to_owned()),
                None => metadata.remove(name),
            };
        }
        (description.or(before.description.clone()), metadata)
    }

    proptest! {
        #[test]
        fn a_form_that_is_saved_unchanged_changes_nothing(
            description in "([ a:\r\n\t]|\\PC){0,6}",
            metadata in btree_map("([ a:\r\n\t]|.){0,4}", "([ a:\r\n\t]|.){0,4}", 0..6),
        ) {
            let before = webhook(&description, &metadata);
            prop_assert_eq!(saved(&before), (Some(description), metadata));
        }
    }

    #[test]
    fn what_no_line_holds_is_kept_until_a_line_names_it() {
        let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let metadata = [entry("note", "one\ntwo"), entry("a: b", "c"), entry("plain", "1")];
        let before = webhook("", &metadata.clone().into());
        let mut values = Values::of_webhook(&before);
        assert_eq!(values.metadata, "plain: 1\n");
        assert_eq!(values.kept_metadata, [entry("a: b", "c"), entry("note", "one\ntwo")]);
        values.metadata = "note: 3".to_owned();
        assert_eq!(values.change_of(&before)["metadata"], json!({"note": "3", "plain": null}));
    }
}
