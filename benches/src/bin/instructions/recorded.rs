//! The recorded figures, and what a new count means against them. (core)
//!
//! Invariants: a count is within the bounds of [`verdict`] or it is reported; what was parsed is
//! printed again as it was; no record takes a figure beyond what it may grow by since a release.
//!
//! Not here: counting (`counts`), files (`check`).

use std::fmt;

/// How much a figure may differ from the recorded one, in percent: ten times what two counts of one
/// program differ by.
const CHANGE_MAX: u64 = 3;
/// How much a figure may grow from one release to the next, in percent, in however many steps.
const RELEASE_MAX: u64 = 10;
/// A count that differs by less than this, in percent, leaves the record as it is.
const STEP_MIN: u64 = 1;

const HEAD: &str = "\
# Recorded instructions

User instructions of the programs that `./test` builds, which are not optimised like a release: only
their changes mean something. `instructions --record WHY` writes this file, and
[the README](README.md#what-may-not-grow) explains it.

";
const COUNTED_WITH: &str = "Counted with: ";
const RELEASED: &str = "Last release: ";
const TABLE: &str = "| one | recorded | at the last release | why it is what it is |\n\
    |---|--:|--:|---|\n";

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// A proxied request with two limits.
    Request,
    /// The same with a line in the access log.
    LoggedRequest,
    /// A request that a limit refuses.
    Refusal,
    /// Two windows of the in-memory store, all or nothing.
    Decision,
    /// An event, from the post to the response.
    Event,
    /// An event's delivery, from the post to the record of its attempt.
    Delivery,
}

impl Figure {
    /// All of them, in the order of the file.
    pub(crate) const ALL: [Self; 6] = [
        Self::Request,
        Self::LoggedRequest,
        Self::Refusal,
        Self::Decision,
        Self::Event,
        Self::Delivery,
    ];

    /// Its name in the file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Request => "request, two limits",
            Self::LoggedRequest => "request, access log on",
            Self::Refusal => "refusal",
            Self::Decision => "decision, two windows",
            Self::Event => "event",
            Self::Delivery => "delivery",
        }
    }
}

/// A count against the recorded figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Within [`CHANGE_MAX`].
    Kept,
    /// Beyond [`CHANGE_MAX`]; it may be recorded.
    Grown,
    /// Beyond [`RELEASE_MAX`]; it may not be recorded.
    GrownSinceRelease,
    /// Less by more than [`CHANGE_MAX`]: until it is recorded, as much may come back unnoticed.
    Fallen,
}

/// Compares a count with the recorded one and with that of the last release.
pub(crate) fn verdict(counted: u64, recorded: u64, released: u64) -> Verdict {
    if counted * 100 > released * (100 + RELEASE_MAX) {
        Verdict::GrownSinceRelease
    } else if counted * 100 > recorded * (100 + CHANGE_MAX) {
        Verdict::Grown
    } else if counted * 100 < recorded * (100 - CHANGE_MAX) {
        Verdict::Fallen
    } else {
        Verdict::Kept
    }
}

/// A row of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) figure: Figure,
    pub(crate) recorded: u64,
    pub(crate) released: u64,
    /// The reason that was given with the record.
    pub(crate) why: String,
}

impl Row {
    /// What `counted` means against this row.
    pub(crate) fn verdict(&self, counted: u64) -> Verdict {
        verdict(counted, self.recorded, self.released)
    }

    /// What is wrong with `counted`, and what to do; `None` if nothing is.
    pub(crate) fn complaint(&self, counted: u64) -> Option<String> {
        let name = self.figure.name();
        let than = |earlier: u64, which: &str| {
            let change = change(counted, earlier);
            format!("{name}: {counted} instructions are {change} of {which}, {earlier}")
        };
        let record = "run `cargo build --workspace && target/debug/instructions --record 'WHY'` \
            and commit benches/recorded.md; the commit says why";
        match self.verdict(counted) {
            Verdict::Kept => None,
            Verdict::Grown => Some(format!(
                "{}; {CHANGE_MAX} % are allowed. Make it cheaper; or, if worth it, {record}.",
                than(self.recorded, "the recorded")
            )),
            Verdict::GrownSinceRelease => Some(format!(
                "{}; {RELEASE_MAX} % are allowed from one release to the next. Make it cheaper.",
                than(self.released, "the last release's")
            )),
            Verdict::Fallen => Some(format!(
                "{}. It is cheaper than recorded; so that it stays so, {record}.",
                than(self.recorded, "the recorded")
            )),
        }
    }
}

