//! Sentences with times in them, which pages write as times. (core)
//!
//! Invariant: nothing of a sentence is lost or changed but the form of its times.

use serde::Deserialize;

use crate::dashboard::show::When;

/// A sentence of the API, or one of ours with times as the API writes them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct TextWithTimes(pub(super) String);

/// A part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'p> {
    Text(&'p str),
    Time(When),
}

impl TextWithTimes {
    /// The sentence as texts and times.
    pub(super) fn pieces(&self) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        for word in self.0.split_inclusive(char::is_whitespace) {
            let bare = word.trim_end().trim_end_matches(['.', ',', ';', ':', ')']);
            match When::read(bare) {
                Some(when) => {
                    pieces.push(Piece::Time(when));
                    pieces.push(Piece::Text(word.get(bare.len()..).unwrap_or_default()));
                }
                None => pieces.push(Piece::Text(word)),
            }
        }
        pieces
    }
}

impl From<String> for TextWithTimes {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_out_and_the_rest_stays() {
        let text = "Paused since 2026-11-25T10:17:49.571Z, until\u{a0}it is reactivated; v1.2.";
        let prose = TextWithTimes(text.to_owned());
        let pieces = prose.pieces();
        let times: Vec<_> = pieces.iter().filter(|piece| matches!(piece, Piece::Time(_))).collect();
        assert_eq!(times, [&Piece::Time(When("2026-11-25T10:17:49.571Z".to_owned()))]);
        let whole: String = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => *text,
                Piece::Time(when) => when.exact(),
            })
            .collect();
        assert_eq!(whole, text);
    }
}
