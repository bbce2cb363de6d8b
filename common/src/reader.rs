//! Reads a settings file: every value it holds, and every mistake in it at once.
//!
//! A program asks a [`Table`] for what it knows, key by key. What was asked becomes the JSON
//! Schema of the file; what stands in the file and was not asked for becomes a [`Mistake`] with
//! line, column and a suggestion. Reading goes on after a mistake with the default in its place.
//!
//! # Invariants
//!
//! 1. No key is ignored: each is asked for, or reported.
//! 2. The schema and the reading cannot disagree: one call makes both.
//!
//! Not here: what the values mean together, which whoever asked reports with [`Document::fault`].

use std::cell::RefCell;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use serde_json::{Map, Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One thing wrong with a settings file, where it is and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file, as it was named to us.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

/// A value and where it stands, as a byte offset into its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it starts.
    pub at: usize,
}

/// A settings file: its name, its text, and the mistakes found in it so far.
#[derive(Debug)]
pub struct Document {
    name: String,
    text: String,
    faults: RefCell<Vec<(usize, String)>>,
}

impl Document {
    /// Takes a file's text; `name` is what mistakes call it.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        let (name, text) = (name.to_owned(), text.to_owned());
        Self { name, text, faults: RefCell::default() }
    }

    /// Reads the whole document with `read`, and gives what it made and the schema of what it
    /// asked for.
    pub fn read<T>(&self, read: impl FnOnce(&mut Table<'_>) -> T) -> (T, Value) {
        let (root, errors) = DeTable::parse_recoverable(&self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.fault(at, error.message().replace('\n', "; "));
        }
        let mut table = Table::new(self, Some(root.get_ref()), 0, String::new());
        let made = read(&mut table);
        let mut schema = table.finish();
        if let Some(object) = schema.as_object_mut() {
            object.insert(
                "$schema".to_owned(),
                "https://json-schema.org/draft/2020-12/schema".into(),
            );
        }
        (made, schema)
    }

    /// Notes a mistake at a byte offset.
    pub fn fault(&self, at: usize, message: impl Into<String>) {
        self.faults.borrow_mut().push((at, message.into()));
    }

    /// Every mistake so far, in the order of the file.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut faults = self.faults.borrow().clone();
        faults.sort();
        faults.dedup();
        faults.into_iter().map(|(at, message)| self.mistake(at, message)).collect()
    }

    fn mistake(&self, at: usize, message: String) -> Mistake {
        let before = self.text.get(..at).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Mistake {
            file: self.name.clone(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).map_or(0, |line| line.chars().count()) + 1,
            message,
        }
    }
}

/// One table of the document, or one that is missing and therefore all defaults.
#[derive(Debug)]
pub struct Table<'d> {
    document: &'d Document,
    given: Option<&'d DeTable<'d>>,
    start: usize,
    path: String,
    asked: Map<String, Value>,
    required: Vec<Value>,
}

impl<'d> Table<'d> {
    fn new(
        document: &'d Document,
        given: Option<&'d DeTable<'d>>,
        start: usize,
        path: String,
    ) -> Self {
        Self { document, given, start, path, asked: Map::new(), required: Vec::new() }
    }

    /// Where the table starts in the document.
    #[must_use]
    pub fn at(&self) -> usize {
        self.start
    }

    /// Whether the table stands in the file at all.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Notes a mistake about the table as a whole.
    pub fn fault(&self, message: impl Into<String>) {
        self.document.fault(self.start, message);
    }

    /// Notes a mistake at a place of the same document.
    pub fn fault_at(&self, at: usize, message: impl Into<String>) {
        self.document.fault(at, message);
    }

    /// Says that `key` cannot be left out, to the schema and, where it was, to the reader.
    pub fn require(&mut self, key: &str) {
        self.required.push(key.into());
        if self.value(key).is_none() {
            self.fault(format!("{} is missing", self.name_of(key)));
        }
    }