/// The difference to an earlier figure: `+4.1 %`.
pub(crate) fn change(counted: u64, earlier: u64) -> String {
    let share = counted as f64 / earlier.max(1) as f64;
    format!("{:+.1} %", (share - 1.0) * 100.0)
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// What counts depend on apart from the repository: the kind of processor, the C compiler and
    /// library, valgrind.
    pub(crate) tools: String,
    /// The version of the last release, or that there was none.
    release: String,
    /// One for each figure, in their order.
    pub(crate) rows: Vec<Row>,
}

impl Recorded {
    /// The first record.
    pub(crate) fn first(tools: &str, counts: &[u64], why: &str) -> Self {
        let rows = Figure::ALL.iter().zip(counts).map(|(figure, counted)| Row {
            figure: *figure,
            recorded: *counted,
            released: *counted,
            why: why.to_owned(),
        });
        let release = "none; the first figures stand for its".to_owned();
        Self { tools: tools.to_owned(), release, rows: rows.collect() }
    }

    /// Reads the file's text. An error names the line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let after = |label: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(label));
            found.map(str::to_owned).ok_or(format!("no line begins with `{label}`"))
        };
        let lines = text.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
        let rows: Vec<Row> = lines.map(parse_row).collect::<Result<_, _>>()?;
        if !rows.iter().map(|row| row.figure).eq(Figure::ALL) {
            let names = Figure::ALL.map(Figure::name).join("; ");
            return Err(format!("its rows should be: {names}"));
        }
        Ok(Self { tools: after(COUNTED_WITH)?, release: after(RELEASED)?, rows })
    }

    /// Records new counts, one for each row, where they differ from the recorded ones.
    ///
    /// With other tools every row is new, and what it had grown by since the release it keeps.
    /// An error names the figures that have grown too much.
    pub(crate) fn update(&self, tools: &str, counts: &[u64], why: &str) -> Result<Self, String> {
        let mut new = Self { tools: tools.to_owned(), ..self.clone() };
        let mut refused = Vec::new();
        for (row, counted) in new.rows.iter_mut().zip(counts.iter().copied()) {
            if tools != self.tools {
                row.released = scaled(row.released, counted, row.recorded);
                row.recorded = counted;
            } else if row.verdict(counted) == Verdict::GrownSinceRelease {
                refused.extend(row.complaint(counted));
            } else if counted.abs_diff(row.recorded) * 100 >= row.recorded * STEP_MIN {
                row.recorded = counted;
                why.clone_into(&mut row.why);
            }
        }
        if refused.is_empty() { Ok(new) } else { Err(refused.join("\n")) }
    }

    /// Makes the recorded figures those of the release `version`.
    pub(crate) fn release(&self, version: &str) -> Self {
        let mut new = Self { release: version.to_owned(), ..self.clone() };
        new.rows.iter_mut().for_each(|row| row.released = row.recorded);
        new
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tools, release, rows } = self;
        write!(out, "{HEAD}{COUNTED_WITH}{tools}\n\n{RELEASED}{release}\n\n{TABLE}")?;
        for Row { figure, recorded, released, why } in rows {
            writeln!(out, "| {} | {recorded} | {released} | {why} |", figure.name())?;
        }
        Ok(())
    }
}

/// Checks a reason: one line, which fits into a table.
pub(crate) fn parse_why(why: &str) -> Result<&str, &'static str> {
    let why = why.trim();
    if why.is_empty() || why.contains(['|', '\n']) {
        return Err("--record needs the reason, in one line and without |");
    }
    Ok(why)
}

fn parse_row(line: &str) -> Result<Row, String> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, recorded, released, why] = cells[..] else {
        return Err(format!("not a row of four cells: {line}"));
    };
    let number = |text: &str| {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or(format!("not a number of instructions: {text}, in: {line}"))
    };
    let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name);
    Ok(Row {
        figure: figure.ok_or(format!("nothing counts this: {line}"))?,
        recorded: number(recorded)?,
        released: number(released)?,
        why: why.to_owned(),
    })
}

