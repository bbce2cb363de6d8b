//! A JSON object that is built member by member: a line of a log, or the body of a problem. (core)
//!
//! Not here: which members it has, and which it must not have.

use std::fmt::Display;
use std::io::Write;

use crate::log::visible;

/// A JSON object that is written member by member: a line is made for every request, and a tree
/// of values would cost more than all other work on it (docs/performance.md).
#[derive(Debug)]
pub struct Line {
    bytes: Vec<u8>,
}

impl Line {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(640);
        bytes.push(b'{');
        Self { bytes }
    }

    /// Writes a member's name, a constant that needs no escapes. Inlined, as all that call it, so
    /// that the name is not copied by a call.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        if !self.bytes.ends_with(b"{") {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    /// A text member; the text may have any characters.
    #[inline(always)]
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.value(text);
    }

    fn value(&mut self, text: &str) {
        if !visible::is_plain(text.as_bytes()) {
            return visible::write(&mut self.bytes, text);
        }
        self.bytes.reserve(text.len() + 2);
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(b'"');
    }

    /// A text member in parts that need no escapes.
    #[inline(always)]
    pub fn parts(&mut self, name: &str, parts: &[&str]) {
        self.name(name);
        self.bytes.push(b'"');
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part.as_bytes()));
        self.bytes.push(b'"');
    }

    /// A text member, if there is a text.
    #[inline(always)]
    pub fn some(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// A member whose `Display` output needs no escapes.
    pub fn shown(&mut self, name: &str, shown: impl Display) {
        self.name(name);
        // Writing to memory cannot fail.
        let _ = write!(self.bytes, "\"{shown}\"");
    }

    /// A member that is a number.
    #[inline(always)]
    pub fn number(&mut self, name: &str, number: u64) {
        self.raw(name, itoa::Buffer::new().format(number));
    }

    /// A number with three decimals.
    pub fn thousandths(&mut self, name: &str, thousandths: u64) {
        self.number(name, thousandths / 1_000);
        let digit = |unit: u64| u8::try_from(thousandths / unit % 10).map_or(b'0', |d| b'0' + d);
        self.bytes.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
    }

    /// A member whose value is JSON already.
    #[inline(always)]
    pub fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }

    /// A member that is a list of objects, each written by `write`.
    pub fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.name(name);
        self.bytes.push(b'[');
        for (nth, item) in items.into_iter().enumerate() {
            self.bytes.extend_from_slice(if nth > 0 { b",{" } else { b"{" });
            write(self, item);
            self.bytes.push(b'}');
        }
        self.bytes.push(b']');
    }

    /// The whole object, without a newline.
    #[must_use]
    pub fn object(mut self) -> Vec<u8> {
        self.bytes.push(b'}');
        self.bytes
    }

    /// The whole line, with its newline.
    #[must_use]
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"}\n");
        self.bytes
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_it_contains() {
        let mut line = Line::new();
        let odd = "quote \" backslash \\ newline \n bell \u{7} csi \u{9b} del \u{7f} ls \u{2028} é";
        line.text("odd", odd);
        line.thousandths("ms", 12_034);
        line.shown("client", std::net::Ipv6Addr::LOCALHOST);
        line.some("none", None);
        line.raw("exempt", "true");
        line.list("limits", [1, 2], |line, number| line.number("n", number));
        let line = line.end();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let text = String::from_utf8(line.clone()).unwrap();
        assert!(!text.trim_end().contains(visible::is_unsafe), "{text}");
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["odd"], odd);
        assert_eq!(line["ms"], 12.034);
        assert_eq!(line["client"], "::1");
        assert_eq!(line["limits"][1]["n"], 2);
        assert_eq!(line.as_object().unwrap().len(), 5);
    }
}
