//! Whether a colour can be read on another: the contrast of WCAG 2.2, §1.4.3. (core)

use std::fmt;

/// The least contrast of text.
pub const TEXT_MIN: f64 = 4.5;

/// A colour of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color([u8; 3]);

impl Color {
    /// From red, green and blue.
    #[must_use]
    pub const fn new(rgb: [u8; 3]) -> Self {
        Self(rgb)
    }

    /// Reads `#rrggbb`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('#')?;
        let bytes = hex::decode(digits).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The contrast with another, from 1 to 21.
    #[must_use]
    pub fn contrast(self, other: Self) -> f64 {
        let (one, two) = (self.luminance(), other.luminance());
        (one.max(two) + 0.05) / (one.min(two) + 0.05)
    }

    /// The one of two colours that is read better on this one.
    #[must_use]
    pub fn more_readable(self, one: Self, two: Self) -> Self {
        if self.contrast(one) >= self.contrast(two) { one } else { two }
    }

    fn luminance(self) -> f64 {
        let linear = |channel: u8| {
            let share = f64::from(channel) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = self.0.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn color(text: &str) -> Color {
        Color::read(text).unwrap()
    }

    #[test]
    fn the_contrast_is_that_of_wcag() {
        let white = color("#ffffff");
        for (text, expected) in [("#000000", 21.0), ("#ffffff", 1.0), ("#767676", 4.54)] {
            let found = color(text).contrast(white);
            assert!((found - expected).abs() < 0.01, "{text}: {found}");
        }
        assert_eq!(color("#1f5fbf").more_readable(color("#000000"), white), white);
    }

    #[test]
    fn a_color_has_six_digits() {
        assert_eq!(color("#0B7a55").to_string(), "#0b7a55");
        for wrong in ["", "#", "#fff", "0b7a55", "#0b7a5g", "#0b7a5500", "red", "#é1f5fb"] {
            assert_eq!(Color::read(wrong), None, "{wrong}");
        }
    }
}
