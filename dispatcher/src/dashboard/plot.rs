//! Charts of a day, and the 48 hours of a delivery. (core)
//!
//! Not here: how charts are drawn (`weir_common::pages::plot`).

use weir_common::pages::plot::{self, HATCHES, Plot, PlotLine, WIDTH, draw};
use weir_common::pages::show::{grouped, ms, span as in_words};
use weir_common::time::UnixTime;

use crate::dashboard::api_answers::HourData;
use crate::dashboard::show::CLASSES;

/// The bars of a day, small, for a list.
pub(super) fn sparkline(hours: &[HourData]) -> String {
    let bars: Vec<_> =
        hours.iter().map(|hour| (hour.counts.delivered, hour.counts.failed())).collect();
    let (attempts, failed) = hours.iter().fold((0, 0), |(all, failed), hour| {
        (all + hour.counts.attempts, failed + hour.counts.failed())
    });
    let label = match attempts {
        0 => "no attempts in the last 24 hours".to_owned(),
        _ => format!("{} attempts in 24 hours, {} failed", grouped(attempts), grouped(failed)),
    };
    plot::sparkline(&label, &bars)
}

/// The outcomes of each hour, stacked by class.
pub(super) fn outcomes(hours: &[HourData]) -> String {
    let of_hour = |hour: &HourData| Some(hour.counts.by_class().map(|count| count as f64).to_vec());
    let bars: Vec<_> = hours.iter().map(of_hour).collect();
    let label = "Attempts by the hour and by what became of them";
    let shown = |value: f64| grouped(value.round() as u64);
    let plot = Plot { label, times: &times(hours), shown, threshold: None };
    [HATCHES, &plot.stacked(&CLASSES.map(|(_, class)| class), &bars)].concat()
}

/// The answer times of each hour; nothing where there was no answer.
pub(super) fn answer_times(hours: &[HourData]) -> String {
    let lines = [
        PlotLine { class: "p95", values: hours.iter().map(|hour| hour.counts.p95_ms).collect() },
        PlotLine { class: "p50", values: hours.iter().map(|hour| hour.counts.p50_ms).collect() },
    ];
    let label = "Answer times by the hour: half of the answers, and 95 % of them";
    Plot { label, times: &times(hours), shown: ms, threshold: None }.lines(&lines)
}

/// The times of every fourth hour.
fn times(hours: &[HourData]) -> Vec<Option<UnixTime>> {
    let all = hours.iter().enumerate();
    all.map(|(at, hour)| (at % 4 == 0).then(|| hour.start.unix())).collect()
}

/// One attempt on the axis of a delivery.
pub(super) struct AxisMark {
    pub(super) at: UnixTime,
    /// Its class in the style.
    pub(super) class: &'static str,
}

/// The time that a delivery has.
pub(super) struct Axis {
    /// The first attempt.
    pub(super) start: UnixTime,
    /// When it is given up, or its end.
    pub(super) end: UnixTime,
    pub(super) now: UnixTime,
    pub(super) attempts: Vec<AxisMark>,
    pub(super) next: Option<UnixTime>,
    /// From when until when nothing was sent.
    pub(super) stops: Vec<(UnixTime, UnixTime)>,
    /// Whether it has ended.
    pub(super) ended: bool,
}

/// The hours of an axis that have a mark.
const HOURS: [f64; 7] = [1.0 / 60.0, 0.25, 1.0, 4.0, 12.0, 24.0, 48.0];

/// What a word on an axis takes on a phone, where letters are large.
const WORD: f64 = 60.0;

/// What an axis shows, for those who do not see it.
fn words_of(axis: &Axis) -> String {
    let mut label = format!("{} attempts so far", axis.attempts.len());
    if let Some(next) = axis.next {
        label.push_str(&format!(", the next in {}", in_words(next.since(axis.now))));
    }
    if !axis.ended {
        label.push_str(&format!(", given up in {}", in_words(axis.end.since(axis.now))));
    }
    label
}

