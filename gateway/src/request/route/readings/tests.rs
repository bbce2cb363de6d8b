//! Tests of the readings of a path: they are those of a model that builds every one as text, and
//! no path is slow to check.

use std::cell::Cell;

use http::Method;

use crate::request::route::readings::{Decoded, Words, fold, like};
use crate::request::route::tests::Dice;
use crate::request::route::*;
use crate::settings::spellings::Spellings;

const ALL: Spellings = Spellings { trailing_slash: true, escapes: true, escaped_slash: true };

/// Which routes are stricter than another: those with a higher number.
type Row = (&'static str, u8);

const TABLES: [&[Row]; 4] = [
    &[
        ("/healthz", 0),
        ("/v1/workspaces/{workspace}/tenants:batch", 3),
        ("/v1/workspaces/{workspace}/webhooks/{*rest}", 2),
        ("/v1/workspaces/{workspace}/{*rest}", 1),
        ("/v1/organisations/{organisation}/{*rest}", 1),
        ("/v1/{*rest}", 0),
        ("/of/{who}/{workspace}/{*rest}", 1),
        ("/{*rest}", 0),
    ],
    &[("/", 1), ("/{*rest}", 0)],
    &[("/", 1), ("/{workspace}", 0), ("/v1/x", 2), ("/{workspace}/x/{*rest}", 1)],
    &[("/v1/{workspace}/v1/{*rest}", 1), ("/{one}/x/{organisation}", 0), ("/v1", 2)],
];

fn paths(rows: &[Row]) -> Paths {
    let patterns: Vec<Pattern> = rows.iter().map(|row| Pattern::read(row.0).unwrap()).collect();
    let entry = |(route, pattern)| RouteEntry { route, pattern, methods: &[], spellings: ALL };
    let entries: Vec<RouteEntry<'_>> = patterns.iter().enumerate().map(entry).collect();
    let (paths, undecided) = Paths::new(&entries, |one, other| rows[one].1 > rows[other].1);
    assert_eq!(undecided, []);
    paths
}

/// The same decisions from whole texts, in time that grows with the square of their length.
mod model {
    use std::collections::BTreeSet;

    use super::*;
    use crate::request::escapes;
    use crate::request::route::readings::{Word, Words};

    pub(super) fn has_one_meaning(paths: &Paths, path: &str, at: Option<usize>) -> bool {
        let own = at.and_then(|at| paths.routes.get(at));
        let same = |reading: &String| {
            let names_same = |own: &Own| own.pattern.names(reading) == own.pattern.names(path);
            paths.tree.find(&Method::GET, reading) == at && own.is_none_or(names_same)
        };
        let readings = readings(&paths.words, path, own.map_or(0, |own| own.literals));
        readings.is_some_and(|readings| readings.iter().all(same))
    }

    pub(super) fn may_reach_stricter(paths: &Paths, path: &str, own: &Own) -> bool {
        let names = own.pattern.names(path);
        let reaches_stricter = |reading: &String| {
            let Some(at) = paths.tree.find(&Method::GET, reading) else { return false };
            let mut others = paths.routes[at].pattern.names(reading).into_iter().zip(names);
            own.stricter.contains(&at) || others.any(|(other, own)| other.is_some() && other != own)
        };
        let readings = readings(&paths.guarded, path, own.literals);
        readings.is_none_or(|readings| readings.iter().any(reaches_stricter))
    }

    pub(super) fn may_have_readings(words: &Words, path: &str, literal: u64) -> bool {
        let mut varied = path.split('/').skip(1).enumerate();
        (path.contains('%') && !before_marks(path).is_empty())
            || varied.any(|(at, segment)| {
                let is_literal = at < 64 && literal >> at & 1 == 1;
                let mut words = words.by_depth.get(at).into_iter().flatten();
                let is_dropped = !segment.is_empty() && is_blank(segment);
                !is_literal && (is_dropped || words.any(|word| is_like(word, segment)))
            })
    }

    fn readings(words: &Words, path: &str, literal: u64) -> Option<Vec<String>> {
        let mut ways = splits(path, literal);
        ways.extend(before_marks(path).into_iter().flat_map(|path| splits(path, 0)));
        let mut readings = Vec::new();
        for (split, literal) in ways {
            readings.append(&mut words_for(words, &split, literal)?);
        }
        Some(readings)
    }

    fn words_for(words: &Words, segments: &[&str], literal: u64) -> Option<Vec<String>> {
        let mut paths = vec![String::new()];
        for (at, segment) in segments.iter().enumerate() {
            let is_literal = at < 64 && literal >> at & 1 == 1;
            let words = words.by_depth.get(at).filter(|_| !is_literal).into_iter().flatten();
            let like = words.filter(|word| is_like(word, segment));
            let ways: Vec<&str> = like.map(|word| &*word.text).chain([*segment]).collect();
            if paths.len() * ways.len() > 64 {
                return None;
            }
            let longer =
                |path: &String| ways.iter().map(|way| format!("{path}/{way}")).collect::<Vec<_>>();
            paths = paths.iter().flat_map(longer).collect();
        }
        Some(paths)
    }

    fn splits(path: &str, literal: u64) -> Vec<(Vec<&str>, u64)> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let at_slashes = |part| str::split(part, "%2F").flat_map(|part| part.split("%2f"));
        let whole: Vec<&str> = path.split('/').collect();
        let further: Vec<&str> = whole.iter().copied().flat_map(at_slashes).collect();
        let mut splits = vec![(whole.clone(), literal), (further.clone(), 0)];
        for split in [&whole, &further] {
            for is_dropped in [str::is_empty, is_blank] {
                let kept = split.iter().copied().filter(|segment| !is_dropped(segment));
                splits.push((kept.collect(), 0));
            }
        }
        splits
    }

    /// The path up to the first of some marks, for each set of marks that a server may know.
    fn before_marks(path: &str) -> Vec<&str> {
        let kinds = [&[";"][..], &["%3b", "%3B"], &["?", "%3f", "%3F"], &["#", "%23"]];
        let sets = (0..1 << kinds.len()).map(|set: usize| {
            let of_set = kinds.iter().enumerate().filter(move |(kind, _)| set >> kind & 1 == 1);
            of_set.flat_map(|(_, marks)| *marks)
        });
        let ends = sets.filter_map(|marks| marks.filter_map(|mark| path.find(mark)).min());
        ends.collect::<BTreeSet<usize>>().into_iter().map(|end| &path[..end]).collect()
    }

    pub(super) fn is_like(word: &Word, segment: &str) -> bool {
        let is_end = |end: &str| end.is_empty() || end.starts_with(['.', ';', '?', '#']);
        let text = folded(segment);
        let end = text.trim_start_matches(is_space).strip_prefix(&folded(&word.text)[..]);
        *segment != *word.text && end.is_some_and(|end| is_end(end.trim_start_matches(is_space)))
    }

    fn is_space(char: char) -> bool {
        char.is_whitespace() || char == '+' || char == '\u{feff}'
    }

    fn is_accent(char: char) -> bool {
        matches!(char, '\u{2be}' | '\u{300}'..='\u{36f}')
    }

    fn is_blank(segment: &str) -> bool {
        let decoded = decoded(segment);
        let name = decoded.split(';').next().unwrap();
        name.chars().all(|char| is_space(char) || char == '.' || is_accent(char))
    }

    fn folded(segment: &str) -> String {
        let narrow = |char: char| match char {
            '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(char) - 0xfee0).unwrap(),
            other => other,
        };
        let lower: String =
            decoded(segment).chars().map(narrow).flat_map(char::to_lowercase).collect();
        let folded: String = lower.to_uppercase().chars().flat_map(char::to_lowercase).collect();
        folded.chars().filter(|char| !is_accent(*char)).collect()
    }

    fn decoded(segment: &str) -> String {
        String::from_utf8_lossy(&escapes::decoded(segment)).into_owned()
    }
}