    /// Text, where given.
    pub fn text(&mut self, key: &str, doc: &str) -> Option<At<String>> {
        self.ask(key, doc, json!({"type": "string"}));
        let (at, value) = self.value(key)?;
        match value {
            DeValue::String(text) => Some(At { value: text.to_string(), at }),
            _ => self.wrong(key, at, value, "text in quotes"),
        }
    }

    /// A list of texts; empty where not given.
    pub fn texts(&mut self, key: &str, doc: &str) -> Vec<At<String>> {
        self.ask(key, doc, json!({"type": "array", "items": {"type": "string"}}));
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            return self.wrong(key, at, value, "a list of texts").unwrap_or_default();
        };
        let mut texts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => {
                    texts.push(At { value: text.to_string(), at: item.span().start })
                }
                other => drop(self.wrong::<()>(key, item.span().start, other, "a list of texts")),
            }
        }
        texts
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, default: bool, doc: &str) -> bool {
        self.ask(key, doc, json!({"type": "boolean", "default": default}));
        let Some((at, value)) = self.value(key) else { return default };
        match value {
            DeValue::Boolean(flag) => *flag,
            _ => self.wrong(key, at, value, "true or false").unwrap_or(default),
        }
    }

    /// A whole number within `range`, where given.
    pub fn number(&mut self, key: &str, range: RangeInclusive<u64>, doc: &str) -> Option<At<u64>> {
        self.ask(
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
            Some(value) => Some(At { value, at }),
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

    /// A length of time within `range`, written as `"10s"` or `"1m 30s"`, where given.
    pub fn span(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
        doc: &str,
    ) -> Option<At<Duration>> {
        self.ask(key, doc, json!({"type": "string", "examples": ["500ms", "10s", "1m", "24h"]}));
        let (at, value) = self.value(key)?;
        let span = match value {
            DeValue::String(text) => humantime::parse_duration(text).ok(),
            _ => None,
        };
        match span.filter(|span| range.contains(span)) {
            Some(value) => Some(At { value, at }),
            None => {
                let (least, most) = (shown(*range.start()), shown(*range.end()));
                self.wrong(
                    key,
                    at,
                    value,
                    &format!("a time such as \"10s\", from {least} to {most}"),
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

    /// A number of bytes within `range`, written as `"1MiB"`, or `default`.
    pub fn bytes_or(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        default: u64,
        doc: &str,
    ) -> u64 {
        self.ask(key, doc, json!({"type": "string", "examples": ["32KiB", "1MiB"]}));
        self.set_default(key, bytes_shown(default).into());
        let Some((at, value)) = self.value(key) else { return default };
        let bytes = match value {
            DeValue::String(text) => bytes_of(text),
            _ => None,
        };
        bytes.filter(|bytes| range.contains(bytes)).unwrap_or_else(|| {
            let (least, most) = (bytes_shown(*range.start()), bytes_shown(*range.end()));
            let wanted = format!("a size such as \"1MiB\", from {least} to {most}");
            self.wrong(key, at, value, &wanted).unwrap_or(default)
        })
    }

    /// One of several words, each standing for a value; the first is the default.
    pub fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], doc: &str) -> T {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.ask(key, doc, json!({"enum": words}));
        let (default_word, default) = choices.first().expect("a choice has choices");
        self.set_default(key, (*default_word).into());
        let Some((at, value)) = self.value(key) else { return *default };
        let DeValue::String(text) = value else {
            return self.wrong(key, at, value, &one_of(&words)).unwrap_or(*default);
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
        let shape = table.finish();
        self.ask(key, doc, shape);
        made
    }

    /// Every table below `key`, by name, in the order of their names.
    pub fn tables<T>(
        &mut self,
        key: &str,
        doc: &str,
        mut read: impl FnMut(&At<String>, &mut Table<'_>) -> T,
    ) -> Vec<(At<String>, T)> {
        let mut made = Vec::new();
        match self.value(key) {
            Some((_, DeValue::Table(tables))) => {
                for (name, value) in tables {
                    let name = At { value: name.get_ref().to_string(), at: name.span().start };
                    let path = format!("{}.{}", self.name_of(key), name.value);
                    let DeValue::Table(given) = value.get_ref() else {
                        self.document
                            .fault(value.span().start, format!("`{path}` must be a table"));
                        continue;
                    };
                    let mut table = Table::new(self.document, Some(given), name.at, path);
                    let entry = read(&name, &mut table);
                    table.finish();
                    made.push((name, entry));
                }
            }
            Some((at, value)) => drop(self.wrong::<()>(key, at, value, "a table of tables")),
            None => {}
        }
        let shape = shape_of(|table| drop(read(&At { value: "name".to_owned(), at: 0 }, table)));
        self.ask(key, doc, json!({"type": "object", "additionalProperties": shape}));
        made
    }

    /// Every `[[key]]`, in the order of the file.
    pub fn list<T>(
        &mut self,
        key: &str,
        doc: &str,
        mut read: impl FnMut(&mut Table<'_>) -> T,
    ) -> Vec<T> {
        let mut made = Vec::new();
        match self.value(key) {
            Some((_, DeValue::Array(items))) => {
                for item in items {
                    let DeValue::Table(given) = item.get_ref() else {
                        self.wrong::<()>(
                            key,
                            item.span().start,
                            item.get_ref(),
                            "a list of tables",
                        );
                        continue;
                    };
                    let start = item.span().start;
                    let mut table =
                        Table::new(self.document, Some(given), start, self.name_of(key));
                    made.push(read(&mut table));
                    table.finish();
                }
            }
            Some((at, value)) => drop(self.wrong::<()>(key, at, value, "a list of tables")),
            None => {}
        }
        let shape = shape_of(|table| drop(read(table)));
        self.ask(key, doc, json!({"type": "array", "items": shape}));
        made
    }

    /// Reports what was not asked for and gives the schema of what was.
    fn finish(self) -> Value {
        let known: Vec<&str> = self.asked.keys().map(String::as_str).collect();
        for (key, _) in self.given.into_iter().flatten() {
            let name = key.get_ref();
            if !self.asked.contains_key(name.as_ref()) {
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
        json!({
            "type": "object",
            "additionalProperties": false,
            "required": self.required,
            "properties": self.asked,
        })
    }

    fn value(&self, key: &str) -> Option<(usize, &'d DeValue<'d>)> {
        let value: &Spanned<DeValue<'_>> = self.given?.get(key)?;
        let Range { start, .. } = value.span();
        Some((start, value.get_ref()))
    }

    fn ask(&mut self, key: &str, doc: &str, mut shape: Value) {
        if let Some(object) = shape.as_object_mut() {
            object.insert("description".to_owned(), doc.into());
        }
        self.asked.insert(key.to_owned(), shape);
    }

    fn set_default(&mut self, key: &str, default: Value) {
        if let Some(Value::Object(shape)) = self.asked.get_mut(key) {
            shape.insert("default".to_owned(), default);
        }
    }

    fn wrong<T>(&self, key: &str, at: usize, value: &DeValue<'_>, wanted: &str) -> Option<T> {
        let found = match value {
            DeValue::String(text) => format!("\"{text}\""),
            DeValue::Integer(digits) => digits.as_str().to_owned(),
            DeValue::Float(digits) => digits.as_str().to_owned(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.document.fault(at, format!("{} must be {wanted}, not {found}", self.name_of(key)));
        None
    }

    fn name_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// The schema of a table that `read` would read, found by letting it read an empty one.
fn shape_of(read: impl FnOnce(&mut Table<'_>)) -> Value {
    let nothing = Document::new("", "");
    let mut table = Table::new(&nothing, None, 0, String::new());
    read(&mut table);
    table.finish()
}

/// "did you mean `window`?", where one of the known words is close enough to be meant.
#[must_use]
pub fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    let close = known.iter().map(|known| (strsim::damerau_levenshtein(word, known), *known));
    let (distance, nearest) = close.min()?;
    (distance <= 1.max(word.len() / 3)).then(|| format!("did you mean `{nearest}`?"))
}

fn one_of(words: &[&str]) -> String {
    if words.is_empty() {
        "nothing is known here".to_owned()
    } else {
        format!("known: {}", words.join(", "))
    }
}

/// A length of time as a settings file writes it.
#[must_use]
pub fn shown(span: Duration) -> String {
    humantime::format_duration(span).to_string()
}

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes as a settings file writes it.
#[must_use]
pub fn bytes_shown(bytes: u64) -> String {
    let fits = |(_, size): &&(&str, u64)| bytes >= *size && bytes.is_multiple_of(*size);
    let (unit, size) = UNITS.iter().find(fits).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / size)
}

fn bytes_of(text: &str) -> Option<u64> {
    let (unit, size) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    text.strip_suffix(unit)?.trim_end().parse::<u64>().ok()?.checked_mul(*size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

    fn read(table: &mut Table<'_>) -> (Duration, u64, bool, u64) {
        (
            table.span_or("window", WINDOWS, Duration::from_secs(10), "How long."),
            table.number_or("requests", 1..=100, 60, "How many."),
            table.flag("quiet", false, "Say nothing."),
            table.bytes_or("body_max", 1..=1 << 20, 1 << 10, "How large."),
        )
    }

    fn mistakes(text: &str) -> Vec<String> {
        let document = Document::new("f.toml", text);
        let _ = document.read(read);
        document.mistakes().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_given_is_read_and_the_rest_is_default() {
        let document = Document::new("f.toml", "window = \"1m\"\nbody_max = \"2KiB\"");
        let (made, _) = document.read(read);
        assert_eq!(made, (Duration::from_secs(60), 60, false, 2048));
        assert_eq!(document.mistakes(), []);
    }

    #[test]
    fn every_mistake_is_reported_at_once_with_its_place() {
        assert_eq!(
            mistakes("widnow = \"1m\"\nrequests = 101\n  quiet = \"yes\"\n"),
            [
                "f.toml:1:1: unknown key `widnow`; did you mean `window`?",
                "f.toml:2:12: requests must be a whole number from 1 to 100, not 101",
                "f.toml:3:11: quiet must be true or false, not \"yes\"",
            ]
        );
    }

    #[test]
    fn a_mistake_in_the_syntax_does_not_hide_the_others() {
        let found = mistakes("window = = 1\nrequests = 0\n");
        assert!(found.iter().any(|line| line.starts_with("f.toml:1:")), "{found:?}");
        assert!(found.iter().any(|line| line.starts_with("f.toml:2:12:")), "{found:?}");
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(
            mistakes("quiet = \"ä\" # ä\n\"ä\" = 1")[1].split(": ").next(),
            Some("f.toml:2:1")
        );
    }

    #[test]
    fn a_time_or_size_out_of_range_is_a_mistake() {
        for text in [
            "window = \"0s\"",
            "window = \"2h\"",
            "window = 7",
            "body_max = \"2MiB\"",
            "body_max = \"x\"",
        ] {
            assert_eq!(mistakes(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn the_schema_knows_what_was_asked_for() {
        let (_, schema) = Document::new("f.toml", "").read(|table| {
            let _ = table.tables("limits", "All.", |_, limit| {
                limit.require("requests");
                read(limit)
            });
        });
        let limit = &schema["properties"]["limits"]["additionalProperties"];
        assert_eq!(limit["properties"]["requests"]["default"], 60);
        assert_eq!(limit["required"], json!(["requests"]));
        assert_eq!(limit["additionalProperties"], false);
    }

    #[test]
    fn sizes_are_shown_as_they_are_written() {
        for text in ["1B", "1KiB", "1500B", "32KiB", "1MiB", "3GiB"] {
            assert_eq!(bytes_of(text).map(bytes_shown).as_deref(), Some(text));
        }
    }
}