/// Attempts, the next one and the deadline on one line. Its scale is a root, so that the first
/// attempts, which come soon after one another, are told apart.
pub(super) fn axis(axis: &Axis) -> String {
    let span = axis.end.since(axis.start).as_secs_f64().max(1.0);
    let place = |at: UnixTime| {
        let part = (at.since(axis.start).as_secs_f64() / span).clamp(0.0, 1.0);
        20.0 + part.sqrt() * (WIDTH - 40.0)
    };
    let label = words_of(axis);
    let mut svg = format!(
        "<svg class=\"plot axis\" viewBox=\"0 0 {WIDTH} 56\" role=\"img\" aria-label=\"{label}\">"
    );
    let reached = if axis.ended { axis.end } else { axis.now };
    draw(
        &mut svg,
        format_args!(
            "<path class=\"todo\" d=\"M20 20H{:.1}\"/><path class=\"done\" d=\"M20 20H{:.1}\"/>",
            WIDTH - 20.0,
            place(reached)
        ),
    );
    for (from, until) in &axis.stops {
        let (from, to) = (place(*from), place(*until));
        draw(&mut svg, format_args!("<path class=\"paused\" d=\"M{from:.1} 20H{to:.1}\"/>"));
    }
    write_hours(&mut svg, span);
    for AxisMark { at, class } in &axis.attempts {
        let x = place(*at);
        draw(&mut svg, format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"20\" r=\"6\"/>"));
    }
    write_ahead(&mut svg, axis.next.map(place), axis.ended);
    svg.push_str("</svg>");
    svg
}

/// The marks of the hours, whose words do not touch each other.
fn write_hours(svg: &mut String, span: f64) {
    let mut right = f64::INFINITY;
    for hours in HOURS.into_iter().rev().filter(|hours| hours * 3_600.0 <= span * 1.001) {
        let x = 20.0 + (hours * 3_600.0 / span).sqrt() * (WIDTH - 40.0);
        let fits = right - x >= WORD;
        let class = if fits { "" } else { " class=\"crowded\"" };
        right = if fits { x } else { right };
        let text = match hours {
            hours if hours < 1.0 => format!("{:.0} min", hours * 60.0),
            hours => format!("{hours} h"),
        };
        draw(
            svg,
            format_args!(
                "<path class=\"grid\" d=\"M{x:.1} 28V34\"/>\
             <text{class} x=\"{x:.1}\" y=\"48\" text-anchor=\"middle\">{text}</text>"
            ),
        );
    }
}

/// The next attempt, at its place, and the deadline.
fn write_ahead(svg: &mut String, next: Option<f64>, ended: bool) {
    // Both words take two.
    let are_close = !ended && next.is_some_and(|x| WIDTH - x < 2.0 * WORD);
    if let Some(x) = next {
        draw(svg, format_args!("<circle class=\"next\" cx=\"{x:.1}\" cy=\"20\" r=\"6\"/>"));
        if !are_close {
            draw(
                svg,
                format_args!("<text x=\"{x:.1}\" y=\"9\" text-anchor=\"middle\">next</text>"),
            );
        }
    }
    if !ended {
        let x = WIDTH - 20.0;
        let text = if are_close { "next · deadline" } else { "deadline" };
        draw(
            svg,
            format_args!(
                "<path class=\"deadline\" d=\"M{x:.1} 12V32\"/>\
                 <text x=\"{WIDTH}\" y=\"9\" text-anchor=\"end\">{text}</text>"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The texts above the axis of a delivery whose next attempt is so many hours after the first.
    fn words_above(next: u64) -> Vec<String> {
        let at = |hours: u64| UnixTime(0).plus(Duration::from_secs(hours * 3_600));
        let svg = axis(&Axis {
            start: at(0),
            end: at(48),
            now: at(1),
            attempts: Vec::new(),
            next: Some(at(next)),
            stops: Vec::new(),
            ended: false,
        });
        let texts = svg.split("y=\"9\"").skip(1).filter_map(|rest| rest.split(['>', '<']).nth(1));
        texts.map(str::to_owned).collect()
    }

    #[test]
    fn a_next_attempt_close_to_the_deadline_shares_its_word() {
        assert_eq!(words_above(24), ["next", "deadline"]);
        assert_eq!(words_above(47), ["next · deadline"]);
        assert_eq!(words_above(48), ["next · deadline"]);
    }
}
