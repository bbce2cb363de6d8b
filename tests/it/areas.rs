//! The direction of dependencies: areas form layers, no files import in a circle, and the picture
//! in ARCHITECTURE.md equals the code.
//!
//! A crate's `lib.rs` declares its areas lowest first. A file's imports are read from its `use`
//! declarations and from paths that begin with `crate`; tests may import anything.
//!
//! Not here: rules for single files (`tidy`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::tidy::{code, root};

/// The crates whose areas form layers.
const CRATES: [&str; 6] = ["common", "gateway", "dispatcher", "client", "agent", "simulation"];

#[test]
fn areas_import_only_from_those_below_them() {
    for krate in CRATES {
        let layers = layers(krate);
        let place = |module: &str| {
            let area = module.split("::").next().unwrap_or_default();
            let place = layers.iter().position(|layer| layer == area);
            place.unwrap_or_else(|| panic!("{krate}: lib.rs does not declare `{area}`"))
        };
        let upward: Vec<String> = imports(krate)
            .into_iter()
            .filter(|(from, to)| place(from) < place(to))
            .map(|(from, to)| format!("{from} imports {to}"))
            .collect();
        assert!(upward.is_empty(), "{krate}, upward:\n{}", upward.join("\n"));
    }
}

/// Sibling modules, each with its descendants, do not import in a circle. A file and its own
/// children may import each other.
#[test]
fn no_files_import_in_a_circle() {
    for krate in CRATES {
        let mut levels: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
        for (from, to) in imports(krate) {
            let (from, to) = (from.split("::"), to.split("::"));
            let shared = from.clone().zip(to.clone()).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.clone().nth(shared), to.clone().nth(shared)) {
                let parent = from.take(shared).collect::<Vec<_>>().join("::");
                levels.entry(parent).or_default().insert((a.to_owned(), b.to_owned()));
            }
        }
        for (parent, arrows) in levels {
            let left = without_ends(arrows);
            assert!(left.is_empty(), "{krate}, a circle in `{parent}`: {left:?}");
        }
    }
}

#[test]
fn a_circle_is_found_and_what_leads_to_it_is_not() {
    let arrows = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert!(without_ends(arrows(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let left = without_ends(arrows(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]));
    assert_eq!(left, arrows(&[("b", "c"), ("c", "b")]));
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text = "use crate::a::{self, b::{C, d}, e::F};\nuse super::g;\nuse super::super::k;\n\
        fn f() { crate::h::i() }\n\
        #[cfg(test)]\nmod tests {\n    use crate::z;\n}\n";
    let found: Vec<String> = names_in(text, "x::y").into_iter().collect();
    assert_eq!(found, ["a", "a::b::C", "a::b::d", "a::e::F", "h::i", "k", "x::g"]);
}

/// The picture in ARCHITECTURE.md equals the code. If it differs, the message has the right one.
#[test]
fn the_picture_of_the_areas_is_true() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for krate in CRATES {
        let picture = picture(krate);
        assert!(text.contains(&picture), "ARCHITECTURE.md should have:\n{picture}");
    }
}

/// The arrows between areas, in Mermaid's syntax, without those that a longer path implies.
fn picture(krate: &str) -> String {
    let area = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    let arrows: BTreeSet<(String, String)> = imports(krate)
        .into_iter()
        .map(|(from, to)| (area(&from), area(&to)))
        .filter(|(from, to)| from != to)
        .collect();
    let is_implied = |from: &str, to: &str| {
        let mut open: Vec<&str> =
            arrows.iter().filter(|(a, b)| a == from && b != to).map(|(_, b)| &**b).collect();
        let mut seen = BTreeSet::new();
        while let Some(next) = open.pop() {
            if next == to {
                return true;
            }
            if !seen.insert(next) {
                continue;
            }
            open.extend(arrows.iter().filter(|(a, _)| a == next).map(|(_, b)| &**b));
        }
        false
    };
    let mut lines = vec!["```mermaid".to_owned(), "graph TD".to_owned()];
    for (from, to) in arrows.iter().filter(|(from, to)| !is_implied(from, to)) {
        lines.push(format!("    {from} --> {to}"));
    }
    lines.push("```".to_owned());
    lines.join("\n")
}

/// Repeatedly removes arrows into nodes without outgoing arrows and out of nodes without incoming
/// ones: circles and the paths between them remain.
fn without_ends(mut arrows: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    loop {
        let from: BTreeSet<String> = arrows.iter().map(|(from, _)| from.clone()).collect();
        let to: BTreeSet<String> = arrows.iter().map(|(_, to)| to.clone()).collect();
        let before = arrows.len();
        arrows.retain(|(a, b)| to.contains(a) && from.contains(b));
        if arrows.len() == before {
            return arrows;
        }
    }
}

/// The areas of a crate, lowest first.
fn layers(krate: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(krate).join("src/lib.rs")).unwrap();
    let names =
        text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
    names.filter_map(|name| name.strip_suffix(';')).map(str::to_owned).collect()
}

