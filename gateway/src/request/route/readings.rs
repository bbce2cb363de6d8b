//! Finds the other paths that a server could read a path as. (core)
//!
//! A server may decode escapes, split at an escaped slash, ignore case, strip parameters, spaces
//! and file extensions, drop segments that are then empty, and end the path at a `;`, `?` or `#`,
//! escaped or not. Such a reading matters only if it moves a segment or turns it into a word, which
//! is a literal segment of a route: only these readings are checked.
//!
//! # Invariants
//!
//! 1. [`Words::may_have_readings`] does not allocate.
//! 2. A path with a split that has more than [`READINGS_MAX`] readings is treated as ambiguous.
//! 3. The time for a path grows with its length alone, never with the square of it: no limit
//!    precedes this.
//!
//! # Not here
//!
//! Which readings are refused (`route`, `rules`), paths that no route accepts (`target`).

use arrayvec::ArrayVec;

use crate::request::route::{Pattern, Segment};
use crate::request::target;

/// Most readings of one split of a path: each costs a lookup.
const READINGS_MAX: usize = 64;

/// The literal segments of some routes, by their depth in the path.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    by_depth: Vec<Vec<Word>>,
}

#[derive(Clone, Debug)]
struct Word {
    text: Box<str>,
    /// Decoded, full-width characters as ASCII, letters in one case.
    folded: Box<str>,
}

impl Words {
    /// Adds the literal segments of a route's path.
    pub(super) fn add(&mut self, pattern: &Pattern) {
        for (depth, segment) in pattern.segments.iter().enumerate() {
            if self.by_depth.len() <= depth {
                self.by_depth.resize_with(depth + 1, Vec::new);
            }
            let (Segment::Literal(text), Some(words)) = (segment, self.by_depth.get_mut(depth))
            else {
                continue;
            };
            if words.iter().all(|word| word.text != *text) {
                let folded: String = Decoded(text).flat_map(fold).collect();
                words.push(Word { text: text.clone(), folded: folded.into() });
            }
        }
    }

    /// The most literal segments and captures of a route.
    pub(super) fn depth(&self) -> usize {
        self.by_depth.len()
    }

    /// Whether a path may have another reading. `literal` has a bit for each segment that is a
    /// literal of the route that was found.
    pub(super) fn may_have_readings(&self, path: &str, literal: u64) -> bool {
        if path.contains('%') && before_mark(path).is_some() {
            return true;
        }
        let mut varied =
            segments(path, Slashes::Plain).enumerate().filter(|(at, _)| !is_set(literal, *at));
        varied.any(|(at, segment)| {
            let is_dropped = !segment.is_empty() && is_blank(segment);
            is_dropped || self.like(at, segment).next().is_some()
        })
    }

    /// Every path that a server could read `path` as, as its segments; `None` if there are too
    /// many. Which of the routes of at most `depth` segments has a path depends on the path's first
    /// `depth` segments, and on whether more follow: the others are left out.
    pub(super) fn readings<'r>(&'r self, path: &'r str, depth: usize) -> Option<Vec<Vec<&'r str>>> {
        let mut readings = Vec::new();
        for split in splits(path, depth + 1) {
            readings.append(&mut self.words_for(&split)?);
        }
        Some(readings)
    }

    /// Each path of these segments, with each segment as it is or replaced by a word it resembles.
    fn words_for<'r>(&'r self, segments: &[&'r str]) -> Option<Vec<Vec<&'r str>>> {
        let mut paths = vec![Vec::new()];
        for (at, segment) in segments.iter().enumerate() {
            let words: Vec<&str> = self.like(at, segment).collect();
            if paths.len() * (words.len() + 1) > READINGS_MAX {
                return None;
            }
            let mut others: Vec<Vec<&str>> = Vec::new();
            for word in words {
                others.extend(paths.iter().map(|path| [path, &[word][..]].concat()));
            }
            paths.iter_mut().for_each(|path| path.push(segment));
            paths.extend(others);
        }
        Some(paths)
    }

    /// The words at a depth that a server could read `segment` as although they differ.
    fn like<'r>(&'r self, depth: usize, segment: &'r str) -> impl Iterator<Item = &'r str> {
        let first = first_letter(segment);
        let words = self.by_depth.get(depth).into_iter().flatten();
        let may_start = move |word: &&Word| {
            first.is_none_or(|own| word.folded.bytes().next().is_none_or(|first| first == own))
        };
        let like = words.filter(may_start).filter(move |word| {
            *word.text != *segment && word.starts(without_spaces(Decoded(segment)))
        });
        like.map(|word| &*word.text)
    }
}

/// The ways to split a path into segments, of each the first `most` segments.
fn splits(path: &str, most: usize) -> Vec<Vec<&str>> {
    let mut splits = Vec::new();
    for path in [Some(path), before_mark(path)].into_iter().flatten() {
        for slashes in [Slashes::Plain, Slashes::Escaped] {
            let all: Vec<&str> = segments(path, slashes).collect();
            for is_dropped in [|_: &str| false, str::is_empty, is_blank] {
                let kept = all.iter().copied().filter(|segment| !is_dropped(segment));
                let split: Vec<&str> = kept.take(most).collect();
                if !splits.contains(&split) {
                    splits.push(split);
                }
            }
        }
    }
    splits
}

/// Where a path is split.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slashes {
    Plain,
    /// Also where one is escaped: a server may decode the path before it splits it.
    Escaped,
}