#[test]
fn a_character_is_like_the_ascii_letters_that_a_conversion_of_its_case_starts_with() {
    let folded = |text: &str| {
        let mut folded = Vec::new();
        Decoded(text).for_each(|char| fold(char, |byte| folded.push(byte)));
        folded
    };
    let mut met = String::new();
    for char in '\u{80}'..=char::MAX {
        let lower: String = char.to_lowercase().collect();
        let upper: String = char.to_uppercase().collect();
        // The conversions of single characters that servers use differ from these only where they
        // drop the accents of a result: `i` of U+0130.
        for converted in [lower.to_uppercase(), upper.to_lowercase(), lower, upper] {
            let end = converted.find(|char: char| !char.is_ascii_alphabetic());
            let letters = &converted[..end.unwrap_or(converted.len())];
            if !letters.is_empty() {
                assert_eq!(folded(&char.to_string()), folded(letters), "{char:?}: {converted:?}");
                met.push(char);
            }
        }
    }
    for char in "\u{df}\u{130}\u{131}\u{17f}\u{1f0}\u{1e9a}\u{1e9e}\u{212a}\u{fb03}".chars() {
        assert!(met.contains(char), "{char:?}");
    }
}

/// The words of routes of one segment each.
fn words(texts: impl IntoIterator<Item = String>) -> Words {
    let mut words = Words::default();
    texts.into_iter().for_each(|text| words.add(&Pattern::read(&format!("/{text}")).unwrap()));
    words
}

