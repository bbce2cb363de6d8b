//! Rules for all crates: core files, shipped code, names, and retired words.
//!
//! Retired words are written here in halves, so that this file passes its own test.
//!
//! Not here: rules for single files (`tidy`), the direction of dependencies (`areas`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::areas::{modules, names_in, shipped};
use crate::tidy::{code, kept, root};

/// The crates that ship.
const CRATES: [&str; 5] = ["common", "gateway", "dispatcher", "client", "agent"];

/// Areas whose files must all be core.
const CORE_AREAS: [&str; 2] = ["weir_dispatcher::domain", "weir_dispatcher::scheduler"];

/// Code that a core file must not contain: it waits, has effects, or shares state. Of Pingora a
/// core file may use only the types of heads, of the logger only the levels.
const EFFECTS: [&str; 18] = [
    ".await",
    "async fn",
    "async move",
    "tokio",
    "pingora_core",
    "pingora_proxy",
    "log::{",
    "log::log",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::thread",
    "Mutex",
    "RwLock",
    "Atomic",
    "ArcSwap",
    "SystemTime",
    "Clock",
];

/// Core files may use its values, although it also reads the clock.
const TIME: &str = "weir_common::time";

/// Identifiers that were renamed.
const RETIRED: [(&str, &str); 40] = [
    ("Cou", "rier"),
    ("Par", "cel"),
    ("Post", "man"),
    ("Lan", "e"),
    ("Lan", "es"),
    ("Lan", "eId"),
    ("Mis", "take"),
    ("Ho", "oks"),
    ("Ques", "tions"),
    ("For", "ce"),
    ("No", "Way"),
    ("Home", "less"),
    ("Far", "ed"),
    ("To", "ld"),
    ("De", "sk"),
    ("Ta", "lly"),
    ("ByHa", "nd"),
    ("la", "ne"),
    ("la", "nes"),
    ("by_ha", "nd"),
    ("cou", "rier"),
    ("needed", "_by"),
    ("gone_up", "_to"),
    ("told", "_to_stop"),
    ("until", "_told"),
    ("is_", "told"),
    ("take", "_in"),
    ("take", "_up"),
    ("take", "_mails"),
    ("take", "_counters"),
    ("are_", "taken"),
    ("held", "_until"),
    ("held", "_bytes"),
    ("hold", "_up"),
    ("let", "_go"),
    ("ask", "_for"),
    ("asks", "_more"),
    ("last", "_well"),
    ("Ping", "Well"),
    ("hand", "_over"),
];

/// Words that no function name may contain: verbs with too many meanings, and vague subjects.
const VAGUE: [(&str, &str); 23] = [
    ("as", "k"),
    ("as", "ks"),
    ("as", "king"),
    ("te", "ll"),
    ("te", "lls"),
    ("to", "ld"),
    ("he", "ar"),
    ("he", "ars"),
    ("he", "ard"),
    ("sa", "ys"),
    ("sa", "id"),
    ("he", "ld"),
    ("il", "l"),
    ("ca", "me"),
    ("cro", "wd"),
    ("cro", "wded"),
    ("res", "ts"),
    ("res", "ting"),
    ("who", "ever"),
    ("no", "body"),
    ("some", "body"),
    ("mis", "take"),
    ("mis", "takes"),
];

