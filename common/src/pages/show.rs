//! How pages write numbers, spans of time and states: the same everywhere. (core)

use std::time::Duration;

use crate::time::UnixTime;

/// A span of time in one unit, as people say it.
#[must_use]
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (number, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    if number == 1 { format!("1 {unit}") } else { format!("{number} {unit}s") }
}

/// `2026-11-24 05:12:03 UTC` of RFC 3339; the script writes it in the reader's zone.
#[must_use]
pub fn utc(rfc3339: impl AsRef<str>) -> String {
    let text = rfc3339.as_ref();
    let (date, time) = text.split_once('T').unwrap_or((text, ""));
    format!("{date} {} UTC", time.get(..8).unwrap_or(time))
}

/// The time of day in UTC, for axes.
#[must_use]
pub fn of_day(time: UnixTime) -> String {
    time.rfc3339().get(11..16).unwrap_or_default().to_owned()
}

/// A number in groups of three, with thin spaces that break no line.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// `part` of `whole` in per cent, with one digit; `None` of nothing.
#[must_use]
pub fn share(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| {
        let tenths = (u128::from(part) * 1_000 + u128::from(whole) / 2) / u128::from(whole);
        // Neither nothing nor all where it is not.
        let tenths = match tenths {
            0 if part > 0 => 1,
            1_000.. if part < whole => 999,
            other => other,
        };
        format!("{}.{}\u{202f}%", tenths / 10, tenths % 10)
    })
}

/// So much per second, as a person reads it.
#[must_use]
pub fn rate(per_second: f64) -> String {
    if per_second >= 100.0 || per_second == 0.0 {
        grouped(per_second.round() as u64)
    } else if per_second >= 0.095 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.3}")
    }
}

/// A whole number, as a person reads it.
#[must_use]
pub fn whole(number: f64) -> String {
    grouped(number.round() as u64)
}

/// Bytes, as a person reads them.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (bytes, 0);
    while number >= 1_024.0 && unit + 1 < units.len() {
        (number, unit) = (number / 1_024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && number < 100.0);
    format!("{number:.digits$}\u{202f}{}", units.get(unit).copied().unwrap_or_default())
}

/// Milliseconds, as a person reads them.
#[must_use]
pub fn ms(ms: f64) -> String {
    if ms >= 10_000.0 {
        format!("{:.1}\u{202f}s", ms / 1_000.0)
    } else if ms >= 100.0 {
        format!("{ms:.0}\u{202f}ms")
    } else {
        format!("{ms:.1}\u{202f}ms")
    }
}

/// A state: its mark, its word, and its class in the style. Never colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// A sign that no other state has.
    pub shape: &'static str,
    /// Its name.
    pub word: &'static str,
    /// Its class in the style.
    pub class: &'static str,
}

/// A mark of these parts.
#[must_use]
pub const fn mark(shape: &'static str, word: &'static str, class: &'static str) -> Mark {
    Mark { shape, word, class }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_shares_have_one_digit() {
        let thin = |text: &str| text.replace(' ', "\u{202f}");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_204), thin("1 204"));
        assert_eq!(grouped(1_234_567), thin("1 234 567"));
        assert_eq!(share(0, 0), None);
        assert_eq!(share(1, 3), Some(thin("33.3 %")));
        assert_eq!(share(4, 60), Some(thin("6.7 %")));
        // Never rounded to a whole or to nothing that it is not.
        assert_eq!(share(1, 100_000), Some(thin("0.1 %")));
        assert_eq!(share(99_999, 100_000), Some(thin("99.9 %")));
        assert_eq!(share(5, 5), Some(thin("100.0 %")));
        assert_eq!(
            (ms(4.04), ms(812.4), ms(30_000.0)),
            (thin("4.0 ms"), thin("812 ms"), thin("30.0 s"))
        );
    }

    #[test]
    fn rates_sizes_and_times_are_short() {
        let thin = |text: &str| text.replace(' ', "\u{202f}");
        assert_eq!([0.0, 0.004, 0.5, 12.34].map(rate), ["0", "0.004", "0.5", "12.3"]);
        assert_eq!(rate(1_234.5), thin("1 235"));
        assert_eq!([0.0, 1_023.0, 1_536.0].map(bytes), ["0 B", "1023 B", "1.5 KiB"].map(thin));
        assert_eq!(bytes((200_u64 << 20) as f64), thin("200 MiB"));
        let time = UnixTime(1_795_590_723_000_000);
        assert_eq!(utc(time.rfc3339()), "2026-11-25 07:12:03 UTC");
        assert_eq!(of_day(time), "07:12");
    }

    #[test]
    fn spans_have_one_unit() {
        let of = |seconds| span(Duration::from_secs(seconds));
        assert_eq!((of(0), of(1)), ("0 seconds".to_owned(), "1 second".to_owned()));
        assert_eq!((of(61), of(3 * 3_600)), ("1 minute".to_owned(), "3 hours".to_owned()));
        assert_eq!(of(3 * 86_400), "3 days");
    }
}
