//! Writes JSON without characters that a terminal, or a program that shows a log, would act on.
//!
//! JSON requires escapes for U+0000 to U+001F only. A log line contains what clients send: C1
//! control characters act on terminals as ESC does, U+2028 ends a line for some readers, and
//! directional characters change the order in which text is shown.
//!
//! Invariant: the output is the same JSON value, and has no character of [`is_unsafe`].
//!
//! Not here: which members a line has (`json_lines`, `events`).

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Appends `value` as JSON.
pub fn write<T: Serialize + ?Sized>(to: &mut Vec<u8>, value: &T) {
    // Writing to memory fails only for a value that is not JSON, and none is logged.
    let _ = value.serialize(&mut Serializer::with_formatter(to, Visible));
}

/// Whether a character is a control character (C0, DEL, C1), ends a line or a paragraph, or
/// changes the direction of text.
#[must_use]
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether JSON has a text as it is, and all of it is printable ASCII, as nearly every text is.
#[must_use]
pub fn is_plain(text: &[u8]) -> bool {
    let (eights, rest) = text.as_chunks::<8>();
    let last = text.last_chunk().copied().unwrap_or_else(|| {
        let mut last = [b' '; 8];
        last.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        last
    });
    eights.iter().fold(not_plain(last), |found, eight| found | not_plain(*eight)) == 0
}

/// Zero if all of eight bytes, which are compared at a time, are plain.
fn not_plain(eight: [u8; 8]) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let all = u64::from_ne_bytes(eight);
    // The top bit of a byte that is below another, and perhaps of the bytes above it.
    let below = |bytes: u64, other: u64| bytes.wrapping_sub(EACH * other) & !bytes;
    let equal = |other: u8| below(all ^ (EACH * u64::from(other)), 1);
    (all | below(all, 0x20) | equal(b'"') | equal(b'\\') | equal(0x7f)) & (EACH * 0x80)
}

struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W>(&mut self, to: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        let mut rest = fragment;
        while let Some((at, found)) = rest.char_indices().find(|(_, found)| is_unsafe(*found)) {
            let (before, after) = rest.split_at(at);
            to.write_all(before.as_bytes())?;
            // Each of them has four digits: none is beyond U+FFFF.
            write!(to, "\\u{:04x}", u32::from(found))?;
            rest = after.strip_prefix(found).unwrap_or_default();
        }
        to.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_is_plain_if_each_of_its_bytes_is(
            mut text in prop::collection::vec(b' '..0x7f, 0..40), at: usize, byte: u8,
        ) {
            let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) && !b"\"\\".contains(byte);
            for replaced in [None, Some(byte)] {
                if let (Some(byte), false) = (replaced, text.is_empty()) {
                    let at = at % text.len();
                    text[at] = byte;
                }
                prop_assert_eq!(super::is_plain(&text), text.iter().all(is_plain));
            }
        }
    }

    #[test]
    fn nothing_that_is_written_steers_a_terminal_or_ends_a_line() {
        let odd: String = ('\0'..='\u{3000}').filter(|one| is_unsafe(*one)).collect();
        for hidden in ['\u{7f}', '\u{80}', '\u{85}', '\u{9b}', '\u{9f}', '\u{2028}', '\u{202e}'] {
            assert!(odd.contains(hidden), "{hidden:?}");
        }
        for text in [odd, "plain".to_owned(), "é \u{9b}31m \"quoted\" 日本 \u{1f600}".to_owned()]
        {
            let mut bytes = Vec::new();
            write(&mut bytes, &text);
            let json = std::str::from_utf8(&bytes).unwrap();
            assert!(!json.contains(is_unsafe), "{json}");
            assert_eq!(serde_json::from_str::<String>(json).unwrap(), text);
        }
    }

    #[test]
    fn printable_characters_stay_unchanged() {
        let mut bytes = Vec::new();
        write(&mut bytes, "é日本");
        assert_eq!(bytes, "\"é日本\"".as_bytes());
    }
}
