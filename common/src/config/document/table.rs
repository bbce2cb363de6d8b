//! A table of a settings file, read key by key.
//!
//! Each method reads one kind of value, adds its key to the schema, and records an error in the
//! document if the value is of another kind.

mod lists;

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use crate::config::document::schema::{Shape, found, json_of};
use crate::config::document::{
    Document, SPAN_UNITS, Spanned, bytes_shown, one_of, shown, span_of, suggestion,
};

/// One table of the document; a missing one has all defaults.
#[derive(Debug)]
pub struct Table<'d> {
    document: &'d Document,
    given: Option<&'d DeTable<'d>>,
    start: usize,
    path: String,
    described: Map<String, Value>,
    effective: Map<String, Value>,
    required: Vec<Value>,
}

impl<'d> Table<'d> {
    pub(super) fn new(
        document: &'d Document,
        given: Option<&'d DeTable<'d>>,
        start: usize,
        path: String,
    ) -> Self {
        Self {
            document,
            given,
            start,
            path,
            described: Map::new(),
            effective: Map::new(),
            required: Vec::new(),
        }
    }

    /// Where the table starts in the document.
    #[must_use]
    pub fn at(&self) -> usize {
        self.start
    }

    /// Whether the file has the table.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Records an error about the table as a whole.
    pub fn fault(&self, message: impl Into<String>) {
        self.document.fault(self.start, message);
    }

    /// Records an error at a place of the same document.
    pub fn fault_at(&self, at: usize, message: impl Into<String>) {
        self.document.fault(at, message);
    }

    /// Records an error in the value at `path`, relative to this table.
    pub fn fault_in(&self, path: &str, message: impl Into<String>) {
        self.document.fault_in(&self.name_of(path), message);
    }

    /// Marks `key` as required in the schema, and records an error if it is missing.
    pub fn require(&mut self, key: &str) {
        self.required.push(key.into());
        self.need(key);
    }

    /// Records an error if `key` is missing: for a key that other values, not the schema, require.
    pub fn need(&mut self, key: &str) {
        if self.value(key).is_none() {
            self.fault(format!("{} is missing", self.name_of(key)));
        }
    }

    /// Text, where given.
    pub fn text(&mut self, key: &str, doc: &str) -> Option<Spanned<String>> {
        self.describe(key, doc, json!({"type": "string"}));
        let (at, value) = self.value(key)?;
        match value {
            DeValue::String(text) => Some(Spanned { value: text.to_string(), at }),
            _ => self.wrong(key, at, value, "text in quotes"),
        }
    }

    /// A SHA-256 in 64 hex digits, where given.
    pub fn sha256(&mut self, key: &str, doc: &str) -> Option<Spanned<[u8; 32]>> {
        let text = self.text(key, doc)?;
        let mut value = [0; 32];
        if hex::decode_to_slice(&text.value, &mut value).is_ok() {
            return Some(Spanned { value, at: text.at });
        }
        let found = text.value.len();
        self.fault_at(text.at, format!("{key} must be 64 hex digits, not {found} characters"));
        None
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, default: bool, doc: &str) -> bool {
        self.describe(key, doc, json!({"type": "boolean"}));
        self.set_default(key, default.into());
        let Some((at, value)) = self.value(key) else { return default };
        match value {
            DeValue::Boolean(flag) => *flag,
            _ => self.wrong(key, at, value, "true or false").unwrap_or(default),
        }
    }

    /// A whole number within `range`, where given.
    pub fn number(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        doc: &str,
    ) -> Option<Spanned<u64>> {
        self.describe(
            key,
            doc,
            json!({"type": "integer", "minimum": range.start(), "maximum": range.end()}),
        );
        let (at, value) = self.value(key)?;
        let number = match value {
            DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(value) => Some(Spanned { value, at }),
            None => {
                let wanted = format!("a whole number from {} to {}", range.start(), range.end());
                self.wrong(key, at, value, &wanted)
            }
        }
    }

