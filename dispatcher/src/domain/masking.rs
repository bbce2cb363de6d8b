//! Masks secrets in what receivers answer: they repeat requests, print what they expected. (core)
//!
//! # Invariants
//!
//! 1. No [`WINDOW`] bytes of a secret in a row are left, in either case of letters, also where the
//!    text was cut, percent-encoded, or escaped as JSON and HTML escape it, and as base64 for URLs.
//! 2. What has no part of a secret is unchanged.
//!
//! A secret that was encoded again or compressed is not found.
//!
//! Not here: which values are secret (`signature`).

use std::collections::HashSet;

/// The shortest part of a secret that is masked: 32 bits of a signature in hex, which no other text
/// has by chance.
pub const WINDOW: usize = 8;

/// Takes the place of a secret.
const MASKED: &[u8] = b"***";

/// The secrets to mask.
#[derive(Clone, Default)]
pub struct Mask {
    windows: HashSet<[u8; WINDOW]>,
    /// Secrets that are shorter than a window: only whole ones are masked.
    short: Vec<Vec<u8>>,
}

impl Mask {
    /// Masks these values and their parts.
    #[must_use]
    pub fn of<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let mut mask = Self::default();
        for secret in secrets {
            for bytes in readings(secret.as_ref()) {
                let bytes: Vec<u8> = bytes.into_iter().map(|one| one.byte).collect();
                let windows = bytes.windows(WINDOW).filter_map(|part| part.first_chunk().copied());
                mask.windows.extend(windows);
                if !bytes.is_empty() && bytes.len() < WINDOW {
                    mask.short.push(bytes);
                }
            }
        }
        mask
    }

    /// The first `length` bytes of `text` without secrets. What follows them is searched, too: give
    /// it, so that a secret across the end is found.
    #[must_use]
    pub fn applied(&self, text: &[u8], length: usize) -> Vec<u8> {
        let mut masked = Vec::with_capacity(length.min(text.len()));
        let mut before = false;
        for (byte, secret) in text.iter().zip(self.found(text)).take(length) {
            match (secret, before) {
                (false, _) => masked.push(*byte),
                (true, false) => masked.extend_from_slice(MASKED),
                (true, true) => {}
            }
            before = secret;
        }
        masked
    }

    /// For each byte of a text, whether it is of a secret.
    fn found(&self, text: &[u8]) -> Vec<bool> {
        let mut found = vec![false; text.len()];
        for reading in readings(text) {
            let bytes: Vec<u8> = reading.iter().map(|one| one.byte).collect();
            for (at, first) in reading.iter().enumerate() {
                let length = self.length_at(bytes.get(at..).unwrap_or_default());
                let last = length.and_then(|length| reading.get(at + length - 1));
                if let Some(part) = last.and_then(|last| found.get_mut(first.start..last.end)) {
                    part.fill(true);
                }
            }
        }
        found
    }

    /// The length of the secret at the start of `rest`, if one is there.
    fn length_at(&self, rest: &[u8]) -> Option<usize> {
        let window = rest.first_chunk::<WINDOW>().filter(|part| self.windows.contains(*part));
        let short = || self.short.iter().find(|short| rest.starts_with(short)).map(Vec::len);
        window.map(|_| WINDOW).or_else(short)
    }
}

/// A text as it is, and as it was before it was escaped: what stands before a secret may look like
/// the start of an escape.
fn readings(text: &[u8]) -> [Vec<Plain>; 2] {
    let as_is = |(at, byte): (usize, &u8)| Plain { byte: folded(*byte), start: at, end: at + 1 };
    [text.iter().enumerate().map(as_is).collect(), plain(text).collect()]
}

/// A byte as it was before it was escaped, in lower case, and its place.
struct Plain {
    byte: u8,
    start: usize,
    end: usize,
}

