//! Values of a settings file that are lists, or of more than one type. Each item of a list is read
//! by itself, and each invalid one is reported.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use toml::de::DeValue;

use crate::config::document::schema::json_of;
use crate::config::document::table::Table;
use crate::config::document::table::shape_of;
use crate::config::document::{SPAN_UNITS, Spanned, bytes_of, bytes_shown, shown, span_of};

/// How the items of a list are read.
struct ItemKind<R> {
    /// The schema of an item.
    shape: Value,
    /// What the list must be, as an error states it.
    wanted: String,
    /// Reads an item; `None` if it is invalid.
    read: R,
}

impl Table<'_> {
    /// A number of bytes within `range`, written as `"1MiB"`, where given.
    pub fn bytes(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        doc: &str,
    ) -> Option<Spanned<u64>> {
        let mut bytes = None;
        let shape = json!({"type": "string", "examples": ["32KiB", "1MiB"]});
        let at = self.parsed(key, doc, shape, |value| {
            let (least, most) = (bytes_shown(*range.start()), bytes_shown(*range.end()));
            bytes = value.as_str().and_then(bytes_of).filter(|bytes| range.contains(bytes));
            let wanted = || format!("a size such as \"1MiB\", from {least} to {most}");
            bytes.map(drop).ok_or_else(wanted)
        });
        Some(Spanned { value: bytes?, at: at? })
    }

    /// A value of any type, where given: `read` stores it, or says what it should be. Returns its
    /// place.
    pub fn parsed(
        &mut self,
        key: &str,
        doc: &str,
        shape: Value,
        read: impl FnOnce(&Value) -> Result<(), String>,
    ) -> Option<usize> {
        self.describe(key, doc, shape);
        let (at, value) = self.value(key)?;
        if let Err(wanted) = read(&json_of(value)) {
            return self.wrong(key, at, value, &wanted);
        }
        Some(at)
    }

    /// A list of texts; empty where not given.
    pub fn texts(&mut self, key: &str, doc: &str) -> Vec<Spanned<String>> {
        let read = |item: &DeValue<'_>| match item {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        };
        let texts =
            ItemKind { shape: json!({"type": "string"}), wanted: "a list of texts".into(), read };
        self.items(key, doc, texts)
    }

    /// A list of networks, of which an address is one; empty where not given.
    pub fn networks(&mut self, key: &str, doc: &str) -> Vec<IpNet> {
        let texts = self.texts(key, doc);
        let network = |text: &Spanned<String>| {
            let single = || text.value.parse::<IpAddr>().ok().map(IpNet::from);
            let parsed = text.value.parse().ok().or_else(single);
            if parsed.is_none() {
                let message = format!("`{}` is not a network, such as \"10.0.0.0/8\"", text.value);
                self.fault_at(text.at, message);
            }
            parsed
        };
        texts.iter().filter_map(network).collect()
    }

    /// A list of one text or more; empty where not given, which has a default. A list without a
    /// text is refused: its reader could take it to mean none.
    pub fn some_texts(&mut self, key: &str, doc: &str) -> Vec<Spanned<String>> {
        let texts = self.texts(key, doc);
        match self.value(key) {
            Some((at, DeValue::Array(items))) if items.is_empty() => {
                let why = "is empty: name at least one, or leave it out";
                self.fault_at(at, format!("`{key}` {why}"));
            }
            _ => {}
        }
        texts
    }

    /// A text, or a list of texts, each of the form that the regular expression `pattern` tells
    /// editors; the caller reports another. Empty only where not given, or reported.
    pub fn text_or_texts(&mut self, key: &str, pattern: &str, doc: &str) -> Vec<Spanned<String>> {
        let shape = json!({"type": "string", "pattern": pattern});
        let list = json!({"type": "array", "items": shape, "minItems": 1, "uniqueItems": true});
        self.describe(key, doc, json!({"anyOf": [shape, list]}));
        const WANTED: &str = "text in quotes, or a list of one text or more";
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let mut texts = Vec::new();
        let mut read = |at, item: &DeValue<'_>| match item {
            DeValue::String(text) => texts.push(Spanned { value: text.to_string(), at }),
            other => drop(self.wrong::<()>(key, at, other, WANTED)),
        };
        match value {
            DeValue::Array(items) if !items.is_empty() => {
                items.iter().for_each(|item| read(item.span().start, item.get_ref()));
            }
            one => read(at, one),
        }
        texts
    }

    /// A list of whole numbers within `range`; empty where not given.
    pub fn numbers(
        &mut self,
        key: &str,
        range: RangeInclusive<u64>,
        doc: &str,
    ) -> Vec<Spanned<u64>> {
        let (least, most) = (range.start(), range.end());
        let shape = json!({"type": "integer", "minimum": least, "maximum": most});
        let wanted = format!("a list of whole numbers from {least} to {most}");
        let read = |item: &DeValue<'_>| match item {
            DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix())
                .ok()
                .filter(|number| range.contains(number)),
            _ => None,
        };
        self.items(key, doc, ItemKind { shape, wanted, read })
    }

    /// A list of lengths of time within `range`; empty where not given.
    pub fn spans(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
        doc: &str,
    ) -> Vec<Spanned<Duration>> {
        let shape = json!({"type": "string", "examples": ["10s", "1m", "24h"]});
        let (least, most) = (shown(*range.start()), shown(*range.end()));
        let wanted =
            format!("a list of times such as \"10s\" (in {SPAN_UNITS}), from {least} to {most}");
        let read = |item: &DeValue<'_>| match item {
            DeValue::String(text) => span_of(text).filter(|span| range.contains(span)),
            _ => None,
        };
        self.items(key, doc, ItemKind { shape, wanted, read })
    }

    /// Every `[[key]]`, in the order of the file.
    pub fn list<T>(
        &mut self,
        key: &str,
        doc: &str,
        mut read: impl FnMut(&mut Table<'_>) -> T,
    ) -> Vec<T> {
        let (mut made, mut effective) = (Vec::new(), Vec::new());
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
                    effective.push(table.finish().effective);
                }
            }
            Some((at, value)) => drop(self.wrong::<()>(key, at, value, "a list of tables")),
            None => {}
        }
        let shape = shape_of(|table| drop(read(table)));
        self.describe(key, doc, json!({"type": "array", "items": shape}));
        self.effective.insert(key.to_owned(), effective.into());
        made
    }

    fn items<T>(
        &mut self,
        key: &str,
        doc: &str,
        kind: ItemKind<impl Fn(&DeValue<'_>) -> Option<T>>,
    ) -> Vec<Spanned<T>> {
        let ItemKind { shape, wanted, read } = kind;
        self.describe(key, doc, json!({"type": "array", "items": shape}));
        let Some((at, value)) = self.value(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            return self.wrong(key, at, value, &wanted).unwrap_or_default();
        };
        let mut made = Vec::new();
        for item in items {
            let at = item.span().start;
            match read(item.get_ref()) {
                Some(value) => made.push(Spanned { value, at }),
                None => drop(self.wrong::<()>(key, at, item.get_ref(), &wanted)),
            }
        }
        made
    }
}
