//! Charts as SVG: bars, lines, and the 48 hours of a delivery. (core)
//!
//! Colours and hatches are classes of the style. Everything here is made of numbers and of our own
//! words, so pages write it as it is.

use std::fmt::Write;

use weir_common::time::UnixTime;

use crate::dashboard::data::HourData;
use crate::dashboard::show::{CLASSES, grouped, ms};

/// The size of a chart, in units of its own: it scales with the page.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 168.0;

/// Around the plot: numbers on the left, times below.
const LEFT: f64 = 48.0;
const BELOW: f64 = 22.0;
const ABOVE: f64 = 8.0;

/// The bars of a day, small, for a list.
pub(super) fn sparkline(hours: &[HourData]) -> String {
    let most = hours.iter().map(|hour| hour.counts.attempts).max().unwrap_or(0);
    let (attempts, failed) = hours.iter().fold((0, 0), |(all, failed), hour| {
        (all + hour.counts.attempts, failed + hour.counts.failed())
    });
    let label = match attempts {
        0 => "no attempts in the last 24 hours".to_owned(),
        _ => format!("{} attempts in 24 hours, {} failed", grouped(attempts), grouped(failed)),
    };
    let width = hours.len() * 5;
    let mut svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {width} 24\" role=\"img\" aria-label=\"{label}\">"
    );
    for (at, hour) in hours.iter().enumerate() {
        let x = at * 5;
        if hour.counts.attempts == 0 {
            draw(
                &mut svg,
                format_args!("<rect class=\"none\" x=\"{x}\" y=\"23\" width=\"4\" height=\"1\"/>"),
            );
            continue;
        }
        let height = |count: u64| count as f64 * 22.0 / most as f64;
        let (ok, bad) = (height(hour.counts.delivered), height(hour.counts.failed()));
        let (ok, bad) = (visible(ok, hour.counts.delivered), visible(bad, hour.counts.failed()));
        draw(
            &mut svg,
            format_args!(
                "<rect class=\"ok\" x=\"{x}\" y=\"{:.1}\" width=\"4\" height=\"{ok:.1}\"/>\
             <rect class=\"bad\" x=\"{x}\" y=\"{:.1}\" width=\"4\" height=\"{bad:.1}\"/>",
                24.0 - ok,
                24.0 - ok - bad,
            ),
        );
    }
    svg.push_str("</svg>");
    svg
}

/// What is there is seen, however little it is.
fn visible(height: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { height.max(1.0) }
}

fn draw(svg: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = svg.write_fmt(piece);
}