/// `number × counted ÷ recorded`.
fn scaled(number: u64, counted: u64, recorded: u64) -> u64 {
    let product = u128::from(number) * u128::from(counted);
    u64::try_from(product / u128::from(recorded.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = include_str!("../../../recorded.md");

    #[test]
    fn three_percent_more_than_recorded_are_kept_and_not_a_tenth_more() {
        assert_eq!(verdict(103_000, 100_000, 100_000), Verdict::Kept);
        assert_eq!(verdict(103_001, 100_000, 100_000), Verdict::Grown);
        assert_eq!(verdict(103_100, 100_000, 100_000), Verdict::Grown);
    }

    #[test]
    fn a_fall_by_more_than_three_percent_is_recorded_too() {
        assert_eq!(verdict(97_000, 100_000, 100_000), Verdict::Kept);
        assert_eq!(verdict(96_999, 100_000, 100_000), Verdict::Fallen);
    }

    #[test]
    fn small_steps_add_up_to_ten_percent_since_a_release() {
        assert_eq!(verdict(110_000, 108_000, 100_000), Verdict::Kept);
        assert_eq!(verdict(110_001, 108_000, 100_000), Verdict::GrownSinceRelease);
        // Also a step that is too large by itself.
        assert_eq!(verdict(112_000, 100_000, 100_000), Verdict::GrownSinceRelease);
    }

    #[test]
    fn a_complaint_names_the_figure_the_growth_and_the_way_out() {
        let row = row(100_000, 100_000);
        assert_eq!(row.complaint(103_000), None);
        let grown = row.complaint(104_000).unwrap();
        assert!(grown.starts_with(
            "refusal: 104000 instructions are +4.0 % of the recorded, 100000; 3 % are allowed."
        ));
        assert!(grown.contains("--record 'WHY'"));
        let too_much = row.complaint(111_000).unwrap();
        assert!(too_much.contains("+11.0 %") && !too_much.contains("--record"));
        let fallen = row.complaint(90_000).unwrap();
        assert!(fallen.contains("-10.0 %") && fallen.contains("--record 'WHY'"));
    }

    #[test]
    fn the_committed_file_is_read_and_printed_as_it_is() {
        let recorded = Recorded::parse(COMMITTED).unwrap();
        assert_eq!(recorded.to_string(), COMMITTED);
    }

    #[test]
    fn the_committed_figures_have_grown_by_no_more_than_a_release_may() {
        for row in Recorded::parse(COMMITTED).unwrap().rows {
            assert_eq!(row.verdict(row.recorded), Verdict::Kept, "{row:?}");
        }
    }

    #[test]
    fn a_file_with_other_rows_is_refused() {
        let file = recorded([100; 6]).to_string();
        let check = |from: &str, to: &str, wanted: &str| {
            let error = Recorded::parse(&file.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        };
        check("| refusal | 100 | 100 | first |\n", "", "its rows should be");
        check("| refusal |", "| refusals |", "nothing counts this");
        check("| refusal | 100 |", "| refusal | 1,00 |", "not a number");
        check("| refusal | 100 |", "| refusal | 0 |", "not a number");
        check("| refusal | 100 |", "| refusal |", "not a row");
        check(COUNTED_WITH, "", "no line begins");
    }

    #[test]
    fn a_record_changes_what_has_moved_and_keeps_the_reason() {
        let old = recorded([1000; 6]);
        let new = old.update("tools", &[1009, 1010, 991, 990, 1000, 1100], "because").unwrap();
        let figures: Vec<u64> = new.rows.iter().map(|row| row.recorded).collect();
        assert_eq!(figures, [1000, 1010, 1000, 990, 1000, 1100]);
        let reasons: Vec<&str> = new.rows.iter().map(|row| row.why.as_str()).collect();
        assert_eq!(reasons, ["first", "because", "first", "because", "first", "because"]);
        assert!(new.rows.iter().all(|row| row.released == 1000));
    }

    #[test]
    fn a_record_refuses_what_a_release_may_not_bring() {
        let refused = recorded([1000; 6]).update("tools", &[1101; 6], "because").unwrap_err();
        assert_eq!(refused.lines().count(), 6);
        let released = recorded([1000; 6]).update("tools", &[1100; 6], "because").unwrap();
        assert!(released.update("tools", &[1101; 6], "again").is_err());
        assert!(released.release("0.2.0").update("tools", &[1101; 6], "again").is_ok());
    }

    #[test]
    fn with_other_tools_a_figure_keeps_what_it_has_grown_by() {
        let grown = recorded([1000; 6]).update("tools", &[1080; 6], "because").unwrap();
        let moved = grown.update("other tools", &[2160; 6], "a newer compiler").unwrap();
        assert!(moved.rows.iter().all(|row| (row.recorded, row.released) == (2160, 2000)));
        assert!(moved.tools == "other tools" && moved.rows.iter().all(|row| row.why == "because"));
    }

    #[test]
    fn a_record_has_a_reason() {
        assert_eq!(parse_why(" a span per request "), Ok("a span per request"));
        for empty in ["", " ", "a | b", "a\nb"] {
            assert!(parse_why(empty).is_err());
        }
    }

    fn row(recorded: u64, released: u64) -> Row {
        Row { figure: Figure::Refusal, recorded, released, why: String::new() }
    }

    fn recorded(counts: [u64; 6]) -> Recorded {
        Recorded::first("tools", &counts, "first")
    }
}
