//! Finds the other paths that a server could read a path as. (core)
//!
//! A server may decode escapes, split at an escaped slash, ignore case, strip parameters, spaces
//! and file extensions, drop segments that are then empty, and end the path at the first `;`, `?`
//! or `#`, escaped or not, or at the first of only some of these. Such a reading matters only if it
//! moves a segment or turns it into a word, which is a literal segment of a route: only these
//! readings are checked.
//!
//! # Invariants
//!
//! 1. [`Words::may_have_readings`] does not allocate.
//! 2. A path with a split that has more than [`READINGS_MAX`] readings is treated as ambiguous.
//! 3. The time for a path grows with its length alone, never with the square of it, nor with its
//!    length times the number of words: no limit precedes this.
//!
//! # Not here
//!
//! Which readings are refused (`route`, `rules`), paths that no route accepts (`target`), the
//! ASCII of full-width characters (`full_width`): that is read as another path.

use arrayvec::ArrayVec;

use crate::request::escapes;
use crate::request::full_width::ascii;
use crate::request::route::{Pattern, Segment};

/// Most readings of one split of a path: each costs a lookup.
const READINGS_MAX: usize = 64;

/// What may end a path: some servers know only some kinds, or see none that is escaped.
const MARKS: [&[&str]; 4] = [&[";"], &["%3B", "%3b"], &["?", "%3F", "%3f"], &["#", "%23"]];

/// The literal segments of some routes, by their depth in the path.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// Of each depth, sorted by their folded texts.
    by_depth: Vec<Vec<Word>>,
}

#[derive(Clone, Debug)]
struct Word {
    text: Box<str>,
    /// In UTF-8: decoded, full-width characters as ASCII, letters in one case.
    folded: Box<[u8]>,
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
                let mut folded = Vec::new();
                Decoded(text).for_each(|char| fold(char, |byte| folded.push(byte)));
                let word = Word { text: text.clone(), folded: folded.into() };
                words.insert(words.partition_point(|other| other.folded < word.folded), word);
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
        if path.contains('%') && before_marks(path).next().is_some() {
            return true;
        }
        let mut varied =
            segments(path, Slashes::Plain).enumerate().filter(|(at, _)| !is_set(literal, *at));
        varied.any(|(at, segment)| {
            let is_dropped = !segment.is_empty() && is_blank(segment);
            is_dropped
                || !self.starting_as(at, segment).is_empty()
                    && self.like(at, segment).next().is_some()
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
        let like = like(self.starting_as(depth, segment), Decoded(segment));
        like.map(|word| &*word.text).filter(move |word| *word != segment)
    }

    /// The words at a depth that `segment` may be like by its first letter: of nearly all segments,
    /// that decides.
    fn starting_as(&self, depth: usize, segment: &str) -> &[Word] {
        let words = self.by_depth.get(depth).map_or(&[][..], Vec::as_slice);
        first_letter(segment).map_or(words, |first| with_byte(words, 0, first))
    }
}

/// The sorted `words` that `text` is, with only spaces before it, and after it only spaces or a
/// suffix that some servers strip (an extension, parameters). The text is read once for all of
/// them, and no further than the longest of them that it begins with.
fn like(
    mut words: &[Word],
    text: impl Iterator<Item = char> + Clone,
) -> impl Iterator<Item = &Word> {
    let (mut text, mut at) = (without_spaces(text), 0);
    let groups = std::iter::from_fn(move || {
        while !words.is_empty() {
            fold(text.next()?, |byte| {
                words = with_byte(words, at, byte);
                at += 1;
            });
            let ended = words.partition_point(|word| word.folded.len() == at);
            if ended > 0 && is_end(text.clone()) {
                return words.get(..ended);
            }
        }
        None
    });
    groups.flatten()
}

/// Those of some sorted words that have `byte` at `at`; before it they are all the same.
fn with_byte(words: &[Word], at: usize, byte: u8) -> &[Word] {
    let own = |word: &Word| word.folded.get(at).copied();
    let start = words.partition_point(|word| own(word) < Some(byte));
    let words = words.get(start..).unwrap_or_default();
    let end = words.partition_point(|word| own(word) == Some(byte));
    words.get(..end).unwrap_or_default()
}

/// Whether servers that strip spaces, extensions and parameters leave nothing of `text`.
fn is_end(text: impl Iterator<Item = char> + Clone) -> bool {
    let end = without_spaces(text).next().map(ascii);
    end.is_none_or(|end| ['.', ';', '?', '#'].contains(&end))
}

/// The ways to split a path into segments, of each the first `most` segments.
fn splits(path: &str, most: usize) -> Vec<Vec<&str>> {
    let mut splits = Vec::new();
    for path in std::iter::once(path).chain(before_marks(path)) {
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

/// The parts of a path before the first mark of each kind. The first mark of several kinds is the
/// first of one of them, so these are the readings of servers that know any of them.
fn before_marks(path: &str) -> impl Iterator<Item = &str> {
    let ends = MARKS.iter().map(|kind| kind.iter().filter_map(|mark| path.find(mark)).min());
    ends.flatten().filter_map(|end| path.get(..end))
}

fn is_set(bits: u64, at: usize) -> bool {
    at < 64 && bits >> at & 1 == 1
}

/// The letter or digit, in lower case, that a segment begins with as nearly all do: nothing before
/// it is a space or an escape.
fn first_letter(segment: &str) -> Option<u8> {
    let first = segment.bytes().next().filter(u8::is_ascii_alphanumeric);
    first.map(|first| first.to_ascii_lowercase())
}

/// Whether some servers read it as a space: a plus sign is one to some, and a byte order mark is
/// one to JavaScript.
fn is_space(char: char) -> bool {
    char.is_whitespace() || char == '+' || char == '\u{feff}'
}

/// What follows the spaces at the start of a text.
fn without_spaces<T: Iterator<Item = char> + Clone>(mut text: T) -> T {
    loop {
        let start = text.clone();
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

/// Calls `push` with each byte of a character in one case, without accents that come apart from it:
/// segments that differ only in this have the same bytes.
fn fold(char: char, mut push: impl FnMut(u8)) {
    if let Some(byte) = u8::try_from(char).ok().filter(u8::is_ascii) {
        return push(byte.to_ascii_lowercase());
    }
    // To capitals and back: some letters have only one case, such as the long s, whose capital is
    // S. Lower case first: the capital of ẞ is itself, but that of ß is SS.
    let capitals = ascii(char).to_lowercase().flat_map(char::to_uppercase);
    for char in capitals.flat_map(char::to_lowercase).filter(|char| !is_accent(*char)) {
        char.encode_utf8(&mut [0; 4]).bytes().for_each(&mut push);
    }
}

/// Whether it is an accent of the character before it. Some servers drop those that a conversion of
/// case splits off: of İ, most keep `i` alone.
fn is_accent(char: char) -> bool {
    matches!(char, '\u{2be}' | '\u{300}'..='\u{36f}')
}

/// The characters of a text with its escapes decoded, those alone that are UTF-8, without accents.
#[derive(Clone)]
struct Decoded<'t>(&'t str);

impl Iterator for Decoded<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        if let Some(first) = self.0.bytes().next().filter(|byte| byte.is_ascii() && *byte != b'%') {
            self.0 = self.0.get(1..)?;
            return Some(char::from(first));
        }
        std::iter::from_fn(|| self.decode()).find(|char| !is_accent(*char))
    }
}

impl Decoded<'_> {
    fn decode(&mut self) -> Option<char> {
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
    Some((escapes::escaped(digits.as_bytes())?, digits.get(2..)?))
}

#[cfg(test)]
mod tests;
