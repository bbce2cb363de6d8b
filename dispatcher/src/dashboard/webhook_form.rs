//! What the fields of a webhook's form have, and what the API is sent of them. (core)
//!
//! Invariant: a form changes what was changed in it and nothing else, whatever the webhook has, and
//! whatever others changed since the form was made. Of one header or entry of the metadata the last
//! form wins; a text that others changed meanwhile is not overwritten.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_common::pages::form::{Form, members};

use crate::dashboard::api_answers::WebhookData;
use crate::domain::webhook::headers::{HEADERS_MAX, NAME_CHARS_MAX};
use crate::domain::webhook::options::{
    METADATA_KEY_CHARS_MAX, METADATA_MAX, METADATA_VALUE_CHARS_MAX,
};

/// What fields have.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct WebhookForm {
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
    #[serde(skip)]
    pub(super) verify: bool,
    /// Whether a secret was filled in, which no page shows again.
    #[serde(skip)]
    pub(super) had_secret: bool,
    /// What the fields had when the form was made, in JSON: the form sends it back. A new webhook
    /// has none.
    #[serde(skip)]
    pub(super) shown: String,
}

impl WebhookForm {
    /// What was typed.
    pub(super) fn of_form(form: &Form) -> Self {
        Self {
            url: form.get("url").to_owned(),
            events: form.all("events").map(ToOwned::to_owned).collect(),
            description: form.get("description").to_owned(),
            metadata: form.get("metadata").to_owned(),
            kept_metadata: Vec::new(),
            headers: form.get("headers").to_owned(),
            kept_headers: kept_headers(form.all("kept_headers").map(ToOwned::to_owned)),
            requests_per_minute: form.get("requests_per_minute").to_owned(),
            answers: form.get("answers").to_owned(),
            ed25519: form.get("ed25519") == "on",
            verify: form.get("verify") == "on",
            had_secret: form.filled("secret").is_some(),
            shown: form.get("shown").to_owned(),
        }
    }

    /// What a webhook has. Values of headers are never shown.
    pub(super) fn of_webhook(webhook: &WebhookData) -> Self {
        let lines = webhook.metadata.iter().filter_map(|(name, value)| line(name, value));
        let kept = webhook.metadata.iter().filter(|(name, value)| line(name, value).is_none());
        let mut values = Self {
            url: webhook.url.clone(),
            events: webhook.events.clone(),
            description: webhook.description.clone().unwrap_or_default(),
            metadata: lines.collect(),
            kept_metadata: kept.map(|(name, value)| (name.clone(), value.clone())).collect(),
            headers: String::new(),
            kept_headers: webhook.headers.keys().cloned().collect(),
            requests_per_minute: webhook
                .requests_per_minute
                .map(|rate| rate.to_string())
                .unwrap_or_default(),
            answers: webhook.answers.clone(),
            ed25519: webhook.public_key.is_some(),
            ..Self::default()
        };
        values.shown = serde_json::to_string(&values).unwrap_or_default();
        values
    }

    /// What the fields had when the form was made, if the form says so.
    pub(super) fn read_shown(&self) -> Option<Self> {
        let mut shown: Self = serde_json::from_str(&self.shown).ok()?;
        shown.kept_headers = kept_headers(shown.kept_headers.into_iter());
        shown.kept_metadata.retain(|(name, value)| {
            name.chars().count() <= METADATA_KEY_CHARS_MAX
                && value.chars().count() <= METADATA_VALUE_CHARS_MAX
        });
        shown.kept_metadata.truncate(METADATA_MAX);
        Some(shown)
    }

    /// A field two of whose lines have one name, and that name.
    pub(super) fn repeated(&self) -> Option<(&'static str, &str)> {
        let fields = [("metadata", &self.metadata), ("headers", &self.headers)];
        fields.into_iter().find_map(|(field, lines)| {
            let mut seen = BTreeSet::new();
            let mut names = members(lines).map(|(name, _)| name);
            names.find(|name| !seen.insert(*name)).map(|name| (field, name))
        })
    }

