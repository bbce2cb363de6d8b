//! Reads a settings file: every value in it, and every error in it at once.
//!
//! A program reads each key that it knows from a [`Table`]. The keys that it reads become the JSON
//! Schema of the file; a key in the file that it does not read becomes a [`Diagnostic`] with line,
//! column and a suggestion. After an error, reading continues with the default.
//!
//! # Invariants
//!
//! 1. No key is ignored: each is read, or reported.
//! 2. The schema matches what is read: one call makes both.
//! 3. An error is one line, whatever the file contains.
//!
//! Not here: errors between values, which the caller reports with [`Document::fault`].

mod schema;
pub mod table;

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::config::document::schema::Shape;
use crate::config::document::table::Table;

/// The most errors that are listed; more are only counted.
pub const MISTAKES_MAX: usize = 1_000;

/// One error in a settings file: where it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name, as the operator gave it.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

/// All errors, one per line.
#[must_use]
pub fn lines(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A value and its place, a byte offset into its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it starts.
    pub at: usize,
}

/// A settings file: its name, its text, and the errors found in it so far.
#[derive(Debug)]
pub struct Document {
    name: String,
    text: String,
    faults: RefCell<Vec<Fault>>,
}

/// An error at a byte offset. Those of syntax are first: others may follow from them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    kind: FaultKind,
    at: usize,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultKind {
    Syntax,
    Value,
}

impl Document {
    /// A document with a file's text; `name` is its name in errors.
    #[must_use]
    pub fn new(name: &str, text: &str) -> Self {
        let (name, text) = (name.to_owned(), text.to_owned());
        Self { name, text, faults: RefCell::default() }
    }

    /// Reads the whole document with `read`.
    pub fn read<T>(&self, read: impl FnOnce(&mut Table<'_>) -> T) -> Parsed<T> {
        let (root, errors) = DeTable::parse_recoverable(&self.text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            let message = match (error.message(), self.text.get(span.clone())) {
                ("duplicate key", Some(key)) => {
                    format!("`{key}` is set twice: merge both, or remove one")
                }
                (message, _) => message.replace('\n', "; "),
            };
            self.record(FaultKind::Syntax, span.start, message);
        }
        let mut table = Table::new(self, Some(root.get_ref()), 0, String::new());
        let made = read(&mut table);
        let Shape { mut schema, effective } = table.finish();
        if let Some(object) = schema.as_object_mut() {
            let dialect = "https://json-schema.org/draft/2020-12/schema";
            object.insert("$schema".to_owned(), dialect.into());
        }
        Parsed { made, schema, effective }
    }

    /// Records an error at a byte offset. Control characters in what it quotes are escaped.
    pub fn fault(&self, at: usize, message: impl Into<String>) {
        self.record(FaultKind::Value, at, message.into());
    }

    fn record(&self, kind: FaultKind, at: usize, mut message: String) {
        if message.contains(char::is_control) {
            message = message.chars().map(printed).collect();
        }
        self.faults.borrow_mut().push(Fault { kind, at, message });
    }

    /// Records an error in the value of the key at `path`.
    pub fn fault_in(&self, path: &str, message: impl Into<String>) {
        self.fault(self.value_place(path), message);
    }

    /// Where the key at `path` starts; see [`Document::value_place`].
    #[must_use]
    pub fn place(&self, path: &str) -> usize {
        self.places(path).0
    }

    /// Where the value at `path` starts, such as `upstreams.control.servers[0]`: dots lead into
    /// tables, a number in brackets into a list. If the file has only the start of the path,
    /// returns the place of the last part that it has.
    #[must_use]
    pub fn value_place(&self, path: &str) -> usize {
        self.places(path).1
    }

    fn places(&self, path: &str) -> (usize, usize) {
        let (root, _) = DeTable::parse_recoverable(&self.text);
        let (mut table, mut rest, mut places) = (Some(root.get_ref()), path, (0, 0));
        let after = |rest: &'_ str, key: &str| match rest.strip_prefix(key) {
            Some(after) if after.is_empty() || after.starts_with(['.', '[']) => {
                Some(rest.len() - after.len())
            }
            _ => None,
        };
        while let Some(here) = table {
            let found = here
                .iter()
                .find_map(|(key, value)| Some((key, value, after(rest, key.get_ref())?)));
            let Some((key, mut value, length)) = found else { break };
            places = (key.span().start, value.span().start);
            rest = rest.get(length..).unwrap_or_default();
            if let DeValue::Array(items) = value.get_ref()
                && let Some((nth, after)) = rest.strip_prefix('[').and_then(|at| at.split_once(']'))
                && let Some(item) = nth.parse::<usize>().ok().and_then(|nth| items.get(nth))
            {
                places = (item.span().start, item.span().start);
                (value, rest) = (item, after);
            }
            rest = rest.strip_prefix('.').unwrap_or(rest);
            table = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
        places
    }

    /// Every error so far, those of syntax first, in the order of the file: at most
    /// [`MISTAKES_MAX`], and how many more.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut faults = self.faults.borrow().clone();
        faults.sort();
        faults.dedup();
        let more = faults.len().saturating_sub(MISTAKES_MAX);
        faults.truncate(MISTAKES_MAX);
        if let Some(last) = faults.last().filter(|_| more > 0) {
            faults.push(Fault { message: format!("and {more} more problems"), ..*last });
        }
        let lines: Vec<usize> = self.text.match_indices('\n').map(|(at, _)| at + 1).collect();
        faults.into_iter().map(|fault| self.diagnostic(&lines, fault)).collect()
    }

