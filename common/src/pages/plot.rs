//! Charts over time as SVG: stacked bars, lines, and small bars for lists. (core)
//!
//! Colours and hatches are classes of the style. Everything here is made of numbers and of our own
//! words, so pages write it as it is.
//!
//! # Invariants
//!
//! 1. The axis begins at zero.
//! 2. Where a slot has no value there is a gap: no line leads through it.

use std::fmt::Write;

use crate::pages::show::of_day;
use crate::time::UnixTime;

/// The width of a chart, in units of its own: it scales with the page.
pub const WIDTH: f64 = 640.0;

const HEIGHT: f64 = 168.0;

/// Around the plot: numbers on the left, times below.
const LEFT: f64 = 48.0;
const BELOW: f64 = 22.0;
const ABOVE: f64 = 8.0;

/// Lines of more slots have no dots.
const DOTTED_MAX: usize = 30;

/// A chart: slots of equal width along the time, values upwards.
pub struct Plot<'a> {
    /// What it shows, for those who do not see it.
    pub label: &'a str,
    /// The time that stands below each slot, if any: in UTC; the script writes it in the reader's
    /// zone.
    pub times: &'a [Option<UnixTime>],
    /// How a value is written at the axis.
    pub shown: fn(f64) -> String,
    /// A value with a line of its own, beyond which something is wrong.
    pub threshold: Option<f64>,
}

/// Values of a line, one for each slot, and its class in the style.
pub struct PlotLine {
    /// The class.
    pub class: &'static str,
    /// The values.
    pub values: Vec<Option<f64>>,
}

impl Plot<'_> {
    /// Bars, one for each slot, of parts that stand on each other; `classes` are those of the
    /// parts. A slot of which nothing is known is marked, so that it does not look like zero.
    #[must_use]
    pub fn stacked(&self, classes: &[&str], bars: &[Option<Vec<f64>>]) -> String {
        let sums = bars.iter().flatten().map(|bar| bar.iter().sum());
        let top = round_above(sums.fold(0.0, f64::max));
        let mut svg = self.begin();
        self.scale(&mut svg, top);
        self.write_times(&mut svg);
        let slot = self.slot();
        let mut paths = vec![String::new(); classes.len()];
        let mut unknown = String::new();
        for (at, bar) in bars.iter().enumerate() {
            let (x, width) = (LEFT + slot * at as f64 + 1.0, slot - 2.0);
            let Some(bar) = bar else {
                draw(&mut unknown, format_args!("M{x:.1} {:.1}h{width:.1}", HEIGHT - BELOW - 1.0));
                continue;
            };
            let mut y = HEIGHT - BELOW;
            for (value, path) in bar.iter().zip(&mut paths) {
                let height = visible(value / top * (HEIGHT - BELOW - ABOVE));
                if height > 0.0 {
                    y -= height;
                    draw(path, format_args!("M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z"));
                }
            }
        }
        for (class, path) in classes.iter().zip(paths).filter(|(_, path)| !path.is_empty()) {
            draw(
                &mut svg,
                format_args!(
                    "<path class=\"{class}\" d=\"{path}\"/>\
                     <path fill=\"url(#hatch-{class})\" d=\"{path}\"/>"
                ),
            );
        }
        if !unknown.is_empty() {
            draw(&mut svg, format_args!("<path class=\"unknown\" d=\"{unknown}\"/>"));
        }
        svg.push_str("</svg>");
        svg
    }

    /// Lines, with a gap wherever a slot has no value.
    #[must_use]
    pub fn lines(&self, lines: &[PlotLine]) -> String {
        let all = lines.iter().flat_map(|line| &line.values).chain([&self.threshold]);
        let top = round_above(all.filter_map(|value| *value).fold(0.0, f64::max));
        let height = |value: f64| HEIGHT - BELOW - value / top * (HEIGHT - BELOW - ABOVE);
        let mut svg = self.begin();
        self.scale(&mut svg, top);
        self.write_times(&mut svg);
        if let Some(y) = self.threshold.map(height) {
            draw(
                &mut svg,
                format_args!("<path class=\"threshold\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/>"),
            );
        }
        let slot = self.slot();
        for PlotLine { class, values } in lines {
            let mut path = String::new();
            let mut joins = false;
            for (at, value) in values.iter().enumerate() {
                let Some(value) = value else {
                    joins = false;
                    continue;
                };
                let x = LEFT + slot * (at as f64 + 0.5);
                let y = height(*value);
                let is_alone = !joins && values.get(at + 1).is_none_or(Option::is_none);
                draw(&mut path, format_args!("{}{x:.1} {y:.1}", if joins { "L" } else { "M" }));
                // A single value is no line, and many dots hide one.
                if is_alone || values.len() <= DOTTED_MAX {
                    draw(
                        &mut svg,
                        format_args!(
                            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
                        ),
                    );
                }
                joins = true;
            }
            draw(&mut svg, format_args!("<path class=\"line {class}\" d=\"{path}\"/>"));
        }
        svg.push_str("</svg>");
        svg
    }

    /// The width of a slot.
    fn slot(&self) -> f64 {
        (WIDTH - LEFT) / self.times.len().max(1) as f64
    }

    fn begin(&self) -> String {
        format!(
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.label
        )
    }

    /// Lines and numbers from zero to the top.
    fn scale(&self, svg: &mut String, top: f64) {
        for part in [0.0, 0.5, 1.0] {
            let y = HEIGHT - BELOW - part * (HEIGHT - BELOW - ABOVE);
            let text = (self.shown)(top * part);
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

    fn write_times(&self, svg: &mut String) {
        for (at, time) in self.times.iter().enumerate() {
            let Some(time) = *time else { continue };
            let (x, y) = (LEFT + self.slot() * at as f64, HEIGHT - 6.0);
            let (whole, shown) = (time.rfc3339(), of_day(time));
            draw(
                svg,
                format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" data-time=\"{whole}\">{shown}</text>"
                ),
            );
        }
    }
}

