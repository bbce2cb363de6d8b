//! What documents name is there: files by their path, tests by their name.

use std::collections::BTreeSet;
use std::fs;

use crate::tidy::{kept, root};

/// Where a document may begin a path, beside the root: the crates' sources, and the tests.
const FROM: [&str; 8] =
    ["", "gateway/src", "dispatcher/src", "common/src", "tests", "tests/it", "benches/src", "docs"];

#[test]
fn every_file_and_test_that_a_document_names_is_there() {
    let tests = test_names();
    let mut wrong = Vec::new();
    for document in kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        // What was is told there.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = fs::read_to_string(root().join(&document)).unwrap();
        // Elsewhere names of so few words may be settings.
        let words = if document.ends_with("ARCHITECTURE.md") { 4 } else { 6 };
        for name in text.split('`').skip(1).step_by(2) {
            let gone = match name.rsplit_once('.') {
                Some((path, "rs")) if path.chars().all(is_of_path) => {
                    let beside = root().join(&document).with_file_name(name);
                    !beside.is_file() && !is_file(name)
                }
                _ => {
                    is_sentence(name, words) && !tests.contains(name) && !name.starts_with("weir_")
                }
            };
            if gone {
                wrong.push(format!("{}: `{name}`", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "not there:\n{}", wrong.join("\n"));
}

/// A rule stands where it holds, and not in a paper that readers do not have.
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

fn is_of_path(one: char) -> bool {
    one.is_ascii_alphanumeric() || "_-/".contains(one)
}

/// Whether a name can only be a test's: it has so many words.
fn is_sentence(name: &str, words: usize) -> bool {
    let plain = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_';
    name.chars().all(plain) && name.matches('_').count() + 1 >= words
}

fn is_file(path: &str) -> bool {
    FROM.iter().any(|from| root().join(from).join(path).is_file())
}

/// The names of all functions in the repository, tests among them.
fn test_names() -> BTreeSet<String> {
    let files = kept().into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let texts = files.map(|path| fs::read_to_string(root().join(path)).unwrap());
    texts
        .flat_map(|text| {
            let names = text.split("fn ").skip(1).map(|rest| {
                rest.chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect()
            });
            names.collect::<Vec<String>>()
        })
        .collect()
}