    /// A new webhook, without its secret.
    pub(super) fn new_webhook(&self) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("url".to_owned(), self.url.as_str().into());
        body.insert("events".to_owned(), self.events.clone().into());
        body.insert("answers".to_owned(), self.answers().into());
        body.insert("ed25519".to_owned(), self.ed25519.into());
        if self.verify {
            body.insert("verify".to_owned(), true.into());
        }
        if !self.description.is_empty() {
            body.insert("description".to_owned(), self.description.as_str().into());
        }
        if !self.requests_per_minute.is_empty() {
            body.insert("requests_per_minute".to_owned(), self.rate());
        }
        body.insert("metadata".to_owned(), object(members(&self.metadata)).into());
        body.insert("headers".to_owned(), object(members(&self.headers)).into());
        body
    }

    /// A field that was changed in the form and meanwhile to something else by others, and what the
    /// webhook has now.
    pub(super) fn overtaken<'n>(
        &self,
        shown: &Self,
        now: &'n Self,
    ) -> Option<(&'static str, &'n str)> {
        fn texts(form: &WebhookForm) -> [(&'static str, &str); 3] {
            let WebhookForm { url, description, requests_per_minute, .. } = form;
            [
                ("url", url),
                ("description", description),
                ("requests_per_minute", requests_per_minute),
            ]
        }
        let fields = texts(self).into_iter().zip(texts(shown)).zip(texts(now));
        let mut overtaken = fields.filter(|((typed, before), now)| {
            let [typed, before, now] = [typed, before, now].map(|(_, text)| sent_back(text));
            typed != before && now != before && now != typed
        });
        overtaken.next().map(|(_, of_now)| of_now)
    }

    /// What was changed in the form, which showed these values first, of a webhook that has others
    /// `now`. What a field named then and does not name any more is removed.
    pub(super) fn change_of(&self, shown: &Self, now: &Self) -> Map<String, Value> {
        let mut body = Map::new();
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        if self.url != sent_back(&shown.url) {
            set("url", self.url.as_str().into());
        }
        let (typed, before) =
            (BTreeSet::from_iter(&self.events), BTreeSet::from_iter(&shown.events));
        if typed != before {
            let mut events = now.events.clone();
            events.retain(|one| typed.contains(one) || !before.contains(one));
            let added = typed.difference(&before).filter(|one| !now.events.contains(one));
            events.extend(added.map(|one| (*one).clone()));
            set("events", events.into());
        }
        if self.description != sent_back(&shown.description) {
            set("description", self.description.as_str().into());
        }
        if self.requests_per_minute != shown.requests_per_minute {
            let none = self.requests_per_minute.is_empty();
            set("requests_per_minute", if none { 0.into() } else { self.rate() });
        }
        if self.answers() != shown.answers() {
            set("answers", self.answers().into());
        }
        if self.ed25519 != shown.ed25519 {
            set("ed25519", self.ed25519.into());
        }
        let before = object(members(&shown.metadata));
        let mut metadata = object(members(&self.metadata));
        remove(&mut metadata, before.keys());
        metadata.retain(|name, value| before.get(name) != Some(&*value));
        let mut headers = object(members(&self.headers));
        let is_named = |name: &str| headers.keys().any(|one| one.eq_ignore_ascii_case(name));
        let unkept = shown.kept_headers.iter().filter(|name| !self.kept_headers.contains(name));
        let unkept: Vec<&String> = unkept.filter(|name| !is_named(name)).collect();
        remove(&mut headers, unkept.into_iter());
        for (name, members) in [("metadata", metadata), ("headers", headers)] {
            if !members.is_empty() {
                set(name, members.into());
            }
        }
        body
    }

    fn answers(&self) -> &str {
        if self.answers.is_empty() { "failures" } else { &self.answers }
    }

    /// The owner's limit; text that is no number is the API's to refuse.
    fn rate(&self) -> Value {
        let text = &self.requests_per_minute;
        text.parse::<u64>().map_or_else(|_| text.as_str().into(), Value::from)
    }
}

