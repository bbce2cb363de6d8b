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
    for hours in [1.0 / 60.0, 0.25, 1.0, 4.0, 12.0, 24.0, 48.0] {
        if hours * 3_600.0 > span * 1.001 {
            break;
        }
        let x = 20.0 + (hours * 3_600.0 / span).sqrt() * (WIDTH - 40.0);
        let text = match hours {
            hours if hours < 1.0 => format!("{:.0} min", hours * 60.0),
            hours => format!("{hours} h"),
        };
        draw(
            &mut svg,
            format_args!(
                "<path class=\"grid\" d=\"M{x:.1} 28V34\"/>\
             <text x=\"{x:.1}\" y=\"48\" text-anchor=\"middle\">{text}</text>"
            ),
        );
    }
    for AxisMark { at, class } in &axis.attempts {
        let x = place(*at);
        draw(&mut svg, format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"20\" r=\"6\"/>"));
    }
    if let Some(next) = axis.next {
        let x = place(next);
        draw(
            &mut svg,
            format_args!(
                "<circle class=\"next\" cx=\"{x:.1}\" cy=\"20\" r=\"6\"/>\
                 <text x=\"{x:.1}\" y=\"9\" text-anchor=\"middle\">next</text>"
            ),
        );
    }
    if !axis.ended {
        let x = WIDTH - 20.0;
        draw(
            &mut svg,
            format_args!(
                "<path class=\"deadline\" d=\"M{x:.1} 12V32\"/>\
                 <text x=\"{WIDTH}\" y=\"9\" text-anchor=\"end\">deadline</text>"
            ),
        );
    }
    svg.push_str("</svg>");
    svg
}