#[test]
fn core_files_wait_for_nothing_and_share_nothing_nor_does_what_they_import() {
    let files = files();
    let mut impure: BTreeMap<&str, String> = BTreeMap::new();
    for (name, file) in files.iter().filter(|(name, _)| *name != TIME) {
        let text = code(&file.text);
        if let Some(effect) = EFFECTS.iter().find(|effect| has_start(&text, effect)) {
            impure.insert(name, format!("has `{effect}`"));
        }
    }
    loop {
        let found = files.iter().filter(|(name, _)| *name != TIME).find_map(|(name, file)| {
            let import = file.imports.iter().find(|import| impure.contains_key(&***import));
            let import = import.filter(|_| !impure.contains_key(&**name))?;
            Some((&**name, format!("imports {import}, which {}", impure[&**import])))
        });
        let Some((name, why)) = found else { break };
        impure.insert(name, why);
    }
    let core = files.iter().filter(|(_, file)| is_core(&file.text));
    let wrong: Vec<String> = core
        .filter_map(|(name, _)| Some(format!("{name} is core and {}", impure.get(&**name)?)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn areas_that_decide_are_core_throughout() {
    let files = files();
    let wrong: Vec<&String> = files
        .iter()
        .filter(|(name, file)| {
            let area = CORE_AREAS.iter().any(|area| {
                *name == area || name.strip_prefix(area).is_some_and(|rest| rest.starts_with("::"))
            });
            area && !is_core(&file.text)
        })
        .map(|(name, _)| name)
        .collect();
    assert!(wrong.is_empty(), "not marked `(core)`: {wrong:?}");
}

/// Only modules of tests may be compiled for tests alone; shipped code has no other test
/// configuration.
#[test]
fn what_ships_knows_nothing_of_tests() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let mut lines = (1..).zip(text.lines()).peekable();
        while let Some((at, line)) = lines.next() {
            let next = lines.peek().map_or("", |(_, line)| line.trim());
            let is_module = next.ends_with("mod tests {") || next.ends_with("mod tests;");
            let attribute = line.trim() == "#[cfg(test)]";
            let other =
                ["cfg!(test)", "cfg(not(test", "cfg(any(test", "cfg(all(test", "cfg_attr(test"]
                    .iter()
                    .any(|one| line.contains(one));
            if (attribute && !is_module) || other {
                wrong.push(format!("{}:{at}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_public_type_has_its_name_for_itself() {
    let mut wrong = Vec::new();
    for krate in CRATES {
        let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for (path, text) in sources().into_iter().filter(|(path, _)| path.starts_with(krate)) {
            for name in public_types(shipped(&text)) {
                places.entry(name).or_default().push(path.clone());
            }
        }
        let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
        wrong.extend(twice.map(|(name, places)| format!("{name}: {places:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_thing_has_one_path() {
    let is_lib = |path: &Path| path.ends_with("src/lib.rs");
    let mut wrong = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_lib(path)) {
        let code = code(shipped(&text));
        let exports = code.lines().filter(|line| {
            line.starts_with("pub use crate::") || line.starts_with("pub(crate) use crate::")
        });
        wrong.extend(exports.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(wrong.is_empty(), "re-exports stand in lib.rs alone:\n{}", wrong.join("\n"));
}

/// Checks for renamed identifiers and retired phrases.
#[test]
fn retired_words_do_not_come_back() {
    let phrases = [
        ("who", "ever"),
        ("no", "body"),
        ("some", "body"),
        ("in fo", "rce"),
        ("black ", "hole"),
        ("black ", "holes"),
        ("is we", "ll"),
        ("let", " go"),
        ("lets", " go"),
        ("by ha", "nd"),
        ("planted ", "mistake"),
        ("made by", " dice"),
        ("seeing cli", "ents out"),
    ];
    let (identifiers, phrases) = (RETIRED.map(joined), phrases.map(joined));
    let mut wrong = Vec::new();
    for path in kept().into_iter().filter(|path| is_ours_to_word(path)) {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (at, line) in (1..).zip(text.lines()) {
            let lower = line.to_lowercase();
            let found = identifiers.iter().filter(|word| has_word(line, word));
            let found = found.chain(phrases.iter().filter(|word| has_word(&lower, word)));
            wrong.extend(found.map(|word| format!("{}:{at}: {word}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{} retired words:\n{}", wrong.len(), wrong.join("\n"));
}

/// A function name has an exact verb, such as `fetch`, `check` or `report`, not one verb for all.
#[test]
fn functions_are_named_by_their_act() {
    let words = VAGUE.map(joined);
    let mut wrong = Vec::new();
    let folders = ["common", "gateway", "dispatcher", "tests/it", "benches"];
    let is_named = |path: &PathBuf| folders.iter().any(|folder| path.starts_with(folder));
    for path in kept().into_iter().filter(is_named) {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (at, line) in (1..).zip(text.lines()) {
            let found = words.iter().filter(|word| is_in_name(line, word));
            wrong.extend(found.map(|word| format!("{}:{at}: {word}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{} functions:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_part_of_a_name_is_found() {
    let is_in = |line| is_in_name(line, "plan");
    assert!(is_in("    pub(crate) async fn plan<T>(") && is_in("fn of_plan_b() {"));
    assert!(!is_in("fn planned() {") && !is_in("let plan = 1;") && !is_in("fn new(plan: u8) {"));
}

#[test]
fn a_word_is_found_whole() {
    assert!(has_word("a plan, left", "plan") && has_word("plan", "plan"));
    assert!(
        !has_word("a plane", "plan") && !has_word("plan_id", "plan") && !has_word("plans", "plan")
    );
}

fn joined((left, right): (&str, &str)) -> String {
    format!("{left}{right}")
}

/// Whether the words of a file may be changed: released texts and third-party code stay unchanged.
fn is_ours_to_word(path: &Path) -> bool {
    let text = path.extension().is_some_and(|kind| {
        ["rs", "md", "toml", "sh", "sql", "service", "yml"].iter().any(|ours| kind == *ours)
    });
    let released = ["CHANGELOG.md", "migrating.rs"].iter().any(|name| path.ends_with(name))
        || path.components().any(|part| part.as_os_str() == "migrations");
    text && !released && !path.starts_with("third_party")
}

/// Whether `text` contains `start`, not in the middle of a word.
fn has_start(text: &str, start: &str) -> bool {
    let is_part = |one: char| one.is_alphanumeric() || one == '_';
    text.match_indices(start)
        .any(|(at, _)| start.starts_with('.') || !text[..at].ends_with(is_part))
}

/// Whether `line` contains `word` as a whole word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |one: char| one.is_alphanumeric() || one == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

/// Whether `line` declares a function whose name has `word` between underscores.
fn is_in_name(line: &str, word: &str) -> bool {
    let is_part = |one: char| one.is_alphanumeric() || one == '_';
    let Some((_, rest)) = line.split_once("fn ") else { return false };
    rest.split(|one| !is_part(one))
        .next()
        .is_some_and(|name| name.split('_').any(|one| one == word))
}

/// A file without its tests, and the files that it imports.
struct Source {
    text: String,
    imports: BTreeSet<String>,
}

/// The files of all crates, by their paths.
fn files() -> BTreeMap<String, Source> {
    let mut texts = BTreeMap::new();
    for krate in CRATES {
        for (module, text) in modules(krate) {
            texts.insert(format!("weir_{krate}::{module}"), shipped(&text).to_owned());
        }
    }
    let file_of = |path: &str| {
        let mut path = path;
        while !texts.contains_key(path) {
            path = path.rsplit_once("::")?.0;
        }
        Some(path.to_owned())
    };
    let imports = |name: &str, text: &str| {
        let (krate, module) = name.split_once("::").unwrap();
        let own = names_in(text, module).into_iter().map(|path| format!("{krate}::{path}"));
        let common = names_after(text, "weir_common::").into_iter();
        let paths = own.chain(common.map(|path| format!("weir_common::{path}")));
        paths.filter_map(|path| file_of(&path)).filter(|file| file != name).collect()
    };
    let found = texts.iter().map(|(name, text)| {
        (name.clone(), Source { text: text.clone(), imports: imports(name, text) })
    });
    found.collect()
}

/// Whether a file's header marks it as core.
fn is_core(text: &str) -> bool {
    let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    head.join("\n").contains("(core)")
}

/// The paths of another crate that a text names.
fn names_after(text: &str, krate: &str) -> BTreeSet<String> {
    let hidden = ["crate::", "super::", "self::"];
    let text = hidden.iter().fold(text.to_owned(), |text, own| text.replace(own, "own::"));
    names_in(&text.replace(krate, "crate::"), "")
}

/// The names of the public types that a text declares at its top level.
fn public_types(text: &str) -> Vec<String> {
    let text = code(text);
    let declared = text.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
        ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| line.strip_prefix(kind))
    });
    let is_name = |one: char| one.is_alphanumeric() || one == '_';
    declared.map(|rest| rest.chars().take_while(|one| is_name(*one)).collect()).collect()
}

/// Every Rust file of the shipped crates, except modules of tests.
fn sources() -> Vec<(PathBuf, String)> {
    let is_source = |path: &PathBuf| {
        let of_tests = path.components().any(|part| part.as_os_str() == "tests")
            || path.file_stem().is_some_and(|stem| stem == "tests");
        let ours = CRATES.iter().any(|krate| path.starts_with(format!("{krate}/src")));
        ours && !of_tests && path.extension().is_some_and(|kind| kind == "rs")
    };
    let paths = kept().into_iter().filter(is_source);
    paths.map(|path| (path.clone(), fs::read_to_string(root().join(path)).unwrap())).collect()
}