/// Names of headers, no more than a webhook may have: a page shows each, in far more bytes.
fn kept_headers(names: impl Iterator<Item = String>) -> Vec<String> {
    names.filter(|name| name.chars().count() <= NAME_CHARS_MAX).take(HEADERS_MAX).collect()
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

fn object<'m>(members: impl Iterator<Item = (&'m str, &'m str)>) -> Map<String, Value> {
    members.map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// Removes those of `names` that `object` does not have.
fn remove<'n>(object: &mut Map<String, Value>, names: impl Iterator<Item = &'n String>) {
    for name in names {
        object.entry(name.clone()).or_insert(Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::btree_map;
    use proptest::prelude::*;
    use serde_json::json;
    use url::form_urlencoded::Serializer;

    use super::*;

    fn webhook(description: &str, metadata: &BTreeMap<String, String>) -> WebhookData {
        let webhook = json!({
            "id": "wh_1", "url": "https://a.example/", "events": ["user.deleted", "user.created"],
            "created_at": "2026-11-27T00:00:00Z", "state": "delivering",
            "description": description, "metadata": metadata, "headers": {"x-a": "***"},
            "answers": "failures", "requests_per_minute": 7, "public_key": "whpk_1",
        });
        serde_json::from_value(webhook).expect("a webhook")
    }

    /// What a browser sends of fields that were not changed.
    fn sent(values: &WebhookForm) -> Form {
        let lines = |text: &str| text.replace("\r\n", "\n").replace('\r', "\n");
        let mut sent = Serializer::new(String::new());
        let kept = values.kept_headers.iter().map(|name| ("kept_headers", name));
        sent.extend_pairs(values.events.iter().rev().map(|one| ("events", one)).chain(kept));
        sent.extend_pairs([
            ("url", &values.url),
            ("description", &values.description.replace(['\r', '\n'], "")),
            ("requests_per_minute", &values.requests_per_minute),
            ("answers", &values.answers),
            ("ed25519", &(if values.ed25519 { "on" } else { "" }).to_owned()),
            ("metadata", &lines(&values.metadata).replace('\n', "\r\n")),
            ("headers", &values.headers),
            ("shown", &lines(&values.shown).replace('\n', "\r\n")),
        ]);
        Form::read(sent.finish().as_bytes())
    }

    /// The change that a form makes which was made for `before`.
    fn change(before: &WebhookData, type_in: impl FnOnce(&mut WebhookForm)) -> Value {
        let now = WebhookForm::of_webhook(before);
        change_since(before, &now, type_in).expect("none is overtaken").into()
    }

    /// The same, of a webhook that has other values now; the field that others changed.
    fn change_since(
        before: &WebhookData,
        now: &WebhookForm,
        type_in: impl FnOnce(&mut WebhookForm),
    ) -> Result<Map<String, Value>, (&'static str, String)> {
        let mut values = WebhookForm::of_webhook(before);
        type_in(&mut values);
        let values = WebhookForm::of_form(&sent(&values));
        let shown = values.read_shown().expect("values");
        match values.overtaken(&shown, now) {
            Some((name, has)) => Err((name, has.to_owned())),
            None => Ok(values.change_of(&shown, now)),
        }
    }

    #[test]
    fn types_that_others_added_or_removed_meanwhile_stay_so() {
        let before = webhook("", &BTreeMap::new());
        let mut now = WebhookForm::of_webhook(&before);
        let tick = |values: &mut WebhookForm| {
            values.events = ["user.created", "plan.changed"].map(str::to_owned).to_vec();
        };
        now.events = ["user.deleted", "tenant.created"].map(str::to_owned).to_vec();
        let changed = change_since(&before, &now, tick).expect("types are merged");
        assert_eq!(changed["events"], json!(["tenant.created", "plan.changed"]));
        tick(&mut now);
        let changed = change_since(&before, &now, tick).expect("types are merged");
        assert_eq!(changed["events"], json!(["user.created", "plan.changed"]));
    }

    #[test]
    fn a_text_that_others_changed_meanwhile_is_not_overwritten() {
        let before = webhook("one", &BTreeMap::new());
        let mut now = WebhookForm::of_webhook(&before);
        let describe = |text: &'static str| {
            move |values: &mut WebhookForm| text.clone_into(&mut values.description)
        };
        describe("two")(&mut now);
        now.requests_per_minute.clear();
        let overtaken = Err(("description", "two".to_owned()));
        assert_eq!(change_since(&before, &now, describe("three")), overtaken);
        for (text, sent) in [("one", json!({})), ("two", json!({ "description": "two" }))] {
            let changed = change_since(&before, &now, describe(text)).map(Value::from);
            assert_eq!(changed, Ok(sent), "{text}");
        }
        let faster = |values: &mut WebhookForm| values.requests_per_minute = "9".to_owned();
        let overtaken = Err(("requests_per_minute", String::new()));
        assert_eq!(change_since(&before, &now, faster), overtaken);
    }

    proptest! {
        #[test]
        fn a_form_that_is_saved_unchanged_changes_nothing(
            description in "([ a:\r\n\t]|\\PC){0,6}",
            metadata in btree_map("([ a:\r\n\t]|.){0,4}", "([ a:\r\n\t]|.){0,4}", 0..6),
        ) {
            let before = webhook(&description, &metadata);
            prop_assert_eq!(change(&before, |_| {}), json!({}));
        }
    }

    #[test]
    fn only_what_was_changed_in_the_form_is_changed() {
        let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let before = webhook("one", &[entry("a", "1"), entry("b", "2")].into());
        let check = |type_in: fn(&mut WebhookForm), expected: Value| {
            assert_eq!(change(&before, type_in), expected);
        };
        let metadata = json!({"metadata": {"b": null, "c": "3"}});
        check(|values| values.metadata = "a: 1\nc: 3".to_owned(), metadata);
        let metadata = json!({"metadata": {"a": "9"}});
        check(|values| values.metadata = "a: 9\nb: 2".to_owned(), metadata);
        check(|values| values.kept_headers.clear(), json!({"headers": {"x-a": null}}));
        check(|values| values.headers = "x-b: 1".to_owned(), json!({"headers": {"x-b": "1"}}));
        let replace = |values: &mut WebhookForm| {
            values.kept_headers.clear();
            values.headers = "X-A: 2".to_owned();
        };
        check(replace, json!({"headers": {"X-A": "2"}}));
        check(|values| values.description.clear(), json!({"description": ""}));
        check(|values| values.requests_per_minute.clear(), json!({"requests_per_minute": 0}));
        check(|values| values.url.push('x'), json!({"url": "https://a.example/x"}));
        check(|values| values.events.truncate(1), json!({"events": ["user.deleted"]}));
        check(|values| values.answers = "all".to_owned(), json!({"answers": "all"}));
        check(|values| values.ed25519 = false, json!({"ed25519": false}));
    }

    #[test]
    fn a_form_keeps_no_more_headers_and_entries_than_a_webhook_may_have() {
        let long = ["<".repeat(10_000)].into_iter();
        let names: Vec<_> = long.chain((0..1_000).map(|nth| format!("x-{nth}"))).collect();
        let mut sent = Serializer::new(String::new());
        sent.extend_pairs(names.iter().map(|name| ("kept_headers", name)));
        let shown = WebhookForm {
            kept_metadata: names.iter().map(|one| (String::new(), one.clone())).collect(),
            kept_headers: names.clone(),
            ..WebhookForm::default()
        };
        sent.append_pair("shown", &serde_json::to_string(&shown).expect("JSON"));
        let values = WebhookForm::of_form(&Form::read(sent.finish().as_bytes()));
        let shown = values.read_shown().expect("values");
        assert_eq!(values.kept_headers, names[1..17]);
        assert_eq!(shown.kept_headers, names[1..17]);
        let kept: Vec<_> = shown.kept_metadata.into_iter().map(|(_, value)| value).collect();
        assert_eq!(kept, names[1..17]);
    }

    #[test]
    fn two_lines_of_one_name_are_found() {
        let of = |metadata: &str, headers: &str| {
            let (metadata, headers) = (metadata.to_owned(), headers.to_owned());
            let values = WebhookForm { metadata, headers, ..WebhookForm::default() };
            values.repeated().map(|(field, name)| format!("{field} {name}"))
        };
        assert_eq!(of("a: 1\nb: 1\nA: 1", "a: 1\nb: 1"), None);
        assert_eq!(of("a: 1\nb: 1\n a : 2", "").as_deref(), Some("metadata a"));
        assert_eq!(of("a: 1", "b: 1\nb: 1").as_deref(), Some("headers b"));
    }

    #[test]
    fn what_no_line_holds_is_kept_until_a_line_names_it() {
        let entry = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let metadata = [entry("note", "one\ntwo"), entry("a: b", "c"), entry("plain", "1")];
        let before = webhook("", &metadata.into());
        let values = WebhookForm::of_webhook(&before);
        assert_eq!(values.metadata, "plain: 1\n");
        assert_eq!(values.kept_metadata, [entry("a: b", "c"), entry("note", "one\ntwo")]);
        let changed = change(&before, |values| values.metadata = "note: 3".to_owned());
        assert_eq!(changed["metadata"], json!({"note": "3", "plain": null}));
    }
}