/// The outcomes of each hour, stacked by class.
pub(super) fn outcomes(hours: &[HourData]) -> String {
    let most = hours.iter().map(|hour| hour.counts.attempts).max().unwrap_or(0);
    let top = round_above(most as f64);
    let mut svg = begin("Attempts by the hour and by what became of them");
    svg.push_str(HATCHES);
    scale(&mut svg, top, |value| grouped(value.round() as u64));
    times(&mut svg, hours);
    let slot = (WIDTH - LEFT) / hours.len().max(1) as f64;
    for (at, hour) in hours.iter().enumerate() {
        let x = LEFT + slot * at as f64 + 1.0;
        let mut y = HEIGHT - BELOW;
        for (count, (_, class)) in hour.counts.by_class().into_iter().zip(CLASSES) {
            if count == 0 {
                continue;
            }
            let height = visible(count as f64 / top * (HEIGHT - BELOW - ABOVE), count);
            y -= height;
            let width = slot - 2.0;
            draw(
                &mut svg,
                format_args!(
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\
                 <rect fill=\"url(#hatch-{class})\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
                ),
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// What tells classes apart without colours; the first has no hatch.
const HATCHES: &str = "<defs>\
    <pattern id=\"hatch-ok\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"></pattern>\
    <pattern id=\"hatch-warn\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M0 6 6 0\"/></pattern>\
    <pattern id=\"hatch-bad\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M0 0 6 6\"/></pattern>\
    <pattern id=\"hatch-late\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M0 2.5H5\"/></pattern>\
    <pattern id=\"hatch-gone\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M2.5 0V5\"/></pattern>\
    <pattern id=\"hatch-blocked\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path class=\"hatch\" d=\"M0 0 6 6M0 6 6 0\"/></pattern>\
    </defs>";

/// The answer times of each hour; nothing where there was no answer.
pub(super) fn answer_times(hours: &[HourData]) -> String {
    let all = hours.iter().filter_map(|hour| hour.counts.p95_ms);
    let top = round_above(all.fold(0.0, f64::max));
    let mut svg = begin("Answer times by the hour: half of the answers, and 95 % of them");
    scale(&mut svg, top, ms);
    times(&mut svg, hours);
    let slot = (WIDTH - LEFT) / hours.len().max(1) as f64;
    let place = |at: usize, value: f64| {
        let y = HEIGHT - BELOW - value / top * (HEIGHT - BELOW - ABOVE);
        (LEFT + slot * (at as f64 + 0.5), y)
    };
    let lines: [(&str, Vec<Option<f64>>); 2] = [
        ("p95", hours.iter().map(|hour| hour.counts.p95_ms).collect()),
        ("p50", hours.iter().map(|hour| hour.counts.p50_ms).collect()),
    ];
    for (class, values) in lines {
        let mut path = String::new();
        let mut joins = false;
        for (at, value) in values.into_iter().enumerate() {
            let Some(value) = value else {
                joins = false;
                continue;
            };
            let (x, y) = place(at, value);
            draw(&mut path, format_args!("{}{x:.1} {y:.1}", if joins { "L" } else { "M" }));
            draw(
                &mut svg,
                format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"),
            );
            joins = true;
        }
        draw(&mut svg, format_args!("<path class=\"line {class}\" d=\"{path}\"/>"));
    }
    svg.push_str("</svg>");
    svg
}

fn begin(label: &str) -> String {
    format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    )
}

/// Lines and numbers from zero to the top.
fn scale(svg: &mut String, top: f64, shown: impl Fn(f64) -> String) {
    for part in [0.0, 0.5, 1.0] {
        let y = HEIGHT - BELOW - part * (HEIGHT - BELOW - ABOVE);
        let text = shown(top * part);
        draw(
            svg,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                y + 4.0
            ),
        );
    }
}

/// The times of every fourth hour.
fn times(svg: &mut String, hours: &[HourData]) {
    let slot = (WIDTH - LEFT) / hours.len().max(1) as f64;
    for (at, hour) in hours.iter().enumerate().step_by(4) {
        let x = LEFT + slot * at as f64;
        draw(
            svg,
            format_args!(
                "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                HEIGHT - 6.0,
                hour.start.of_day()
            ),
        );
    }
}

/// The next of 1, 2, 5, 10, 20, … that is no less; at least 2, so that its half is whole.
fn round_above(value: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for step in [2.0, 4.0, 6.0, 10.0] {
            if step * power >= value {
                return step * power;
            }
        }
        power *= 10.0;
    }
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
    /// Since when nothing is sent, if so.
    pub(super) paused_since: Option<UnixTime>,
    /// Whether it has ended.
    pub(super) ended: bool,
}

/// Attempts, the next one and the deadline on one line. Its scale is a root, so that the first
/// attempts, which come soon after one another, are told apart.
pub(super) fn axis(axis: &Axis) -> String {
    let span = axis.end.since(axis.start).as_secs_f64().max(1.0);
    let place = |at: UnixTime| {
        let part = (at.since(axis.start).as_secs_f64() / span).clamp(0.0, 1.0);
        20.0 + part.sqrt() * (WIDTH - 40.0)
    };
    let label = format!("{} attempts so far", axis.attempts.len());
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
    if let Some(since) = axis.paused_since {
        let (from, to) = (place(since), place(axis.now));
        draw(&mut svg, format_args!("<path class=\"paused\" d=\"M{from:.1} 20H{to:.1}\"/>"));
    }
    for hours in [0.25, 1.0, 4.0, 12.0, 24.0, 48.0] {
        if hours * 3_600.0 > span * 1.001 {
            break;
        }
        let x = 20.0 + (hours * 3_600.0 / span).sqrt() * (WIDTH - 40.0);
        let text = if hours < 1.0 { "15 min".to_owned() } else { format!("{hours} h") };
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
        draw(&mut svg, format_args!("<circle class=\"next\" cx=\"{x:.1}\" cy=\"20\" r=\"6\"/>"));
    }
    if !axis.ended {
        let x = WIDTH - 20.0;
        draw(&mut svg, format_args!("<path class=\"deadline\" d=\"M{x:.1} 8V32\"/>"));
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_a_scale_is_no_less_than_what_is_shown() {
        for value in [0.0, 1.0, 2.0, 3.0, 7.0, 10.0, 11.0, 99.0, 100.0, 12_345.0] {
            let top = round_above(value);
            assert!(top >= value && top <= (value * 2.0).max(2.0), "{value}: {top}");
        }
    }
}