    /// The line of a byte offset, from 1: for an error that names a second place.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    /// How many errors there are so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// An error with its line and column; `lines` has the starts of all lines but the first.
    fn diagnostic(&self, lines: &[usize], fault: Fault) -> Diagnostic {
        let Fault { at, message, .. } = fault;
        let before = lines.partition_point(|start| *start <= at);
        let start = before.checked_sub(1).and_then(|line| lines.get(line)).copied().unwrap_or(0);
        Diagnostic {
            file: self.name.clone(),
            line: before + 1,
            column: self.text.get(start..at).map_or(0, |line| line.chars().count()) + 1,
            message,
        }
    }
}

/// A character as an error shows it: a control character is escaped, as terminals act on it.
fn printed(char: char) -> String {
    if char.is_control() { char.escape_default().collect() } else { char.into() }
}

/// The result of reading a document.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// What the caller's `read` returned.
    pub made: T,
    /// The JSON Schema of the keys that were read.
    pub schema: Value,
    /// The value of each key that was read, as given or by default.
    pub effective: Value,
}

/// "did you mean `window`?", if one of the known words is similar enough.
#[must_use]
pub fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    let close = known.iter().map(|known| (strsim::damerau_levenshtein(word, known), *known));
    let (distance, nearest) = close.min()?;
    (distance <= 1.max(word.len() / 3)).then(|| format!("did you mean `{nearest}`?"))
}

fn one_of(words: &[&str]) -> String {
    if words.is_empty() {
        "no key is allowed here".to_owned()
    } else {
        format!("known: {}", words.join(", "))
    }
}

