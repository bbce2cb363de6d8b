//! Runs the fuzzers' checks on the kept inputs: examples, and inputs that once failed.

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