    /// A whole number within `range`, or `default`.
    pub fn number_or(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        default: u64,
        doc: &str,
    ) -> u64 {
        let number = self.number(key, range, doc);
        self.set_default(key, default.into());
        number.map_or(default, |number| number.value)
    }

    /// A share from 0 to 1, or `default`.
    pub fn share_or(&mut self, key: &str, default: f64, doc: &str) -> f64 {
        self.describe(key, doc, json!({"type": "number", "minimum": 0, "maximum": 1}));
        self.set_default(key, default.into());
        let Some((at, value)) = self.value(key) else { return default };
        let share = match value {
            DeValue::Float(digits) => digits.as_str().parse().ok(),
            DeValue::Integer(digits) => digits.as_str().parse().ok(),
            _ => None,
        };
        share.filter(|share| (0.0..=1.0).contains(share)).unwrap_or_else(|| {
            self.wrong(key, at, value, "a share from 0 to 1, such as 0.05").unwrap_or(default)
        })
    }

    /// A length of time within `range`, written as `"10s"` or `"1m 30s"`, where given.
    pub fn span(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
        doc: &str,
    ) -> Option<Spanned<Duration>> {
        self.describe(
            key,
            doc,
            json!({"type": "string", "examples": ["500ms", "10s", "1m", "24h"]}),
        );
        let (at, value) = self.value(key)?;
        let span = match value {
            DeValue::String(text) => span_of(text),
            _ => None,
        };
        match span.filter(|span| range.contains(span)) {
            Some(value) => Some(Spanned { value, at }),
            None => {
                let (least, most) = (shown(*range.start()), shown(*range.end()));
                self.wrong(
                    key,
                    at,
                    value,
                    &format!("a time such as \"10s\" (in {SPAN_UNITS}), from {least} to {most}"),
                )
            }
        }
    }

    /// A length of time within `range`, or `default`.
    pub fn span_or(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
        default: Duration,
        doc: &str,
    ) -> Duration {
        let span = self.span(key, range, doc);
        self.set_default(key, shown(default).into());
        span.map_or(default, |span| span.value)
    }

    /// A number of bytes within `range`, or `default`.
    pub fn bytes_or(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        default: u64,
        doc: &str,
    ) -> u64 {
        let bytes = self.bytes(key, range, doc);
        self.set_default(key, bytes_shown(default).into());
        bytes.map_or(default, |bytes| bytes.value)
    }