/// Small bars for a list: of each, what succeeded, and what failed on top of it.
#[must_use]
pub fn sparkline(label: &str, bars: &[(u64, u64)]) -> String {
    let most = bars.iter().map(|(ok, bad)| ok + bad).max().unwrap_or(0);
    let width = bars.len() * 5;
    let mut svg = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {width} 24\" role=\"img\" aria-label=\"{label}\">"
    );
    // A path for each kind: a list has many of these.
    let mut paths = [("none", String::new()), ("ok", String::new()), ("bad", String::new())];
    let [(_, none), (_, all_ok), (_, all_bad)] = &mut paths;
    for (at, (ok, bad)) in bars.iter().enumerate() {
        let x = at * 5;
        if ok + bad == 0 {
            draw(none, format_args!("M{x} 23h4v1h-4z"));
            continue;
        }
        let height = |count: &u64| visible(*count as f64 * 22.0 / most as f64);
        let mut y = 24.0;
        for (height, path) in [(height(ok), &mut *all_ok), (height(bad), &mut *all_bad)] {
            if height > 0.0 {
                y -= height;
                draw(path, format_args!("M{x} {y:.1}h4v{height:.1}h-4z"));
            }
        }
    }
    for (class, path) in paths.iter().filter(|(_, path)| !path.is_empty()) {
        draw(&mut svg, format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
    }
    svg.push_str("</svg>");
    svg
}

/// What stands for a colour in a legend: with its hatch, or as a line.
#[must_use]
pub fn swatch(class: &str) -> String {
    if class.starts_with('p') {
        return format!("<span class=\"key {class}\" aria-hidden=\"true\"></span>");
    }
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">\
         <path class=\"{class}\" d=\"M0 0h12v12H0z\"/>\
         <path fill=\"url(#hatch-{class})\" d=\"M0 0h12v12H0z\"/></svg>"
    )
}

/// What is there is seen, however little it is.
fn visible(height: f64) -> f64 {
    if height > 0.0 { height.max(1.0) } else { 0.0 }
}

/// Adds a piece to a picture.
pub fn draw(svg: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = svg.write_fmt(piece);
}

