//! The operators' pages as plain values: numbers, charts, tables, forms; both programs fill them,
//! and one template writes them.
//!
//! Invariant: every text is escaped, wherever it comes from; only charts, which are made of numbers
//! and of our own words, are written as they are.
//!
//! Not here: which pages there are and who may see them (`admin`).

use std::time::Duration;

use askama::Template;

use crate::http_server::reply::Reply;
use crate::pages::assets::{ICON, SCRIPT, STYLE};
use crate::pages::history::{History, HistorySlot};
use crate::pages::plot::{HATCHES, Plot, PlotLine, swatch};
use crate::pages::reply::html;
use crate::pages::show::{Mark, of_day, span, utc};
use crate::time::{Moment, UnixTime};

/// A page.
#[derive(Default)]
pub struct Screen {
    /// Its heading.
    pub heading: String,
    /// What needs attention, or became of a form.
    pub notices: Vec<Notice>,
    /// A few numbers above all else.
    pub figures: Vec<Figure>,
    /// Charts, all of the same hour.
    pub charts: Vec<Chart>,
    /// Tables and forms.
    pub sections: Vec<Section>,
    /// Whether the script loads the content again while it is looked at.
    pub refreshes: bool,
}

/// A sentence with a state.
pub struct Notice {
    /// The state.
    pub mark: Mark,
    /// The sentence.
    pub text: String,
}

/// A number with its name.
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// The number, with its unit.
    pub value: String,
    /// Its state, if it has one.
    pub mark: Option<Mark>,
}

/// A chart, and its numbers.
pub struct Chart {
    title: &'static str,
    legend: Vec<Series>,
    /// The names of the columns of numbers.
    columns: Vec<&'static str>,
    svg: String,
    rows: Vec<(UnixTime, Vec<String>)>,
}

/// What one colour of a chart means.
#[derive(Clone, Copy)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Its class in the style.
    pub class: &'static str,
}

/// A part of a page.
pub struct Section {
    /// Its heading; empty if the page's is enough.
    pub title: String,
    /// What it is about.
    pub text: String,
    /// Its content.
    pub body: SectionBody,
}

/// The content of a section.
pub enum SectionBody {
    /// A table.
    Grid(Grid),
    /// Names and values.
    Facts(Vec<(String, String)>),
    /// A form.
    Form(InputForm),
}

/// A table.
pub struct Grid {
    /// The names of its columns; the content of the last may be buttons.
    pub columns: Vec<&'static str>,
    /// Its rows.
    pub rows: Vec<Vec<GridCell>>,
    /// What stands there if there is no row.
    pub empty: &'static str,
}

/// A cell.
pub enum GridCell {
    /// A text.
    Text(String),
    /// An identifier.
    Code(String),
    /// A number, aligned with those below it.
    Number(String),
    /// A state.
    Mark(Mark),
    /// A small chart.
    Chart(String),
    /// A time.
    Time(UnixTime),
    /// A link: its path and its text.
    Link(String, String),
    /// A button with what it sends.
    Button(InputForm),
}

/// A form.
pub struct InputForm {
    /// Where it is sent.
    pub action: String,
    /// Whether it only reads: its fields are then a part of the address.
    pub reads: bool,
    /// Its fields.
    pub inputs: Vec<Input>,
    /// What the button says.
    pub button: &'static str,
    /// Where to go instead, if something is asked.
    pub back: Option<String>,
}

/// A field of a form.
pub struct Input {
    /// Its name.
    pub name: &'static str,
    /// What stands above it; empty if it is not shown.
    pub label: &'static str,
    /// What it has already.
    pub value: String,
    /// What it takes.
    pub kind: InputKind,
}

/// What a field takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// It is not shown.
    Hidden,
    /// A line, and an example of one.
    Text(&'static str),
    /// Several lines, and an example.
    Lines(&'static str),
    /// A line that others do not see.
    Secret,
    /// One of these.
    Choice(Vec<String>),
}

impl Grid {
    /// Whether the numbers of a column are aligned: as its first cell is.
    fn is_number(&self, column: usize) -> bool {
        let first = self.rows.first().and_then(|row| row.get(column));
        first.is_some_and(GridCell::is_number)
    }

    fn column(&self, column: usize) -> &'static str {
        self.columns.get(column).copied().unwrap_or_default()
    }
}

impl GridCell {
    fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }
}