#[test]
fn the_words_that_a_segment_is_like_are_those_of_comparing_each() {
    const WORDS: &str =
        "a ab A aB abc b i ki \u{130}k ss \u{df} SS s a+ a+b a.b a%20b \u{e9} \u{17f} a:b x";
    const PARTS: &str = "a b c A B s ss \u{df} \u{17f} \u{e9} %C3%A9 x + %20 . : ; %3B %3F # \
                         i \u{130} \u{131} \u{307} \u{1e9e} \u{212a} \u{1e96} \u{ff41} \u{ff0e} \
                         \u{3000} %61 % %E3%80%80 \u{ff33}";
    let [names, parts] = [WORDS, PARTS].map(|all| all.split(' ').collect::<Vec<_>>());
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut met = 0;
    for _ in 0..400 {
        let some = names.iter().filter(|_| dice.roll(2) == 0);
        let words = words(some.map(|word| (*word).to_owned()).collect::<Vec<_>>());
        for _ in 0..200 {
            let segment: String =
                (0..1 + dice.roll(6)).map(|_| parts[dice.roll(parts.len())]).collect();
            let mut found: Vec<&str> = words.like(0, &segment).collect();
            let all = words.by_depth.first().into_iter().flatten();
            let like = all.filter(|word| model::is_like(word, &segment));
            let mut expected: Vec<&str> = like.map(|word| &*word.text).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{segment} of {words:?}");
            met += found.len();
        }
    }
    assert!(met > 5_000, "{met}");
}

#[test]
fn a_segment_is_read_once_whatever_the_number_of_words() {
    let words =
        words((0..300).flat_map(|at| [format!("a{at}"), format!("r{at}")]).collect::<Vec<_>>());
    let words = &words.by_depth[0];
    for segment in [
        "+".repeat(30_000) + "x;y",
        "%20".repeat(10_000) + "r",
        "\u{3000}".repeat(10_000),
        "r".to_owned() + &"+".repeat(30_000),
        "r2".to_owned() + &"+".repeat(30_000) + "x",
        "%72%32".to_owned() + &"%20".repeat(10_000) + ".x",
        "+".repeat(10_000) + "r299" + &"+".repeat(10_000),
        "r".repeat(30_000),
    ] {
        let read = Cell::new(0);
        let text = Decoded(&segment).inspect(|_| read.set(read.get() + 1));
        like(words, text).for_each(|_| {});
        let most = Decoded(&segment).count() + 20;
        assert!(read.get() <= most, "{} characters of {most}", read.get());
    }
}