/// The bytes of a text before they were escaped.
fn plain(text: &[u8]) -> impl Iterator<Item = Plain> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            let start = at;
            let (byte, length) = unescaped(rest);
            at += length;
            if let Some(byte) = byte.map(folded).filter(|byte| !is_left_out(*byte)) {
                return Some(Plain { byte, start, end: at });
            }
        }
    })
}

/// Whether a byte counts in no secret: some encoding drops it, or writes it as another of these.
fn is_left_out(byte: u8) -> bool {
    matches!(byte, b'+' | b' ' | b'\t' | b'\r' | b'\n' | b'\\' | 0)
}

/// The named references of HTML that programs write, and what they stand for.
const ENTITIES: [(&[u8], Option<u8>); 6] = [
    (b"amp;", Some(b'&')),
    (b"lt;", Some(b'<')),
    (b"gt;", Some(b'>')),
    (b"quot;", Some(b'"')),
    (b"apos;", Some(b'\'')),
    (b"nbsp;", None),
];

/// The first byte of a text, if it stands for one, and the length of its form.
fn unescaped(rest: &[u8]) -> (Option<u8>, usize) {
    match rest {
        [b'%', high, low, ..] | [b'\\', b'x', high, low, ..] if hex(&[*high, *low]).is_some() => {
            (hex(&[*high, *low]), if rest.first() == Some(&b'%') { 3 } else { 4 })
        }
        [b'\\', b'u', b'0', b'0', high, low, ..] if hex(&[*high, *low]).is_some() => {
            (hex(&[*high, *low]), 6)
        }
        [b'&', b'#', number @ ..] => match reference(number) {
            Some((byte, length)) => (Some(byte), 2 + length),
            None => (Some(b'&'), 1),
        },
        [b'&', name @ ..] => match ENTITIES.iter().find(|(entity, _)| name.starts_with(entity)) {
            Some((entity, byte)) => (*byte, 1 + entity.len()),
            None => (Some(b'&'), 1),
        },
        [b'\\', b't' | b'n' | b'r' | b'b' | b'f', ..] => (None, 2),
        // Line breaks, and the other half of UTF-16.
        [b'\\' | b'\r' | b'\n' | b'\t' | b' ' | 0, ..] => (None, 1),
        [byte, ..] => (Some(*byte), 1),
        [] => (None, 0),
    }
}