impl Input {
    /// A field that is not shown.
    #[must_use]
    pub fn hidden(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, label: "", value: value.into(), kind: InputKind::Hidden }
    }

    /// A line, with an example.
    #[must_use]
    pub fn text(name: &'static str, label: &'static str, example: &'static str) -> Self {
        Self { name, label, value: String::new(), kind: InputKind::Text(example) }
    }

    /// The same field with a value.
    #[must_use]
    pub fn with(self, value: impl Into<String>) -> Self {
        Self { value: value.into(), ..self }
    }
}

impl Screen {
    /// A page with this heading.
    #[must_use]
    pub fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }

    /// A page that says one thing.
    #[must_use]
    pub fn notice(heading: impl Into<String>, mark: Mark, text: impl Into<String>) -> Self {
        Self { notices: vec![Notice { mark, text: text.into() }], ..Self::new(heading) }
    }

    /// A page that asks before `form` changes something.
    #[must_use]
    pub fn question(heading: impl Into<String>, text: impl Into<String>, form: InputForm) -> Self {
        let section =
            Section { title: String::new(), text: text.into(), body: SectionBody::Form(form) };
        Self { sections: vec![section], ..Self::new(heading) }
    }
}

/// The chart of an hour.
pub struct Hour<'h> {
    slots: Vec<(UnixTime, Option<&'h HistorySlot>)>,
}

/// The class of a series that is only a threshold: it has a place in the legend, and no values.
pub const THRESHOLD: &str = "pthreshold";

/// Below every tenth minute stands its time.
const TIMES_EVERY: usize = 10;

impl<'h> Hour<'h> {
    /// The hour up to `now`.
    #[must_use]
    pub fn new(history: &'h History, now: Moment) -> Self {
        Self { slots: history.slots(now) }
    }

    /// Bars of these series, each made by `value`; `None` where nothing is known.
    pub fn stacked(
        &self,
        title: &'static str,
        series: &[Series],
        shown: fn(f64) -> String,
        value: impl Fn(&HistorySlot, &str) -> Option<f64>,
    ) -> Chart {
        let bar = |slot: &HistorySlot| series.iter().map(|own| value(slot, own.name)).collect();
        let bars: Vec<Option<Vec<f64>>> =
            self.slots.iter().map(|(_, slot)| slot.and_then(bar)).collect();
        let classes: Vec<&str> = series.iter().map(|own| own.class).collect();
        let plot = Plot { label: title, times: &self.times(), shown, threshold: None };
        let svg = plot.stacked(&classes, &bars);
        let row = |(start, bar): (UnixTime, &Option<Vec<f64>>)| {
            Some((start, bar.as_ref()?.iter().map(|value| shown(*value)).collect()))
        };
        let rows = self.starts().zip(&bars).filter_map(row).collect();
        let columns = series.iter().map(|own| own.name).collect();
        Chart { title, legend: series.to_vec(), columns, svg, rows }
    }

    /// Lines of these series.
    pub fn lines(
        &self,
        title: &'static str,
        series: &[Series],
        (shown, threshold): (fn(f64) -> String, Option<f64>),
        value: impl Fn(&HistorySlot, &str) -> Option<f64>,
    ) -> Chart {
        let of = |own: &Series| {
            let values = self.slots.iter().map(|(_, slot)| value((*slot)?, own.name));
            PlotLine { class: own.class, values: values.collect() }
        };
        let drawn = series.iter().filter(|own| own.class != THRESHOLD);
        let lines: Vec<PlotLine> = drawn.clone().map(of).collect();
        let plot = Plot { label: title, times: &self.times(), shown, threshold };
        let svg = plot.lines(&lines);
        let row = |(at, start): (usize, UnixTime)| {
            let values: Vec<Option<f64>> =
                lines.iter().map(|line| line.values.get(at).copied().flatten()).collect();
            let text = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), shown);
            let is_known = values.iter().any(Option::is_some);
            is_known.then(|| (start, values.iter().map(text).collect()))
        };
        let rows = self.starts().enumerate().filter_map(row).collect();
        let columns = drawn.map(|own| own.name).collect();
        Chart { title, legend: series.to_vec(), columns, svg, rows }
    }

    fn starts(&self) -> impl Iterator<Item = UnixTime> {
        self.slots.iter().map(|(start, _)| *start)
    }

    fn times(&self) -> Vec<Option<UnixTime>> {
        let all = self.starts().enumerate();
        all.map(|(at, start)| (at % TIMES_EVERY == 0).then_some(start)).collect()
    }
}