/// The segments of a path; a slash at its end adds none.
fn segments(path: &str, slashes: Slashes) -> impl Iterator<Item = &str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut rest = path.strip_suffix('/').unwrap_or(path);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_escaped = |at| {
            let escape = rest.as_bytes().get(at..at + 3);
            escape.is_some_and(|escape| escape.eq_ignore_ascii_case(b"%2F"))
        };
        let mut bytes = rest.bytes().enumerate();
        let end = match slashes {
            Slashes::Plain => bytes.find(|(_, byte)| *byte == b'/'),
            Slashes::Escaped => {
                bytes.find(|(at, byte)| *byte == b'/' || (*byte == b'%' && is_escaped(*at)))
            }
        };
        let (end, slash) = end.unwrap_or((rest.len(), b'/'));
        let segment = rest.get(..end);
        rest = rest.get(end + if slash == b'/' { 1 } else { 3 }..).unwrap_or_default();
        segment
    })
}

/// The part of a path before the first `;`, `?` or `#`, escaped or not; `None` if it has none of
/// them.
fn before_mark(path: &str) -> Option<&str> {
    let is_mark = |at: &usize| match path.as_bytes().get(*at..) {
        Some([b';' | b'?' | b'#', ..] | [b'%', b'2', b'3', ..]) => true,
        Some([b'%', b'3', digit, ..]) => matches!(digit, b'b' | b'B' | b'f' | b'F'),
        _ => false,
    };
    path.get(..(0..path.len()).find(is_mark)?)
}

fn is_set(bits: u64, at: usize) -> bool {
    at < 64 && bits >> at & 1 == 1
}

impl Word {
    /// Whether `text` is the word with only spaces or a suffix that some servers strip (an
    /// extension, parameters) after it.
    fn starts(&self, mut text: Decoded<'_>) -> bool {
        let mut word = self.folded.chars();
        while !word.as_str().is_empty() {
            let Some(char) = text.next() else { return false };
            if fold(char).any(|char| word.next() != Some(char)) {
                return false;
            }
        }
        let end = without_spaces(text).next().map(ascii);
        end.is_none_or(|end| ['.', ';', '?', '#'].contains(&end))
    }
}

/// The letter or digit, in lower case, that a segment begins with as nearly all do: nothing before
/// it is a space or an escape.
fn first_letter(segment: &str) -> Option<u8> {
    let first = segment.bytes().next().filter(u8::is_ascii_alphanumeric);
    first.map(|first| first.to_ascii_lowercase())
}

/// Whether some servers read it as a space: a plus sign is one to some.
fn is_space(char: char) -> bool {
    char.is_whitespace() || char == '+'
}

/// What follows the spaces at the start of a text.
fn without_spaces(mut text: Decoded<'_>) -> Decoded<'_> {
    loop {
        let start = text;
        if !text.next().is_some_and(|char| is_space(ascii(char))) {
            return start;
        }
    }
}

/// Whether some servers read no segment here: only spaces and dots are left of it.
fn is_blank(segment: &str) -> bool {
    let mut name = Decoded(segment).take_while(|char| *char != ';');
    first_letter(segment).is_none() && name.all(|char| is_space(char) || char == '.')
}

/// A character in one case: segments that differ only in this have the same result.
fn fold(char: char) -> impl Iterator<Item = char> {
    // Both conversions: some letters have only one case, such as the long s, whose capital is S.
    ascii(char).to_uppercase().flat_map(char::to_lowercase)
}

/// The ASCII character of a full-width one (U+FF01 to U+FF5E).
fn ascii(char: char) -> char {
    let code = u32::from(char);
    let narrow = (0xff01..=0xff5e).contains(&code).then(|| char::from_u32(code - 0xfee0));
    narrow.flatten().unwrap_or(char)
}

/// The characters of a text with its escapes decoded, those alone that are UTF-8.
#[derive(Clone, Copy)]
struct Decoded<'t>(&'t str);

impl Iterator for Decoded<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let (mut bytes, mut rest) = (ArrayVec::<u8, 4>::new(), self.0);
        while let Some((byte, tail)) = escape(rest)
            && bytes.try_push(byte).is_ok()
        {
            rest = tail;
            if let Ok(decoded) = std::str::from_utf8(&bytes) {
                self.0 = rest;
                return decoded.chars().next();
            }
        }
        let mut chars = self.0.chars();
        let char = chars.next()?;
        self.0 = chars.as_str();
        Some(char)
    }
}

/// The byte of the escape at the start of `text`, and what follows it.
fn escape(text: &str) -> Option<(u8, &str)> {
    let digits = text.strip_prefix('%')?;
    Some((target::escaped(digits.as_bytes())?, digits.get(2..)?))
}

#[cfg(test)]
mod tests;