/// A short path of many odd segments.
fn odd_path(dice: &mut Dice) -> String {
    const PARTS: &str = "v1 v1 workspaces tenants:batch webhooks of x organisations healthz ws_a a";
    const ODD: &str = "%2F %2f / %20 + . .. .x ; ;a=1 %3B %3b %3F %3f %23 /%20 /%23 ;/ %2F%2F /+ \
                       %C2%A0 %EF%BB%BF %E3%80%80 \u{ff0e} \u{ff0b} %EF%BC%8B \u{17f} \u{df} \
                       \u{307} %CC%87 é %C3%A9 %76 %56";
    let [parts, odd] = [PARTS, ODD].map(|all| all.split(' ').collect::<Vec<_>>());
    let mut path = String::new();
    for _ in 0..=dice.roll(5) {
        path.push('/');
        for _ in 0..dice.roll(3) {
            path += odd[dice.roll(odd.len())];
        }
        let part = parts[dice.roll(parts.len())];
        match dice.roll(4) {
            0 => path += &part.to_uppercase(),
            1 if dice.roll(4) == 0 => {}
            1 => path += &part.replace('s', "\u{ff33}").replace(':', "%3A"),
            _ => path += part,
        }
        for _ in 0..dice.roll(3) {
            path += odd[dice.roll(odd.len())];
        }
    }
    path
}

#[test]
fn a_path_is_judged_as_by_all_its_readings_in_full() {
    let (mut checked, mut one, mut stricter) = (0, 0, 0);
    for rows in TABLES {
        let paths = paths(rows);
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for _ in 0..20_000 {
            let path = odd_path(&mut dice);
            if target::read(path.as_bytes(), Some(b"h.test")).is_err() {
                continue;
            }
            checked += 1;
            let at = paths.tree.find(&Method::GET, &path);
            let has_one = paths.has_one_meaning(&Method::GET, [&path; 2], at);
            assert_eq!(has_one, model::has_one_meaning(&paths, &path, at), "{path} in {rows:?}");
            one += usize::from(has_one);
            for words in [&paths.words, &paths.guarded] {
                let literals = at.map_or(0, |at| paths.routes[at].literals);
                let may = words.may_have_readings(&path, literals);
                assert_eq!(may, model::may_have_readings(words, &path, literals), "{path}");
            }
            let Some(own) = at.map(|at| &paths.routes[at]) else { continue };
            let reaches = paths.may_reach_stricter(&Method::GET, [&path; 2], own);
            assert_eq!(reaches, model::may_reach_stricter(&paths, &path, own), "{path}, {rows:?}");
            stricter += usize::from(reaches);
        }
    }
    assert!(one > 1_000 && stricter > 1_000, "{checked}: {one} {stricter}");
}

#[test]
fn no_path_is_slow_to_check() {
    // Nothing may be built or read again for each segment, or for each byte.
    let parts = "/a;b /; /a a ; a; /a.b /a%3Fb a%23 /a%2Fb %2F /+ /%20 %20 + . /... %61%3A /%C3%A9 \
                 é \u{3000} \u{ff0e}";
    let paths = paths(TABLES[0]);
    for start in ["/v1", "/V1.x/Workspaces.x/ws_a/Webhooks.x", "/v1/workspaces/ws_a", "/x"] {
        for part in parts.split(' ') {
            for end in ["", "/%3F", ";/%2F/%20"] {
                let long = part.repeat(100_000 / part.len());
                for path in [format!("{start}{long}{end}"), format!("{start}/{long}{end}")] {
                    let target = target::read(path.as_bytes(), Some(b"h.test"));
                    let _ = target.and_then(|target| paths.find(&Method::GET, &target));
                }
            }
        }
    }
}
