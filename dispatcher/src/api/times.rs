//! Parses RFC 3339 times. (core)
//!
//! Not here: formatting them (`weir_common::time`).

use weir_common::time::UnixTime;

/// Parses an RFC 3339 time, to the microsecond; from 1970 on.
pub(crate) fn time_of(text: &str) -> Option<UnixTime> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let is = |at: usize, wanted: &[u8]| text.as_bytes().get(at).is_some_and(|b| wanted.contains(b));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !marks || !in_range {
        return None;
    }
    let (micros, zone) = fraction(text.get(19..)?)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let seconds = u64::try_from(seconds - offset(zone)?).ok()?;
    Some(UnixTime(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
}

/// Splits a leading fraction, in microseconds, from the rest.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, zone) = rest.split_at(end);
    let mut micros = digits.bytes().chain(std::iter::repeat(b'0')).map(|digit| digit - b'0');
    let micros = micros.by_ref().take(6).fold(0, |all, digit| all * 10 + u64::from(digit));
    (!digits.is_empty()).then_some((micros, zone))
}

/// The zone's offset from UTC in seconds.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let number = |digits: &str, most: i64| {
        let plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|number: &i64| plain && *number <= most)
    };
    let seconds = number(hours, 23)? * 3_600 + number(minutes, 59)? * 60;
    match zone.as_bytes().first()? {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400;
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    before * 365 + leaps + months + day - 719_163
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_parsed_back_from_its_text() {
        for micros in [0, 1_000, 951_782_399_999_000, 951_782_400_000_000, 1_709_164_800_000_000]
            .into_iter()
            .chain((0..2_000).map(|n| n * 86_399_123_000 * 7))
        {
            let time = UnixTime(micros);
            assert_eq!(time_of(&time.rfc3339()), Some(time), "{}", time.rfc3339());
        }
    }

    #[test]
    fn zones_and_fractions_are_parsed() {
        for (text, micros) in [
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("1970-01-01t00:00:00.5z", Some(500_000)),
            ("1970-01-01 00:00:01.1234567Z", Some(1_123_456)),
            ("1969-12-31T23:30:00-00:31", Some(60_000_000)),
            ("1970-01-01T00:00:00+00:01", None),
        ] {
            assert_eq!(time_of(text), micros.map(UnixTime), "{text}");
        }
    }

    #[test]
    fn what_is_no_rfc_3339_time_is_refused() {
        for text in [
            "",
            "now",
            "2026",
            "2026-11-20",
            "2026-11-20T14:03Z",
            "2026-11-20T14:03:00",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-31T00:00:00Z",
            "2026-00-10T00:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T14:60:00Z",
            "2026-11-20T14:03:00.Z",
            "2026-11-20T14:03:00+1:00",
            "2026-11-20T14:03:00+24:00",
            "2026-11-20T14:03:00ZZ",
            "2026/11/20T14:03:00Z",
            "+026-11-20T14:03:00Z",
            "2026-11-20T14:03:00\u{e9}",
            "\u{e9}026-11-20T14:03:00Z",
            "1969-12-31T23:59:59Z",
            "0000-01-01T00:00:00Z",
        ] {
            assert_eq!(time_of(text), None, "{text}");
        }
    }
}