/// The imports between a crate's modules: to import an item of a module is to import the module.
fn imports(krate: &str) -> BTreeSet<(String, String)> {
    let modules = modules(krate);
    let module_of = |path: &str| {
        let mut path = path;
        while !modules.contains_key(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let mut imports = BTreeSet::new();
    for (module, text) in &modules {
        let found = names_in(text, module);
        let to = found.iter().filter_map(|path| module_of(path)).filter(|to| to != module);
        imports.extend(to.map(|to| (module.clone(), to)));
    }
    imports
}

/// The text of every module of a crate except tests, `main` and `lib`, by its path.
pub(crate) fn modules(krate: &str) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    read_modules(&root().join(krate).join("src"), "", &mut modules);
    let of_tests: BTreeSet<String> =
        modules.iter().flat_map(|(name, text)| tests_of(name, text)).collect();
    modules.retain(|name, _| !of_tests.iter().any(|of| name == of || is_below(name, of)));
    modules
}

fn read_modules(folder: &Path, parent: &str, to: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = if parent.is_empty() { name.clone() } else { format!("{parent}::{name}") };
        if name == "tests" || (parent.is_empty() && ["lib", "main"].contains(&&*name)) {
            continue;
        }
        if path.is_dir() {
            read_modules(&path, &module, to);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            to.insert(module, fs::read_to_string(&path).unwrap());
        }
    }
}

fn is_below(module: &str, parent: &str) -> bool {
    module.strip_prefix(parent).is_some_and(|rest| rest.starts_with("::"))
}

/// The modules that a module declares for its tests alone.
fn tests_of(module: &str, text: &str) -> Vec<String> {
    let declared = text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| rest.lines().next());
    let names = declared.filter_map(|line| line.rsplit_once("mod ")?.1.strip_suffix(';'));
    names.map(|name| format!("{module}::{name}")).collect()
}

/// The paths within its crate that a module's text names, without its tests.
pub(crate) fn names_in(text: &str, module: &str) -> BTreeSet<String> {
    let text = code(shipped(text));
    let mut found = BTreeSet::new();
    for (keyword, at) in ["crate::", "super::", "self::"]
        .into_iter()
        .flat_map(|keyword| text.match_indices(keyword).map(move |(at, _)| (keyword, at)))
    {
        let inside = text[..at].ends_with(|before: char| before.is_alphanumeric() || before == ':');
        if inside {
            continue;
        }
        let (mut tree, mut parent) = (&text[at + keyword.len()..], module);
        let mut above = usize::from(keyword == "super::");
        while let Some(rest) = tree.strip_prefix("super::") {
            (tree, above) = (rest, above + 1);
        }
        for _ in 0..above {
            parent = parent.rsplit_once("::").map_or("", |(above, _)| above);
        }
        let parents = match (keyword, parent) {
            ("crate::", _) | (_, "") => String::new(),
            _ => format!("{parent}::"),
        };
        expand(&parents, tree, &mut found);
    }
    found
}

/// A file without its tests.
pub(crate) fn shipped(text: &str) -> &str {
    let ends = ["mod tests", "pub(crate) mod tests"];
    let end = ends.iter().filter_map(|end| text.find(&format!("#[cfg(test)]\n{end}"))).min();
    &text[..end.unwrap_or(text.len())]
}

/// Adds the paths of a `use` tree, and returns the text after it.
fn expand<'t>(before: &str, tree: &'t str, to: &mut BTreeSet<String>) -> &'t str {
    let end = tree.find(|one: char| !(one.is_alphanumeric() || one == '_' || one == ':'));
    let (own, mut rest) = tree.split_at(end.unwrap_or(tree.len()));
    let path = format!("{before}{own}");
    if !rest.starts_with('{') {
        to.insert(path.trim_end_matches("::self").trim_end_matches("::").to_owned());
        return rest;
    }
    while let Some(next) = rest.strip_prefix(['{', ',']) {
        let next = next.trim_start();
        // A trailing comma is followed by the closing brace.
        rest = if next.starts_with('}') { next } else { expand(&path, next, to) };
        rest = rest.trim_start();
        if let Some((_, after)) =
            rest.strip_prefix("as ").and_then(|alias| alias.split_once([',', '}']))
        {
            rest = &rest[rest.len() - after.len() - 1..];
        }
    }
    rest.strip_prefix('}').unwrap_or(rest)
}