    /// One of several words, each standing for a value; the first is the default.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], doc: &str) -> T {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.describe(key, doc, json!({"enum": words}));
        let (default_word, default) = choices.first().expect("a choice has choices");
        self.set_default(key, (*default_word).into());
        let Some((at, value)) = self.value(key) else { return *default };
        let DeValue::String(text) = value else {
            let wanted = format!("one of \"{}\"", words.join("\", \""));
            return self.wrong(key, at, value, &wanted).unwrap_or(*default);
        };
        let chosen = choices.iter().find(|(word, _)| *word == text.as_ref());
        chosen.map_or_else(
            || {
                let hint = suggestion(text, &words).unwrap_or_else(|| one_of(&words));
                self.document.fault(at, format!("unknown {} `{text}`; {hint}", self.name_of(key)));
                *default
            },
            |(_, value)| *value,
        )
    }

    /// The table `key`, read by `read`; all defaults where it is not given.
    pub fn table<T>(&mut self, key: &str, doc: &str, read: impl FnOnce(&mut Table<'_>) -> T) -> T {
        let (given, start) = match self.value(key) {
            Some((at, DeValue::Table(table))) => (Some(table), at),
            Some((at, value)) => {
                self.wrong::<()>(key, at, value, "a table");
                (None, at)
            }
            None => (None, self.start),
        };
        let mut table = Table::new(self.document, given, start, self.name_of(key));
        let made = read(&mut table);
        let Shape { schema, effective } = table.finish();
        self.describe(key, doc, schema);
        self.effective.insert(key.to_owned(), effective);
        made
    }

    /// Every table below `key`, by name, in the order of their names.
    pub fn tables<T>(
        &mut self,
        key: &str,
        doc: &str,
        mut read: impl FnMut(&Spanned<String>, &mut Table<'_>) -> T,
    ) -> Vec<(Spanned<String>, T)> {
        let (mut made, mut effective) = (Vec::new(), Map::new());
        match self.value(key) {
            Some((_, DeValue::Table(tables))) => {
                for (name, value) in tables {
                    let name = Spanned { value: name.get_ref().to_string(), at: name.span().start };
                    let path = format!("{}.{}", self.name_of(key), name.value);
                    let DeValue::Table(given) = value.get_ref() else {
                        let found = found(value.get_ref());
                        let text = format!("{path} must be a table, not {found}");
                        self.document.fault(value.span().start, text);
                        continue;
                    };
                    let mut table = Table::new(self.document, Some(given), name.at, path);
                    let entry = read(&name, &mut table);
                    effective.insert(name.value.clone(), table.finish().effective);
                    made.push((name, entry));
                }
            }
            Some((at, value)) => drop(self.wrong::<()>(key, at, value, "a table of tables")),
            None => {}
        }
        let shape =
            shape_of(|table| drop(read(&Spanned { value: "name".to_owned(), at: 0 }, table)));
        self.describe(key, doc, json!({"type": "object", "additionalProperties": shape}));
        self.effective.insert(key.to_owned(), effective.into());
        made
    }

    /// Reports keys that were not read, and returns the schema and values of those that were.
    pub(super) fn finish(self) -> Shape {
        let known: Vec<&str> = self.described.keys().map(String::as_str).collect();
        for (key, _) in self.given.into_iter().flatten() {
            let name = key.get_ref();
            if !self.described.contains_key(name.as_ref()) {
                let place = if self.path.is_empty() {
                    String::new()
                } else {
                    format!(" in `{}`", self.path)
                };
                let hint = suggestion(name, &known).unwrap_or_else(|| one_of(&known));
                self.document
                    .fault(key.span().start, format!("unknown key `{name}`{place}; {hint}"));
            }
        }
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "required": self.required,
            "properties": self.described,
        });
        Shape { schema, effective: self.effective.into() }
    }

    fn value(&self, key: &str) -> Option<(usize, &'d DeValue<'d>)> {
        let value: &toml::Spanned<DeValue<'_>> = self.given?.get(key)?;
        let Range { start, .. } = value.span();
        Some((start, value.get_ref()))
    }

    fn describe(&mut self, key: &str, doc: &str, mut shape: Value) {
        if let Some(object) = shape.as_object_mut() {
            object.insert("description".to_owned(), doc.into());
        }
        self.described.insert(key.to_owned(), shape);
        if let Some((_, value)) = self.value(key) {
            self.effective.insert(key.to_owned(), json_of(value));
        }
    }

    /// Whether the file has `key`.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Sets the default: in the schema, and in the active values if `key` is missing.
    pub fn set_default(&mut self, key: &str, default: Value) {
        if let Some(Value::Object(shape)) = self.described.get_mut(key) {
            shape.insert("default".to_owned(), default.clone());
        }
        if self.value(key).is_none() {
            self.effective.insert(key.to_owned(), default);
        }
    }

    /// Hides the value of `key` among the active values.
    pub fn hide(&mut self, key: &str) {
        if let Some(value) = self.effective.get_mut(key) {
            *value = "***".into();
        }
    }

    fn wrong<T>(&self, key: &str, at: usize, value: &DeValue<'_>, wanted: &str) -> Option<T> {
        let found = found(value);
        self.document.fault(at, format!("{} must be {wanted}, not {found}", self.name_of(key)));
        None
    }

    fn name_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// The schema of the table that `read` reads, from reading an empty one.
pub(super) fn shape_of(read: impl FnOnce(&mut Table<'_>)) -> Value {
    let nothing = Document::new("", "");
    let mut table = Table::new(&nothing, None, 0, String::new());
    read(&mut table);
    table.finish().schema
}
