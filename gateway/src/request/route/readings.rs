//! Finds the other paths that a server could read a path as. (core)
//!
//! A server may decode escapes, split at an escaped slash, ignore case, strip parameters, spaces
//! and file extensions, drop segments that are then empty, and end the path at a `;`, `?` or `#`,
//! escaped or not. Such a reading matters only if it moves a segment or turns it into a word, which
//! is a literal segment of a route: only these readings are checked.
//!
//! # Invariants
//!
//! 1. [`Words::may_have_readings`] does not allocate for a path of ASCII without escapes whose
//!    segments start with a letter or digit.
//! 2. A path with a split that has more than [`READINGS_MAX`] readings is treated as ambiguous.
//!
//! # Not here
//!
//! Which readings are refused (`route`, `rules`), paths that no route accepts (`target`).

use crate::request::route::{Pattern, Segment};

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
                words.push(Word { text: text.clone(), folded: folded(text).into() });
            }
        }
    }

    /// Whether a path may have another reading. `literal` has a bit for each segment that is a
    /// literal of the route that was found.
    pub(super) fn may_have_readings(&self, path: &str, literal: u64) -> bool {
        if path.contains('%') && before_mark(path).is_some() {
            return true;
        }
        segments(path).skip(1).enumerate().filter(|(at, _)| !is_set(literal, *at)).any(
            |(at, segment)| {
                let mut words = self.by_depth.get(at).into_iter().flatten();
                let is_dropped = !segment.is_empty() && is_blank(segment);
                is_dropped || words.any(|word| word.is_like(segment))
            },
        )
    }

    /// Every path that a server could read `path` as; `None` if there are too many.
    pub(super) fn readings(&self, path: &str, literal: u64) -> Option<Vec<String>> {
        let mut ways = splits(path, literal);
        ways.extend(before_mark(path).into_iter().flat_map(|path| splits(path, 0)));
        let mut readings = Vec::new();
        for (split, literal) in ways {
            readings.append(&mut self.words_for(&split, literal)?);
        }
        readings.sort_unstable();
        readings.dedup();
        Some(readings)
    }

    /// Each path of these segments, with each segment as it is or replaced by a word it resembles.
    fn words_for(&self, segments: &[&str], literal: u64) -> Option<Vec<String>> {
        let mut paths = vec![String::new()];
        for (at, segment) in segments.iter().enumerate() {
            let words = self.by_depth.get(at).filter(|_| !is_set(literal, at));
            let like = words.into_iter().flatten().filter(|word| word.is_like(segment));
            let ways: Vec<&str> = like.map(|word| &*word.text).chain([*segment]).collect();
            if paths.len() * ways.len() > READINGS_MAX {
                return None;
            }
            let longer =
                |path: &String| ways.iter().map(|way| format!("{path}/{way}")).collect::<Vec<_>>();
            paths = paths.iter().flat_map(longer).collect();
        }
        Some(paths)
    }
}

/// The parts between slashes. `str::split` looks for a character, which takes longer than the few
/// bytes of a segment are worth.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = text.bytes().position(|byte| byte == b'/');
        rest = end.and_then(|end| text.get(end + 1..));
        text.get(..end.unwrap_or(text.len()))
    })
}

/// The ways to split a path into segments, each with the bits of its literal segments.
fn splits(path: &str, literal: u64) -> Vec<(Vec<&str>, u64)> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let whole: Vec<&str> = path.split('/').collect();
    let further: Vec<&str> = whole.iter().flat_map(|segment| at_slashes(segment)).collect();
    let mut splits = vec![(whole.clone(), literal)];
    for split in [&whole, &further] {
        for is_dropped in [str::is_empty, is_blank] {
            let kept = split.iter().copied().filter(|segment| !is_dropped(segment));
            splits.push((kept.collect(), 0));
        }
    }
    splits.push((further, 0));
    splits
}

/// The part of a path before the first `;`, `?` or `#`, escaped or not; `None` if it has none of
/// them.
fn before_mark(path: &str) -> Option<&str> {
    const MARKS: [&str; 8] = [";", "?", "#", "%3b", "%3B", "%3f", "%3F", "%23"];
    let at = MARKS.iter().filter_map(|mark| path.find(mark)).min()?;
    path.get(..at)
}

fn is_set(bits: u64, at: usize) -> bool {
    at < 64 && bits >> at & 1 == 1
}

impl Word {
    /// Whether a server could read `segment` as this word although the two differ.
    fn is_like(&self, segment: &str) -> bool {
        if *segment == *self.text {
            return false;
        }
        if !is_plain(segment) {
            return is_ending(&self.folded, &folded(segment));
        }
        let segment = segment.trim_start_matches(is_space);
        let Some((start, end)) = segment.split_at_checked(self.folded.len()) else { return false };
        start.eq_ignore_ascii_case(&self.folded) && is_ending("", end)
    }
}

/// Whether a segment has no escapes and is ASCII, so that decoding does not change it.
fn is_plain(segment: &str) -> bool {
    segment.bytes().all(|byte| byte.is_ascii() && byte != b'%')
}

/// Whether `text` is `word` with only spaces or a stripped suffix (extension, parameters) added.
fn is_ending(word: &str, text: &str) -> bool {
    let Some(end) = text.trim_start_matches(is_space).strip_prefix(word) else { return false };
    let end = end.trim_start_matches(is_space);
    end.is_empty() || end.starts_with(['.', ';', '?', '#'])
}

/// Whether some servers read it as a space: a plus sign is one to some.
fn is_space(char: char) -> bool {
    char.is_whitespace() || char == '+'
}

/// Whether some servers read no segment here: only spaces and dots are left of it.
fn is_blank(segment: &str) -> bool {
    if segment.starts_with(|first: char| first.is_ascii() && !".+%;".contains(first)) {
        return false;
    }
    let decoded = decoded(segment);
    let name = decoded.split(';').next().unwrap_or_default();
    name.chars().all(|char| is_space(char) || char == '.')
}

/// A segment decoded and in one case: segments that differ only in these have the same result.
fn folded(segment: &str) -> String {
    // Both conversions: some letters have only one case, such as the long s, whose capital is S.
    let fold = |char: char| ascii(char).to_uppercase().flat_map(char::to_lowercase);
    decoded(segment).chars().flat_map(fold).collect()
}

/// The ASCII character of a full-width one (U+FF01 to U+FF5E).
fn ascii(char: char) -> char {
    let code = u32::from(char);
    let narrow = (0xff01..=0xff5e).contains(&code).then(|| char::from_u32(code - 0xfee0));
    narrow.flatten().unwrap_or(char)
}

fn decoded(segment: &str) -> String {
    String::from_utf8_lossy(&crate::request::target::decoded(segment)).into_owned()
}

/// The segments that a server finds here if it decodes the path before it splits it.
fn at_slashes(segment: &str) -> Vec<&str> {
    segment.split("%2F").flat_map(|part| part.split("%2f")).collect()
}
