//! Runs the fuzzers' checks on the kept inputs: examples, and inputs that once failed. The fuzzers
//! build what ships: their lock file follows the workspace's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[expect(unreachable_pub, reason = "it is a library's own in fuzz/")]
#[path = "../../fuzz/src/checks.rs"]
mod checks;

#[test]
fn the_invariants_hold_for_the_stored_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, check) in checks::ALL {
        let inputs: Vec<_> = fs::read_dir(corpus.join(name)).unwrap().collect();
        assert!(inputs.len() >= 3, "{name} has {} inputs", inputs.len());
        for input in inputs {
            let path = input.unwrap().path();
            eprintln!("{}", path.display());
            check(&fs::read(&path).unwrap());
        }
    }
}

#[test]
fn the_invariants_hold_for_every_prefix_of_the_shipped_files() {
    let shipped = include_str!("../../config/gateway.toml");
    let directory = include_str!("../../config/directory.toml");
    checks::settings(format!("{shipped}\n---\n{directory}").as_bytes());
    for at in (0..directory.len()).filter(|at| directory.is_char_boundary(*at)) {
        checks::settings(format!("\n---\n{}", &directory[..at]).as_bytes());
    }
}

/// Enough to change each input in many ways, and done in seconds.
const CHANGES: u64 = 300;

#[test]
fn the_invariants_hold_for_inputs_with_a_few_changed_bytes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, check) in checks::ALL {
        for input in fs::read_dir(corpus.join(name)).unwrap() {
            let whole = fs::read(input.unwrap().path()).unwrap();
            for seed in 1..=CHANGES {
                let changed = changed(&whole, seed);
                let run = std::panic::catch_unwind(|| check(&changed));
                assert!(
                    run.is_ok(),
                    "{name}, seed {seed}: {:?}",
                    changed.escape_ascii().to_string()
                );
            }
        }
    }
}

/// The input with up to four bytes changed, inserted, removed or doubled.
fn changed(whole: &[u8], seed: u64) -> Vec<u8> {
    const ODD: &[u8] = b"%;/\\.?#:\"[]{},\n\r \0\x7f\xff=-+0e9~";
    let mut luck = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = |most: usize| {
        luck ^= luck << 13;
        luck ^= luck >> 7;
        luck ^= luck << 17;
        usize::try_from(luck >> 33).unwrap() % most.max(1)
    };
    let mut bytes = whole.to_vec();
    for _ in 0..=draw(4) {
        let at = draw(bytes.len() + 1);
        let byte =
            if draw(2) == 0 { ODD[draw(ODD.len())] } else { u8::try_from(draw(256)).unwrap() };
        match draw(4) {
            0 if at < bytes.len() => bytes[at] = byte,
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.truncate(at),
            _ => bytes.insert(at, byte),
        }
    }
    bytes
}

/// What only the fuzzers are built with.
const FUZZERS_OWN: [&str; 3] = ["arbitrary", "libfuzzer-sys", "weir-fuzz"];

#[test]
fn the_fuzzers_lock_file_follows_the_workspaces() {
    let fuzz = include_str!("../../fuzz/Cargo.lock");
    let version = |package: &Package<'static>| (package.name, package.version);
    let shipped: BTreeSet<_> =
        packages(include_str!("../../Cargo.lock")).map(|package| version(&package)).collect();
    let shared: Vec<_> =
        packages(fuzz).filter(|package| !FUZZERS_OWN.contains(&package.name)).collect();
    assert!(shared.len() > 100, "{} packages", shared.len());
    for package in &shared {
        assert!(shipped.contains(&version(package)), "{package:?}");
    }
    for (name, manifest) in [
        ("weir-common", include_str!("../../common/Cargo.toml")),
        ("weir-gateway", include_str!("../../gateway/Cargo.toml")),
    ] {
        let locked = shared.iter().find(|package| package.name == name).unwrap();
        let (_, needed) = manifest.split_once("\n[dependencies]\n").unwrap();
        let needed = needed.lines().take_while(|line| !line.starts_with('['));
        let needed: BTreeSet<&str> =
            needed.filter_map(|line| Some(line.split_once(['.', ' '])?.0)).collect();
        assert_eq!(
            locked.dependencies, needed,
            "{name}: run `cargo metadata --manifest-path fuzz/Cargo.toml`, commit the lock file"
        );
    }
}

/// A package in a lock file.
#[derive(Debug)]
struct Package<'l> {
    name: &'l str,
    version: &'l str,
    dependencies: BTreeSet<&'l str>,
}

fn packages(lock: &str) -> impl Iterator<Item = Package<'_>> {
    lock.split("[[package]]").skip(1).map(|text| {
        let value = |key: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(key));
            lines.map(|value| value.trim_matches('"')).next().unwrap()
        };
        let dependencies = text.lines().filter_map(|line| line.strip_prefix(" \""));
        Package {
            name: value("name = "),
            version: value("version = "),
            dependencies: dependencies.filter_map(|name| name.split([' ', '"']).next()).collect(),
        }
    })
}