/// Who looks at a page.
pub struct Viewer<'v> {
    /// The program.
    pub program: &'static str,
    /// What each form that changes something has.
    pub form_token: &'v str,
    /// Whether there is a session that can be ended.
    pub signed_in: bool,
}

#[derive(Template)]
#[template(path = "screen.html")]
struct ScreenPage<'p> {
    screen: &'p Screen,
    viewer: &'p Viewer<'p>,
}

impl ScreenPage<'_> {
    fn style(&self) -> &'static str {
        &STYLE.path
    }

    fn script(&self) -> &'static str {
        &SCRIPT.path
    }

    fn icon(&self) -> &'static str {
        &ICON.path
    }
}

/// The page as a response.
#[must_use]
pub fn page(status: u16, screen: &Screen, viewer: &Viewer<'_>) -> Reply {
    html(status, &ScreenPage { screen, viewer })
}

/// How long a program runs, as a figure.
#[must_use]
pub fn uptime(version: &str, up: Duration) -> Figure {
    Figure { name: "Version, uptime", value: format!("{version}, {}", span(up)), mark: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::history::Sample;
    use crate::pages::show::mark;
    use crate::time::Tick;

    const HOSTILE: &str = "<img data-hacked src=x onerror=alert(1)>\"'&";

    fn text(screen: &Screen) -> String {
        let viewer = Viewer { program: "weir", form_token: "t0ken", signed_in: true };
        String::from_utf8(page(200, screen, &viewer).body.to_vec()).unwrap()
    }

    #[test]
    fn whatever_a_text_is_it_is_written_as_text() {
        let own = || HOSTILE.to_owned();
        let form = || InputForm {
            action: own(),
            reads: false,
            inputs: vec![
                Input::hidden("a", HOSTILE),
                Input::text("b", "B", "example").with(HOSTILE),
                Input { kind: InputKind::Lines("x"), ..Input::text("c", "C", "").with(HOSTILE) },
                Input { kind: InputKind::Choice(vec![own()]), ..Input::text("d", "D", "") },
            ],
            button: "Go",
            back: Some(own()),
        };
        let cells = vec![
            GridCell::Text(own()),
            GridCell::Code(own()),
            GridCell::Number(own()),
            GridCell::Link(own(), own()),
            GridCell::Button(form()),
        ];
        let grid = Grid { columns: vec!["a"; cells.len()], rows: vec![cells], empty: "" };
        let section = |body| Section { title: own(), text: own(), body };
        let mut screen = Screen::notice(HOSTILE, mark("●", "Fine", "ok"), HOSTILE);
        screen.figures.push(Figure { name: "n", value: own(), mark: None });
        screen.sections = vec![
            section(SectionBody::Grid(grid)),
            section(SectionBody::Facts(vec![(own(), own())])),
            section(SectionBody::Form(form())),
        ];
        let text = text(&screen);
        assert!(!text.contains("<img") && text.matches("&#60;img").count() >= 18, "{text}");
        assert_eq!(text.matches("value=\"t0ken\"").count(), 3, "each form, and the sign-out");
    }

    #[test]
    fn a_form_that_only_reads_puts_no_token_into_the_address() {
        let form = InputForm {
            action: "/x".to_owned(),
            reads: true,
            inputs: vec![],
            button: "Look",
            back: None,
        };
        let text = text(&Screen::question("a", "b", form));
        assert_eq!(text.matches("t0ken").count(), 1, "that of the sign-out alone: {text}");
    }

    #[test]
    fn a_chart_has_its_numbers_and_no_row_of_what_is_not_known() {
        let mut history = History::of_an_hour();
        for (at, count) in [(60, 0), (90, 60), (200, 90)] {
            let mut sample = Sample::default();
            sample.count("a", count);
            history.add(sample, Tick(at * 1_000_000));
        }
        let now = Moment { tick: Tick(200_000_000), unix: UnixTime(3_800_000_000) };
        let series = [Series { name: "a", class: "ok" }];
        let hour = Hour::new(&history, now);
        let shown: fn(f64) -> String = |value| format!("{value:.1}");
        let stacked = hour.stacked("A", &series, shown, HistorySlot::rate);
        let lines = hour.lines("A", &series, (shown, None), HistorySlot::rate);
        for chart in [&stacked, &lines] {
            let rows: Vec<_> = chart.rows.iter().map(|(at, row)| (at.0, row.join(" "))).collect();
            let expected = [(3_660_000_000, "2.0".to_owned()), (3_780_000_000, "0.3".to_owned())];
            assert_eq!(rows, expected);
        }
    }
}