/// What tells classes apart without colours; the first has no hatch. A page with bars has it once.
pub const HATCHES: &str = "<svg class=\"hidden\" aria-hidden=\"true\"><defs>\
    <pattern id=\"hatch-ok\" width=\"8\" height=\"8\" \
     patternUnits=\"userSpaceOnUse\"></pattern>\
    <pattern id=\"hatch-warn\" width=\"6\" height=\"6\" \
     patternUnits=\"userSpaceOnUse\">\
     <path class=\"hatch\" d=\"M0 6 6 0\"/></pattern>\
    <pattern id=\"hatch-bad\" width=\"6\" height=\"6\" \
     patternUnits=\"userSpaceOnUse\">\
     <path class=\"hatch\" d=\"M0 0 6 6\"/></pattern>\
    <pattern id=\"hatch-late\" width=\"5\" height=\"5\" \
     patternUnits=\"userSpaceOnUse\">\
     <path class=\"hatch\" d=\"M0 2.5H5\"/></pattern>\
    <pattern id=\"hatch-gone\" width=\"5\" height=\"5\" \
     patternUnits=\"userSpaceOnUse\">\
     <path class=\"hatch\" d=\"M2.5 0V5\"/></pattern>\
    <pattern id=\"hatch-blocked\" width=\"6\" height=\"6\" \
     patternUnits=\"userSpaceOnUse\">\
     <path class=\"hatch\" d=\"M0 0 6 6M0 6 6 0\"/></pattern>\
    </defs></svg>";

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

    fn plot(times: &[Option<UnixTime>]) -> Plot<'_> {
        Plot { label: "x", times, shown: |value| format!("{value:.0}"), threshold: None }
    }

    #[test]
    fn a_line_has_a_gap_where_there_is_no_value() {
        let values = vec![Some(1.0), Some(2.0), None, Some(1.0)];
        let hour = Some(UnixTime(7 * 3_600_000_000));
        let svg = plot(&[hour, None, None, None]).lines(&[PlotLine { class: "p50", values }]);
        let time = " data-time=\"1970-01-01T07:00:00.000Z\">07:00</text>";
        assert_eq!((svg.contains(time), svg.matches("data-time").count()), (true, 1), "{svg}");
        let path = svg.split(" d=\"").last().unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn bars_stand_on_zero_and_what_is_little_is_seen() {
        let bars = [Some(vec![1000.0, 0.1]), Some(vec![0.0, 0.0]), None];
        let svg = plot(&[None; 3]).stacked(&["ok", "bad"], &bars);
        assert!(svg.contains("<path class=\"ok\" d=\"M49.0 77.0h195.3v69.0h-195.3z\"/>"), "{svg}");
        assert!(svg.contains("<path class=\"bad\" d=\"M49.0 76.0h195.3v1.0h-195.3z\"/>"), "{svg}");
        assert!(svg.contains("<path class=\"unknown\" d=\"M443.7 145.0h195.3\"/>"), "{svg}");
        assert!(svg.contains(">0</text>"), "{svg}");
    }

    #[test]
    fn small_bars_of_a_day_are_three_paths() {
        let svg = sparkline("x", &[(0, 0), (1, 1), (2, 0)]);
        for path in [
            "<path class=\"none\" d=\"M0 23h4v1h-4z\"/>",
            "<path class=\"ok\" d=\"M5 13.0h4v11.0h-4zM10 2.0h4v22.0h-4z\"/>",
            "<path class=\"bad\" d=\"M5 2.0h4v11.0h-4z\"/>",
        ] {
            assert!(svg.contains(path), "{path}: {svg}");
        }
    }

    #[test]
    fn a_threshold_is_on_the_scale_whatever_the_values_are() {
        let values = vec![Some(1.0); 2];
        let lines = [PlotLine { class: "p50", values }];
        let svg = Plot { threshold: Some(60.0), ..plot(&[None; 2]) }.lines(&lines);
        assert!(svg.contains("<path class=\"threshold\" d=\"M48 8.0H640\"/>"), "{svg}");
    }
}
