//! Everything that documents refer to exists: files, tests, links and anchors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::shipped::schema_entries;
use crate::tidy::{kept, root};

/// The folders that a path in a document may be relative to.
const FROM: [&str; 9] = [
    "",
    "gateway/src",
    "dispatcher/src",
    "common/src",
    "simulation/src",
    "tests",
    "tests/it",
    "benches/src",
    "docs",
];

#[test]
fn every_file_and_test_that_a_document_names_is_there_once() {
    let tests = test_names();
    let mut wrong = Vec::new();
    for document in kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        // A changelog refers to earlier states.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = fs::read_to_string(root().join(&document)).unwrap();
        // In other documents a name of few words may be a setting.
        let words = if document.ends_with("ARCHITECTURE.md") { 4 } else { 6 };
        for name in text.split('`').skip(1).step_by(2) {
            let count = match name.rsplit_once('.') {
                Some((path, "rs")) if path.chars().all(is_of_path) => {
                    let beside = root().join(&document).with_file_name(name);
                    usize::from(beside.is_file() || is_file(name))
                }
                // Of two tests with one name, a reader cannot tell which is meant.
                _ if is_sentence(name, words) && !name.starts_with("weir_") => {
                    tests.get(name).copied().unwrap_or_default()
                }
                _ => 1,
            };
            if count != 1 {
                wrong.push(format!("{}: `{name}` {count} times", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "not there once:\n{}", wrong.join("\n"));
}

/// `./test` skips these, and `./test --all` alone runs them: another name would skip nothing.
#[test]
fn every_test_that_only_a_release_runs_is_there() {
    let script = fs::read_to_string(root().join("test")).unwrap();
    let (_, rest) = script.split_once("\nLONG=(").expect("a list of long tests");
    let (names, _) = rest.split_once(')').unwrap();
    let tests = test_names();
    let gone: Vec<&str> =
        names.split_whitespace().filter(|name| !tests.contains_key(*name)).collect();
    assert!(names.contains("_") && gone.is_empty(), "not there: {gone:?}");
}

/// An operator searches the documents for a line of the log.
#[test]
fn every_error_and_warning_of_the_log_is_explained_in_a_document() {
    let read = |program: &str| {
        fs::read_to_string(root().join(format!("docs/{program}/observability.md"))).unwrap()
    };
    let (gateway, dispatcher) = (read("gateway"), read("dispatcher"));
    let (mut of_gateway, mut of_dispatcher) = (String::new(), String::new());
    let mut wrong = Vec::new();
    for path in kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.to_string_lossy().into_owned();
        let explained: &[&String] = match name.split_once("/src/") {
            Some(("gateway", _)) => &[&gateway],
            Some(("dispatcher", _)) => &[&dispatcher],
            Some(("common", _)) => &[&gateway, &dispatcher],
            _ => continue,
        };
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let text = text.split("\nmod tests {").next().unwrap_or_default();
        let serious = text.split("Level::Error,").skip(1).chain(text.split("Level::Warn,").skip(1));
        for message in serious.filter_map(|rest| rest.trim_start().strip_prefix('"')) {
            let row = format!("\n| `{}` | ", message.split('"').next().unwrap_or_default());
            if !explained.iter().all(|document| document.contains(&row)) {
                wrong.push(format!("{name}: no row{row}"));
            }
        }
        // Only a constant message can be searched for.
        if text.contains("log::error!") || text.contains("log::warn!") {
            wrong.push(format!("{name}: a message without `events::event`"));
        }
        if !name.starts_with("dispatcher/") {
            of_gateway.push_str(text);
        }
        if !name.starts_with("gateway/") {
            of_dispatcher.push_str(text);
        }
    }
    let rows = gateway.lines().map(|row| (row, &of_gateway));
    for (row, sources) in rows.chain(dispatcher.lines().map(|row| (row, &of_dispatcher))) {
        let message = row.strip_prefix("| `").and_then(|row| {
            row.split_once("` | error | ").or_else(|| row.split_once("` | warn | "))
        });
        wrong.extend(
            message
                .filter(|(message, _)| !sources.contains(&format!("\"{message}\"")))
                .map(|(message, _)| format!("no line of the log: {message}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Documents name an option by its table and key, a table below a chosen name without that name.
#[test]
fn every_option_that_a_document_names_exists() {
    let mut wrong = Vec::new();
    let is_document = |path: &Path| path.extension().is_some_and(|e| e == "md");
    for document in kept().into_iter().filter(|path| is_document(path)) {
        // Decisions name options that were rejected, a changelog those of earlier versions.
        if document.starts_with("docs/decisions") || document.ends_with("CHANGELOG.md") {
            continue;
        }
        let files: &[&str] = match document.parent().and_then(Path::to_str) {
            Some("docs/gateway") => &["gateway", "directory"],
            Some("docs/dispatcher") => &["dispatcher", "events", "tokens", "directory"],
            _ => &["gateway", "dispatcher", "events", "tokens", "directory"],
        };
        let paths: Vec<Vec<String>> =
            files.iter().flat_map(|name| schema_entries(name)).map(|entry| entry.path).collect();
        let text = fs::read_to_string(root().join(&document)).unwrap();
        let names = text.split('`').skip(1).step_by(2);
        let missing = names.filter(|name| !is_known_or_no_option(name, &paths));
        wrong.extend(missing.map(|name| format!("{}: `{name}`", document.display())));
    }
    assert!(wrong.is_empty(), "no such option:\n{}", wrong.join("\n"));
}

/// Whether a name is an option or a table at one of the paths, or cannot be one: it does not begin
/// with a table.
fn is_known_or_no_option(name: &str, paths: &[Vec<String>]) -> bool {
    let name = name.split(" = ").next().unwrap_or_default().trim_matches(['[', ']']);
    let is_of_option = |one: char| one.is_ascii_alphanumeric() || "_.".contains(one);
    let is_file = [".rs", ".toml", ".log"].iter().any(|ending| name.ends_with(ending));
    let is_file = is_file || name.starts_with("secrets.key");
    if is_file || !name.chars().all(is_of_option) {
        return true;
    }
    let keys: Vec<&str> = name.split('.').collect();
    let is_same = |(own, key): (&String, &&str)| own == "NAME" || own == key;
    let ends_so = |path: &Vec<String>| {
        let rest = path.len().checked_sub(keys.len()).map(|from| &path[from..]);
        rest.is_some_and(|rest| rest[0] == keys[0] && rest.iter().zip(&keys).all(is_same))
    };
    let begins = |path: &Vec<String>| path.iter().rev().skip(1).any(|table| table == keys[0]);
    keys.len() < 2 || !paths.iter().any(begins) || paths.iter().any(ends_so)
}

#[test]
fn options_are_found_in_documents_as_they_are_written() {
    let path = |text: &str| text.split('.').map(str::to_owned).collect();
    let paths: Vec<Vec<String>> =
        ["health.warn_for", "limits.NAME.key", "upstreams.NAME.ejection.pause"].map(path).into();
    for known in ["health.warn_for", "[limits.refused.key]", "ejection.pause", "webhook.ping"] {
        assert!(is_known_or_no_option(known, &paths), "{known}");
    }
    for unknown in ["health.warn_after", "limits.refused.keys", "ejection.pauses = 5"] {
        assert!(!is_known_or_no_option(unknown, &paths), "{unknown}");
    }
}

/// Code, scripts and settings name documents by their path from the root.
#[test]
fn every_document_that_any_file_names_is_there() {
    let mut wrong = Vec::new();
    for path in kept() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (at, _) in text.match_indices("docs/") {
            let inside = text[..at].ends_with(|before: char| is_of_path(before) || before == '.');
            let name: String =
                text[at..].chars().take_while(|one| is_of_path(*one) || *one == '.').collect();
            let name = name.trim_end_matches('.');
            if !inside && name.ends_with(".md") && !root().join(name).is_file() {
                wrong.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "not there:\n{}", wrong.join("\n"));
}

#[test]
fn every_link_in_a_document_leads_somewhere() {
    let mut wrong = Vec::new();
    for document in kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let text = fs::read_to_string(root().join(&document)).unwrap();
        for link in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = root().join(document.parent().unwrap_or(Path::new("")));
            let target = if path.is_empty() { root().join(&document) } else { folder.join(path) };
            let leads = target.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&target)
                        .is_ok_and(|text| anchors(&text).contains(anchor)));
            if !leads {
                wrong.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn links_and_anchors_are_found_as_a_page_shows_them() {
    let text = "# A `b`, c: †\n[x](y.md#z) `[no](code)` [u](https://u) [v\nw](#v)\n\
        ```sh\n# no\n[no](block)\n```\n## d-e_f\n## d-e_f\n";
    assert_eq!(links(text), ["y.md#z", "#v"]);
    let expected = ["a-b-c-", "d-e_f", "d-e_f-1"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}

/// A comment states a rule itself, instead of citing a document that readers do not have.
#[test]
fn no_file_cites_a_document_that_is_not_here() {
    let papers =
        [("DES", "IGN"), ("HOU", "SE.md"), ("STY", "LE.md")].map(|(a, b)| format!("{a}{b}"));
    let mut wrong = Vec::new();
    for path in kept() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        let cites = |paper: &&String| text.contains(paper.as_str());
        wrong.extend(papers.iter().find(cites).map(|paper| format!("{}: {paper}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The targets of a document's links, except those to other sites.
fn links(text: &str) -> Vec<String> {
    let prose = without_blocks(text);
    // Text between backquotes is code.
    let prose: String = prose.split('`').step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The anchors of a document's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in without_blocks(text).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |one: &char| one.is_alphanumeric() || " -_".contains(*one);
        let anchor = heading.chars().filter(kept).collect::<String>().replace(' ', "-");
        let mut again = (1..).map(|number| format!("{anchor}-{number}"));
        let mut free = anchor.clone();
        while anchors.contains(&free) {
            free = again.next().unwrap();
        }
        anchors.insert(free);
    }
    anchors
}

/// A document without its blocks of code.
fn without_blocks(text: &str) -> String {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    prose.flat_map(|line| [line, "\n"]).collect()
}

fn is_of_path(one: char) -> bool {
    one.is_ascii_alphanumeric() || "_-/".contains(one)
}

/// Whether a name can only be a test's: it has at least `words` words.
fn is_sentence(name: &str, words: usize) -> bool {
    let plain = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_';
    name.chars().all(plain) && name.matches('_').count() + 1 >= words
}

fn is_file(path: &str) -> bool {
    FROM.iter().any(|from| root().join(from).join(path).is_file())
}

/// The names of all functions in the repository, tests among them, and how many have each.
fn test_names() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for path in kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        for rest in text.split("fn ").skip(1) {
            let is_of_name = |one: &char| one.is_alphanumeric() || *one == '_';
            *counts.entry(rest.chars().take_while(is_of_name).collect()).or_default() += 1;
        }
    }
    counts
}