/// A length of time as a settings file writes it.
#[must_use]
pub fn shown(span: Duration) -> String {
    const UNITS: [(&str, u128); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let millis = span.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    let fits = |(_, size): &&(&str, u128)| millis >= *size && millis.is_multiple_of(*size);
    let (unit, size) = UNITS.iter().find(fits).unwrap_or(&("ms", 1));
    format!("{}{unit}", millis / size)
}

/// The range of any timeout or interval: from 1 ms, the resolution of timers, to a day.
pub const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

/// The units of a length of time, as messages name them.
pub const SPAN_UNITS: &str = "ms, s, m, h or d";

/// Parses a length of time in [`SPAN_UNITS`], or the sum of several. `humantime` accepts more
/// units, among them `M` for a month.
#[must_use]
pub fn span_of(text: &str) -> Option<Duration> {
    let mut units = text.split(|c: char| !c.is_alphabetic()).filter(|unit| !unit.is_empty());
    let known = units.all(|unit| matches!(unit, "ms" | "s" | "m" | "h" | "d"));
    known.then(|| humantime::parse_duration(text).ok()).flatten()
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
    use serde_json::json;

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

    fn diagnostics(text: &str) -> Vec<String> {
        let document = Document::new("f.toml", text);
        let _ = document.read(read);
        document.diagnostics().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_given_is_read_and_the_rest_is_default() {
        let document = Document::new("f.toml", "window = \"1m\"\nbody_max = \"2KiB\"");
        let made = document.read(read).made;
        assert_eq!(made, (Duration::from_secs(60), 60, false, 2048));
        assert_eq!(document.diagnostics(), []);
    }

    #[test]
    fn a_diagnostic_is_one_line_whatever_the_file_contains() {
        let found = diagnostics("quiet = \"no\\nf.toml:9:9: yes\"\n\"ne\\u001b\\u0085w\" = 1\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|diagnostic| !diagnostic.contains(char::is_control)), "{found:?}");
        assert!(found[1].starts_with("f.toml:2:1: unknown key `ne\\u{1b}\\u{85}w`"), "{found:?}");
    }

    #[test]
    fn every_error_is_reported_at_once_with_its_place() {
        assert_eq!(
            diagnostics("widnow = \"1m\"\nrequests = 101\n  quiet = \"yes\"\n"),
            [
                "f.toml:1:1: unknown key `widnow`; did you mean `window`?",
                "f.toml:2:12: requests must be a whole number from 1 to 100, not 101",
                "f.toml:3:11: quiet must be true or false, not \"yes\"",
            ]
        );
    }

    #[test]
    fn a_key_has_a_place_and_one_that_is_left_out_that_of_its_table() {
        let document = Document::new("f.toml", "[a]\nb = 1\n[a.c]\nd = 2\n");
        let at = |path: &str| document.text.get(document.place(path)..).unwrap_or_default();
        assert!(at("a.b").starts_with("b = 1"));
        assert!(at("a.c.d").starts_with("d = 2"));
        assert!(at("a.c.x").starts_with("c]"));
        assert_eq!(document.place("x.y"), 0);
    }

    #[test]
    fn a_value_has_a_place_by_its_path_also_in_lists_and_below_names_with_dots() {
        let text =
            "[a.\"b.c\"]\nservers = [\"one\", \"two\"]\n[[s.h]]\nkey = 1\n[[s.h]]\nkey = 2\n";
        let document = Document::new("f.toml", text);
        let at = |path: &str| document.text.get(document.value_place(path)..).unwrap_or_default();
        assert!(at("a.b.c.servers").starts_with("[\"one\""));
        assert!(at("a.b.c.servers[1]").starts_with("\"two\""));
        assert!(at("s.h[1].key").starts_with('2'));
        assert_eq!(at("s.h[1].left_out"), at("s.h[1]"));
        document.fault_in("s.h[0].key", "wrong");
        assert_eq!(document.diagnostics()[0].to_string(), "f.toml:4:7: wrong");
    }

    #[test]
    fn a_syntax_error_does_not_hide_other_errors() {
        let found = diagnostics("window = = 1\nrequests = 0\n");
        assert!(found.iter().any(|line| line.starts_with("f.toml:1:")), "{found:?}");
        assert!(found.iter().any(|line| line.starts_with("f.toml:2:12:")), "{found:?}");
    }

    #[test]
    fn a_key_or_a_table_that_is_set_twice_is_named() {
        let twice = |key| format!("`{key}` is set twice: merge both, or remove one");
        let found = diagnostics("requests = 1\nrequests = 2\n[limits.a]\n[limits.a]\n");
        assert!(found.contains(&format!("f.toml:2:1: {}", twice("requests"))), "{found:?}");
        assert!(found.contains(&format!("f.toml:4:9: {}", twice("a"))), "{found:?}");
    }

    #[test]
    fn a_syntax_error_is_reported_before_what_follows_from_it() {
        let found = diagnostics("unknown = 1\nwindow = \"1m\nrequests = 0\n");
        assert!(found[0].starts_with("f.toml:2:"), "{found:?}");
        assert!(found.iter().any(|line| line.starts_with("f.toml:1:1:")), "{found:?}");
    }

    #[test]
    fn very_many_errors_are_counted_and_found_quickly() {
        let text: String = (0..200_000).map(|n| format!("unknown_{n} = 1\n")).collect();
        let found = diagnostics(&text);
        assert_eq!(found.len(), MISTAKES_MAX + 1);
        assert!(
            found[MISTAKES_MAX].ends_with("and 199000 more problems"),
            "{}",
            found[MISTAKES_MAX]
        );
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(
            diagnostics("quiet = \"ä\" # ä\n\"ä\" = 1")[1].split(": ").next(),
            Some("f.toml:2:1")
        );
    }

    #[test]
    fn an_invalid_choice_is_reported_with_all_choices() {
        let choice = |text: &str| {
            let document = Document::new("f.toml", text);
            let _ = document.read(|table| table.choice("http", &[("1.1", 1), ("2", 2)], "Which."));
            document.diagnostics().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(choice("http = 2"), ["f.toml:1:8: http must be one of \"1.1\", \"2\", not 2"]);
        assert_eq!(choice("http = \"9.9\""), ["f.toml:1:8: unknown http `9.9`; known: 1.1, 2"]);
    }

    #[test]
    fn a_time_or_size_out_of_range_is_reported() {
        for text in [
            "window = \"0s\"",
            "window = \"2h\"",
            "window = 7",
            "body_max = \"2MiB\"",
            "body_max = \"x\"",
        ] {
            assert_eq!(diagnostics(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn the_schema_has_every_key_that_was_read() {
        let document = Document::new("f.toml", "");
        let schema = document
            .read(|table| {
                let _ = table.tables("limits", "All.", |_, limit| {
                    limit.require("requests");
                    read(limit)
                });
            })
            .schema;
        let limit = &schema["properties"]["limits"]["additionalProperties"];
        assert_eq!(limit["properties"]["requests"]["default"], 60);
        assert_eq!(limit["required"], json!(["requests"]));
        assert_eq!(limit["additionalProperties"], false);
    }

    /// Reads lists, a share and a secret.
    fn read_more(table: &mut Table<'_>) -> (Vec<u64>, Vec<Duration>, f64) {
        let numbers = table.numbers("ports", 1..=65_535, "Which.");
        let spans = table.spans("delays", WINDOWS, "When.");
        let share = table.share_or("share", 0.05, "How much.");
        table.text("password", "Never shown.");
        table.hide("password");
        let numbers = numbers.into_iter().map(|number| number.value).collect();
        (numbers, spans.into_iter().map(|span| span.value).collect(), share)
    }

    #[test]
    fn lists_and_shares_are_read_and_secrets_are_not_shown() {
        let text = "ports = [443, 0x1F]\ndelays = [\"1s\", \"5ms\"]\nshare = 0.5\npassword = \"p\"";
        let document = Document::new("f.toml", text);
        let Parsed { made, effective, .. } = document.read(read_more);
        assert_eq!(document.diagnostics(), []);
        let spans = vec![Duration::from_secs(1), Duration::from_millis(5)];
        assert_eq!(made, (vec![443, 31], spans, 0.5));
        let shown = json!({"ports": [443, 31], "delays": ["1s", "5ms"], "share": 0.5,
            "password": "***"});
        assert_eq!(effective, shown);
    }

    #[test]
    fn a_text_or_a_list_of_texts_is_read_with_the_place_of_each() {
        let read = |text: &str| {
            let document = Document::new("f", text);
            let read = |table: &mut Table<'_>| table.text_or_texts("key", "^[a-z]+$", "Whose.");
            let texts = document.read(read).made;
            let texts = texts.into_iter().map(|text| format!("{} {}", text.at, text.value));
            let faults = document.diagnostics().into_iter().map(|fault| fault.to_string());
            (texts.collect::<Vec<_>>(), faults.collect::<Vec<_>>())
        };
        let good = |texts: &[&str]| (texts.iter().map(|text| (*text).to_owned()).collect(), vec![]);
        assert_eq!(read(""), good(&[]));
        assert_eq!(read("key = \"a\""), good(&["6 a"]));
        assert_eq!(read("key = [\"a\", \"b\"]"), good(&["7 a", "12 b"]));
        for (wrong, at) in [("key = []", 7), ("key = 7", 7), ("key = [\"a\", 7]", 13)] {
            let (_, faults) = read(wrong);
            let start = format!("f:1:{at}: key must be text in quotes, or a list of one text");
            assert!(faults.len() == 1 && faults[0].starts_with(&start), "{wrong}: {faults:?}");
        }
    }

    #[test]
    fn each_item_that_is_wrong_is_reported_at_its_place() {
        let text = "ports = [0, 1, \"a\"]\ndelays = [\"1s\", \"2h\"]\nshare = 1.5";
        let document = Document::new("f.toml", text);
        let made = document.read(read_more).made;
        assert_eq!(made, (vec![1], vec![Duration::from_secs(1)], 0.05));
        let found: Vec<_> = document.diagnostics().iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "f.toml:1:10: ports must be a list of whole numbers from 1 to 65535, not 0",
                "f.toml:1:16: ports must be a list of whole numbers from 1 to 65535, not \"a\"",
                "f.toml:2:17: delays must be a list of times such as \"10s\" (in ms, s, m, \
                 h or d), from 1ms to 1m, not \"2h\"",
                "f.toml:3:9: share must be a share from 0 to 1, such as 0.05, not 1.5",
            ]
        );
        for text in ["share = -0.1", "share = nan", "share = \"5%\"", "ports = 443"] {
            let document = Document::new("f.toml", text);
            let _ = document.read(read_more);
            assert_eq!(document.count(), 1, "{text}");
        }
    }

    #[test]
    fn times_are_shown_in_the_largest_unit_that_is_whole() {
        for (text, shown_as) in
            [("1m", "1m"), ("90s", "90s"), ("24h", "1d"), ("500ms", "500ms"), ("31d", "31d")]
        {
            assert_eq!(span_of(text).map(shown).as_deref(), Some(shown_as));
        }
        assert_eq!(shown(Duration::ZERO), "0s");
    }

    #[test]
    fn a_time_in_any_other_unit_is_none_and_a_month_above_all() {
        for text in ["1M", "1minute", "2w", "7 days", "1h 1M", "5us", "1y"] {
            assert_eq!(span_of(text), None, "{text}");
        }
        for (text, millis) in [("1m 30s", 90_000), ("1h1h", 7_200_000), ("1.5 s", 1_500)] {
            assert_eq!(span_of(text), Some(Duration::from_millis(millis)), "{text}");
        }
        let wanted = "window must be a time such as \"10s\" (in ms, s, m, h or d), from 1ms to 1m";
        assert_eq!(diagnostics("window = \"1M\""), [format!("f.toml:1:10: {wanted}, not \"1M\"")]);
    }

    #[test]
    fn sizes_are_shown_as_they_are_written() {
        for text in ["1B", "1KiB", "1500B", "32KiB", "1MiB", "3GiB"] {
            assert_eq!(bytes_of(text).map(bytes_shown).as_deref(), Some(text));
        }
    }
}
