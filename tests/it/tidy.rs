//! Measurable rules of style that no compiler checks, for every file that git tracks or would
//! track.
//!
//! Forbidden words are written here in halves, so that this file passes its own tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 100;

#[test]
fn a_file_opens_with_its_reason() {
    check(|file| {
        let has_head = file.text.starts_with("//! ");
        complain(!has_head, || "does not begin with `//! `".to_owned())
    });
}

#[test]
fn a_file_is_small_enough_to_see() {
    check(|file| {
        // A mere declaration `mod tests;` does not end the measured part.
        let before_tests = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = before_tests.lines().count();
        complain(lines > FILE_LINES_MAX, || format!("has {lines} lines"))
    });
}

#[test]
fn a_function_is_small_enough_to_see() {
    check(|file| {
        let long =
            functions(&code(&file.text)).into_iter().filter(|one| one.lines > FUNCTION_LINES_MAX);
        long.map(|one| format!("{} has {} lines (line {})", one.name, one.lines, one.at)).collect()
    });
}

#[test]
fn a_line_is_short_enough_to_see() {
    check(|file| {
        let columns = |line: &str| line.chars().count();
        let long =
            (1..).zip(file.text.lines()).filter(|(_, line)| columns(line) > LINE_COLUMNS_MAX);
        long.map(|(at, line)| format!("line {at} has {} columns", columns(line))).collect()
    });
}

#[test]
fn names_say_what_a_thing_is() {
    let banned = [("Mana", "ger"), ("Hel", "per"), ("Ut", "il"), ("ut", "il"), ("In", "ner")];
    check(|file| {
        let words = code(&file.text);
        let declared = words.lines().filter(|line| {
            let line =
                line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            ["struct ", "enum ", "trait ", "type ", "mod "]
                .iter()
                .any(|kind| line.starts_with(kind))
        });
        let named = |line: &str| {
            let name = line.split(['<', '(', '{', ';', ':']).next().unwrap_or_default().to_owned();
            let bad = banned.iter().any(|(left, right)| name.contains(&format!("{left}{right}")));
            bad.then(|| format!("declares `{}`", name.trim()))
        };
        declared.filter_map(named).collect()
    });
}

#[test]
fn nothing_is_left_undone_or_skipped() {
    let banned = [("to", "do!("), ("unimple", "mented!("), ("db", "g!("), ("#[ig", "nore")];
    check(|file| {
        let found = banned.map(|(left, right)| format!("{left}{right}"));
        let code = code(&file.text);
        found
            .into_iter()
            .filter(|word| code.contains(word))
            .map(|word| format!("has {word}"))
            .collect()
    });
}

#[test]
fn a_test_waits_for_what_it_needs_to_see() {
    let sleep = format!("{}{}", "thread::sl", "eep");
    check(|file| {
        let sleeps = file.path.starts_with("tests") && code(&file.text).contains(&sleep);
        complain(sleeps, || format!("has {sleep}: wait for something, with a deadline"))
    });
}

#[test]
fn a_module_with_children_is_no_mod_rs() {
    for path in kept() {
        assert!(!path.ends_with("mod.rs"), "{} should be named for its idea", path.display());
    }
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let banned = [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/")].map(|(a, b)| format!("{a}{b}"));
    let mut wrong = Vec::new();
    for path in kept() {
        // Files that are not text are skipped.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (at, line) in (1..).zip(text.lines()) {
            if banned.iter().any(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{at}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn functions_are_found_and_measured() {
    let text = "fn a() {\n  let s = \"}\"; // }\n  let c = '}';\n}\nimpl X {\n\
        fn b<'a>(f: fn()) -> [u8; 2]\n  {\n    r#\"{\"#;\n  }\n  fn c();\n}\n";
    let found: Vec<_> =
        functions(&code(text)).into_iter().map(|one| (one.name, one.at, one.lines)).collect();
    assert_eq!(found, [("a".to_owned(), 1, 4), ("b".to_owned(), 6, 4)]);
}

/// A Rust file that git tracks or would track.
struct File {
    path: PathBuf,
    text: String,
}

/// Collects the faults of every Rust file, and fails if there are any.
#[track_caller]
fn check(faults: impl Fn(&File) -> Vec<String>) {
    let mut wrong = Vec::new();
    for path in kept() {
        // Third-party code is exempt.
        if path.extension().is_none_or(|kind| kind != "rs") || path.starts_with("third_party") {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let file = File { path, text };
        let named = |fault| format!("{} {fault}", file.path.display());
        wrong.extend(faults(&file).into_iter().map(named));
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

fn complain(wrong: bool, fault: impl FnOnce() -> String) -> Vec<String> {
    if wrong { vec![fault()] } else { Vec::new() }
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every file that git tracks, or would track after `git add`.
pub(crate) fn kept() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).unwrap();
    // A file that was deleted and not yet committed is still listed.
    names.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect()
}

/// A function's name, its first line and its number of lines.
struct Function {
    name: String,
    at: usize,
    lines: usize,
}

/// The functions with bodies in code without comments and strings.
fn functions(code: &str) -> Vec<Function> {
    let starts = code.match_indices("fn ").filter(|(at, _)| {
        !code[..*at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    });
    starts.filter_map(|(at, _)| function(code, at)).collect()
}

fn function(code: &str, at: usize) -> Option<Function> {
    let name: String =
        code[at + 3..].chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect();
    let (mut brackets, mut braces) = (0, 0);
    for (offset, one) in code[at..].char_indices() {
        match one {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' if braces == 1 => {
                let lines = code[at..at + offset].matches('\n').count() + 1;
                return Some(Function { name, at: code[..at].matches('\n').count() + 1, lines });
            }
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// The text without comments, string literals and character literals; line numbers are kept.
pub(crate) fn code(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            quoted(rest)
        } else if first == 'r' && !kept.ends_with(|one: char| one.is_alphanumeric() || one == '_') {
            raw(rest)
        } else if first == '\'' {
            character(rest)
        } else {
            0
        };
        if skipped == 0 {
            kept.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            kept.extend(rest[..skipped].chars().filter(|one| *one == '\n'));
            rest = &rest[skipped..];
        }
    }
    kept
}

/// The length of the string literal that `text` begins with.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, one) in text.char_indices().skip(1) {
        match one {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string literal that `text` begins with, and 0 if it begins with none.
fn raw(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|one| *one == '#').count();
    let open = 1 + hashes;
    if !text[open..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[open + 1..].find(&end).map_or(text.len(), |at| open + 1 + at + end.len())
}

/// The length of the character literal that `text` begins with; 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |end| end + 4),
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}
