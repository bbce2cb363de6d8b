//! Every command in README.md and docs/ runs, and prints the documented output.
//!
//! A block of `sh` has commands; a block of `console` has lines `$ …`, each followed by its output.
//! Each document is followed from top to bottom on its own [`Machine`]. All commands are run except
//! those of [`NOT_HERE`].
//!
//! Not here: the recipe of `deploy/systemd` (`shipped/services`).

mod machine;
mod printed;

use std::fs;
use std::path::Path;

use crate::tidy::{kept, root};
use machine::Machine;

/// The beginnings of commands that are not run here, and why.
const NOT_HERE: [(&str, &str); 9] = [
    ("cargo build ", "the programs are built before any test"),
    ("scripts/release", "builds for twenty minutes; `training` runs its training in small"),
    ("cargo test ", "a test does not start tests; ./test runs these"),
    ("cargo run -p weir-simulation", "a step of its own in ./test"),
    ("WEIR_", "simulations of chosen seeds and lengths; ./test runs one"),
    ("target/release/survive ", "takes an hour; `dispatching/faults` runs it for seconds"),
    ("install weir-gateway ", "`operating/upgrading` does this and more, under load"),
    ("kill -USR2 ", "`operating/upgrading` does this and more, under load"),
    ("python3 docs/clients/", "waits for a minute; `clients` runs it on a limit of two seconds"),
];

/// The first command of a set-up; a document without it assumes that it was run.
const SET_UP: &str = "cp -r config my-config";

/// A step that a reader of a document carries out.
#[derive(Debug, PartialEq)]
enum Step {
    /// A command, and its output if the document shows it.
    Run(String, Option<String>),
    /// A file, and lines to change in it.
    Change(String, String),
}

#[test]
fn every_command_in_the_documents_runs() {
    let mut run = 0;
    for document in documents() {
        let text = fs::read_to_string(root().join(&document)).unwrap();
        let steps: Vec<Step> = steps(&text).into_iter().filter(is_run_here).collect();
        if steps.is_empty() {
            continue;
        }
        eprintln!("--- {document}");
        let mut machine = Machine::new();
        if !text.contains(SET_UP) {
            machine.run(SET_UP, None);
        }
        for step in &steps {
            match step {
                Step::Run(command, printed) => machine.run(command, printed.as_deref()),
                Step::Change(file, lines) => machine.change(file, lines),
            }
            run += 1;
        }
        machine.end();
    }
    assert!(run > 30, "the documents have {run} commands");
}

/// Every entry of `NOT_HERE` matches a command of some document.
#[test]
fn what_is_not_run_is_there() {
    let texts = documents().into_iter().map(|path| fs::read_to_string(root().join(path)).unwrap());
    let steps: Vec<Step> = texts.flat_map(|text| steps(&text)).collect();
    for (start, why) in NOT_HERE {
        let is_there = steps.iter().any(|step| match step {
            Step::Run(command, _) => command.starts_with(start),
            Step::Change(..) => false,
        });
        assert!(is_there, "no command begins with `{start}` ({why})");
    }
}

fn is_run_here(step: &Step) -> bool {
    match step {
        Step::Run(command, _) => !NOT_HERE.iter().any(|(start, _)| command.starts_with(start)),
        Step::Change(..) => true,
    }
}

/// README.md and all documents below docs/.
fn documents() -> Vec<String> {
    let is_one = |path: &Path| {
        path == Path::new("README.md")
            || (path.starts_with("docs") && path.extension().is_some_and(|kind| kind == "md"))
    };
    let mut all: Vec<String> = kept()
        .into_iter()
        .filter(|path| is_one(path))
        .map(|path| path.display().to_string())
        .collect();
    all.sort_unstable();
    all
}

/// The steps of a document, in order.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut file = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("<!-- change: ") {
            file = name.strip_suffix(" -->");
            continue;
        }
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let block: Vec<&str> =
            lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
        match (language, file.take()) {
            ("sh" | "bash" | "shell", _) => steps.extend(commands(&block)),
            ("console", _) => steps.extend(transcript(&block)),
            ("toml", Some(file)) => {
                steps.push(Step::Change(file.to_owned(), block.join("\n")));
            }
            _ => {}
        }
    }
    steps
}

/// The commands of a block without output; a line that ends in `\` continues on the next.
fn commands(block: &[&str]) -> Vec<Step> {
    let whole = block.join("\n").replace("\\\n", " ");
    let lines = whole.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| Step::Run(line.to_owned(), None)).collect()
}

/// The commands of a block with output.
fn transcript(block: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = block.iter();
    let mut open: Option<(String, Vec<&str>)> = None;
    let close = |(command, printed): (String, Vec<&str>)| {
        Step::Run(command, Some(printed.join("\n").trim_end().to_owned()))
    };
    while let Some(line) = lines.next() {
        if let Some(start) = line.strip_prefix("$ ") {
            let mut command = start.to_owned();
            while let Some(before) = command.strip_suffix('\\') {
                command = format!("{before} {}", lines.next().unwrap_or(&"").trim_start());
            }
            steps.extend(open.replace((command, Vec::new())).map(close));
        } else if let Some((_, printed)) = &mut open {
            printed.push(line);
        } else {
            panic!("a block of `console` begins with `$ `, not with {line:?}");
        }
    }
    steps.extend(open.map(close));
    steps
}

#[test]
fn steps_are_found_in_every_kind_of_block() {
    let text = "```sh\na \\\n    --b\n\nc\n```\n\n```console\n$ d \\\n    e\nf\n\ng\n$ h\n```\n\
        ```toml\nno = 1\n```\n<!-- change: x.toml -->\n```toml\nyes = 1\n```\n";
    let run = |command: &str, printed: Option<&str>| {
        Step::Run(command.to_owned(), printed.map(str::to_owned))
    };
    let found: Vec<Step> = steps(text);
    assert_eq!(
        found,
        [
            run("a      --b", None),
            run("c", None),
            run("d  e", Some("f\n\ng")),
            run("h", Some("")),
            Step::Change("x.toml".into(), "yes = 1".into()),
        ]
    );
}
