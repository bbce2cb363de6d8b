//! Normalizes letters: full width, circled, bold, with accents. (core)

use icu_normalizer::DecomposingNormalizerBorrowed;

/// Letters that look like Latin ones: phonetic, Greek, Cyrillic, Armenian, Cherokee, Lisu, and
/// their extensions.
const LOOKALIKES: [std::ops::RangeInclusive<char>; 12] = [
    // The schwa between these ranges is a letter of Azerbaijani.
    '\u{250}'..='\u{258}',
    '\u{25a}'..='\u{2af}',
    '\u{370}'..='\u{58f}',
    '\u{13a0}'..='\u{13ff}',
    '\u{1c80}'..='\u{1c8f}',
    '\u{1d00}'..='\u{1dbf}',
    '\u{1f00}'..='\u{1fff}',
    '\u{2c60}'..='\u{2cff}',
    '\u{a4d0}'..='\u{a4ff}',
    '\u{a640}'..='\u{a69f}',
    '\u{a720}'..='\u{a7ff}',
    '\u{ab30}'..='\u{abbf}',
];

pub(super) const DECOMPOSED: DecomposingNormalizerBorrowed<'static> =
    DecomposingNormalizerBorrowed::new_nfkd();

/// A key's letters and digits, in lower case; `None` if it mixes Latin letters and look-alikes.
pub(super) fn plain(key: &str) -> Option<String> {
    if !key.is_ascii() {
        return transliterated(key);
    }
    // ASCII needs no decomposition and has no look-alikes.
    let mut name = key.to_ascii_lowercase();
    name.retain(|letter| letter.is_ascii_alphanumeric());
    Some(name)
}

/// An ASCII key's letters and digits in lower case, without the `skipped` words, and where its
/// other words begin: after a separator, or at a capital (`pwdLastSet`, `userJWTValue`).
pub(super) fn in_words(key: &str, skipped: &[&str]) -> (String, Vec<usize>) {
    let (mut name, mut borders, mut word) = (String::new(), Vec::new(), String::new());
    let mut end = |word: &mut String| {
        if !word.is_empty() && !skipped.contains(&word.as_str()) {
            borders.push(name.len());
            name.push_str(word);
        }
        word.clear();
    };
    let bytes = key.as_bytes();
    for (at, letter) in bytes.iter().enumerate() {
        let is = |at: Option<usize>, test: fn(&u8) -> bool| {
            at.and_then(|at| bytes.get(at)).is_some_and(test)
        };
        let before = at.checked_sub(1);
        let capital = letter.is_ascii_uppercase()
            && (!is(before, u8::is_ascii_uppercase) || is(Some(at + 1), u8::is_ascii_lowercase));
        if capital || !letter.is_ascii_alphanumeric() {
            end(&mut word);
        }
        if letter.is_ascii_alphanumeric() {
            word.push(char::from(letter.to_ascii_lowercase()));
        }
    }
    end(&mut word);
    (name, borders)
}

/// The result of [`plain`] for a key in any script.
pub(super) fn transliterated(key: &str) -> Option<String> {
    let (mut name, mut foreign) = (String::new(), false);
    let lower = DECOMPOSED.normalize(key);
    for letter in lower.chars().flat_map(char::to_lowercase) {
        match letter {
            'a'..='z' | '0'..='9' => name.push(letter),
            // Letters that NFKD does not decompose, and the micro sign.
            '\u{df}' => name.push_str("ss"),
            '\u{f8}' => name.push('o'),
            '\u{111}' => name.push('d'),
            '\u{131}' => name.push('i'),
            '\u{142}' => name.push('l'),
            '\u{167}' => name.push('t'),
            '\u{3bc}' => name.push('u'),
            _ => foreign |= LOOKALIKES.iter().any(|range| range.contains(&letter)),
        }
    }
    let latin = name.bytes().any(|letter| letter.is_ascii_alphabetic());
    (!(foreign && latin)).then_some(name)
}
