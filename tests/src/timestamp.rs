//! Parses the timestamps of responses, envelopes and log lines without the code under test.

/// The milliseconds since 1970 that a timestamp such as `2026-01-31T23:59:59.250Z` stands for.
#[track_caller]
pub fn millis(text: &str) -> u64 {
    read(text).unwrap_or_else(|| panic!("{text:?} is no ISO 8601 timestamp in UTC"))
}

/// The same; `None` if the text is not such a timestamp.
pub fn read(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = three(date, '-')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = three(time, ':')?;
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let sound = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    let seconds = days(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second;
    (sound && second < 60).then_some(seconds * 1_000 + millis)
}

fn three(text: &str, mark: char) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = text.split(mark).map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Days since 1970, counted year by year.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let before: u64 = (1970..year).map(|year| if leap(year) { 366 } else { 365 }).sum();
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let months: u64 = lengths.get(..usize::try_from(month).ok()?.checked_sub(1)?)?.iter().sum();
    Some(before + months + day.checked_sub(1)?)
}
