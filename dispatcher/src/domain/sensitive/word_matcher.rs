//! Searches a text for many words at once. (core)

/// A set of words. Two letters of a text select the words that may begin there; a text needs no
/// preparation.
pub(super) struct WordMatcher {
    words: &'static [&'static str],
    /// For each byte, a bit for every word that has it as its first, or as its second, letter.
    first: [u64; 256],
    second: [u64; 256],
}

impl WordMatcher {
    /// At most 64 words, each of at least two letters.
    #[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
    pub(super) const fn new(words: &'static [&'static str]) -> Self {
        let (mut first, mut second) = ([0; 256], [0; 256]);
        let mut at = 0;
        while at < words.len() {
            let letters = words[at].as_bytes();
            first[letters[0] as usize] |= 1 << at;
            second[letters[1] as usize] |= 1 << at;
            at += 1;
        }
        Self { words, first, second }
    }

    /// The rest of the text after each match.
    pub(super) fn anywhere<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let pairs = text.as_bytes().windows(2).enumerate();
        let places = pairs.filter(|(_, pair)| self.candidates(pair) != 0).map(|(at, _)| at);
        let tails = places.filter_map(|at| text.get(at..));
        tails.flat_map(|tail| self.ahead(tail)).map(|(_, rest)| rest)
    }

    /// The index of each word that the text begins with, and the rest of the text.
    pub(super) fn ahead<'t>(&self, text: &'t str) -> impl Iterator<Item = (usize, &'t str)> {
        let some = |bits: u64| (bits != 0).then_some(bits);
        let candidates = some(self.candidates(text.as_bytes()));
        let left = std::iter::successors(candidates, move |bits| some(bits & (bits - 1)));
        let words = left.map(|bits| bits.trailing_zeros() as usize);
        let words = words.filter_map(|nth| Some((nth, self.words.get(nth)?)));
        words.filter_map(|(nth, word)| Some((nth, text.strip_prefix(word)?)))
    }

    /// A bit for every word that begins with these two letters.
    fn candidates(&self, letters: &[u8]) -> u64 {
        let having = |table: &[u64; 256], letter: u8| table.get(usize::from(letter)).copied();
        let &[first, second, ..] = letters else { return 0 };
        having(&self.first, first).zip(having(&self.second, second)).map_or(0, |(a, b)| a & b)
    }
}