/// The number of an HTML reference up to its semicolon, as a byte.
fn reference(number: &[u8]) -> Option<(u8, usize)> {
    /// `x0002B` is longer than any that a program writes.
    const DIGITS_MAX: usize = 6;
    let end = number.iter().take(DIGITS_MAX).position(|byte| *byte == b';')?;
    let byte = match number.get(..end)? {
        [b'x' | b'X', digits @ ..] => hex(digits)?,
        digits => std::str::from_utf8(digits).ok()?.parse().ok()?,
    };
    Some((byte, end + 1))
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

/// Letters in lower case, and base64 for URLs as plain base64.
fn folded(byte: u8) -> u8 {
    match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1/jc4OWFi+2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn masked(text: &str) -> String {
        let bytes = Mask::of([SECRET]).applied(text.as_bytes(), text.len());
        String::from_utf8(bytes).expect("it is text")
    }

    #[test]
    fn a_secret_is_masked_however_it_is_escaped() {
        for text in [
            SECRET.to_owned(),
            SECRET.to_uppercase(),
            SECRET.replace('/', "\\/"),
            SECRET.replace('/', "%2F").replace('+', "%2b").replace('=', "%3D"),
            SECRET.replace('+', "\\u002B").replace('/', "\\u002f"),
            SECRET.replace('+', "\\x2b"),
            SECRET.replace('/', "&#x2F;").replace('+', "&#43;").replace('=', "&#x3D;"),
            SECRET.replace('/', "_").replace('+', "-"),
            SECRET.replace('N', "N\r\n\t"),
            SECRET.chars().flat_map(|one| [one, '\0']).collect(),
        ] {
            let found = masked(&format!("key: {text}; it is wrong"));
            assert!(
                ["key: ***; it is wrong", "key: ***\0; it is wrong"].contains(&&*found),
                "{found:?} of {text}"
            );
        }
    }

    #[test]
    fn a_value_with_any_characters_is_masked_however_it_is_escaped() {
        let mask = Mask::of(["pa\"ss <w>or&d'\tx-1+2/34"]);
        for text in [
            "pa\"ss <w>or&d'\tx-1+2/34",
            "pa\\\"ss \\u003cw\\u003eor\\u0026d'\\tx-1+2\\/34",
            "pa&quot;ss&nbsp;&lt;w&gt;or&amp;d&apos;\tx-1+2/34",
            "pa&#34;ss &lt;w&gt;or&amp;d&#39;\tx-1&#43;2/34",
            "pa%22ss+%3Cw%3Eor%26d%27%09x-1%2B2%2F34",
            "pa%22ss%20%3Cw%3Eor%26d%27%09x-1%2B2%2F34",
        ] {
            let found = mask.applied(format!("got {text}.").as_bytes(), 100);
            assert_eq!(String::from_utf8(found).expect("text"), "got ***.", "{text}");
        }
    }

    #[test]
    fn a_part_of_a_secret_is_masked_and_a_shorter_one_is_not() {
        assert_eq!(masked("got whsec_MD, cut"), "got ***, cut");
        assert_eq!(masked("got whsec_M, cut"), "got whsec_M, cut");
        assert_eq!(masked("ODlhYmNkZWY= and MDEyMzQ1/jc4O"), "*** and ***");
    }

    #[test]
    fn what_is_no_secret_is_unchanged() {
        for text in ["", "\\", "%", "%4", "&#", "&#;", "&#x", "&#99999;", "\\u00", "100 % off \\o/"]
        {
            assert_eq!(masked(text), text);
        }
    }

    #[test]
    fn a_secret_across_the_end_is_masked() {
        let text = format!("1234567890{SECRET}");
        for length in 0..text.len() {
            let found = Mask::of([SECRET]).applied(text.as_bytes(), length);
            let expected = if length <= 10 { &b"1234567890"[..length] } else { b"1234567890***" };
            assert_eq!(found, expected, "{length}");
        }
    }

    #[test]
    fn a_secret_that_is_shorter_than_a_window_is_masked_whole() {
        let mask = Mask::of(["", "k3y"]);
        assert_eq!(mask.applied(b"a k3y and K3Y, no k3", 20), b"a *** and ***, no k3");
    }

    proptest! {
        #[test]
        fn no_window_of_a_secret_is_left(
            secret in proptest::collection::vec(any::<u8>(), 0..70),
            other in "[ -)+-~]{1,60}",
            pieces in proptest::collection::vec(
                (any::<Vec<u8>>(), 0..3_usize, 0..70_usize, 0..70_usize),
                0..6,
            ),
            length in 0..600_usize,
        ) {
            let secrets = [secret.as_slice(), other.as_bytes()];
            let mut text = Vec::new();
            for (noise, which, from, to) in pieces {
                text.extend(noise);
                let part = secrets.get(which).copied().unwrap_or_default();
                let (from, to) = (from.min(part.len()), to.min(part.len()));
                text.extend_from_slice(&part[from.min(to)..from.max(to)]);
            }
            let found = Mask::of(secrets).applied(&text, length);
            let lower = |bytes: &[u8]| bytes.to_ascii_lowercase();
            let found = lower(&found);
            for secret in secrets {
                for window in lower(secret).windows(WINDOW) {
                    prop_assert!(!found.windows(WINDOW).any(|part| part == window), "{window:?}");
                }
            }
        }

        #[test]
        fn a_text_without_secrets_is_unchanged(text in any::<Vec<u8>>()) {
            let mask = Mask::of([[1, 2, 3, 4, 5, 6, 7, 8, 11]]);
            prop_assert_eq!(mask.applied(&text, text.len()), text);
        }
    }
}
