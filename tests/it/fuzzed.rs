//! Runs what the fuzzer runs on the inputs that are kept: examples, and what it once found.

use std::fs;
use std::path::Path;

#[expect(unreachable_pub, reason = "it is a library's own in fuzz/")]
#[path = "../../fuzz/src/checks.rs"]
mod checks;

#[test]
fn what_holds_of_every_input_holds_of_those_that_are_kept() {
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
fn what_holds_of_every_input_holds_of_each_beginning_of_the_shipped_files() {
    let shipped = include_str!("../../config/gateway.toml");
    let directory = include_str!("../../config/directory.toml");
    checks::settings(format!("{shipped}\n---\n{directory}").as_bytes());
    for at in (0..directory.len()).filter(|at| directory.is_char_boundary(*at)) {
        checks::settings(format!("\n---\n{}", &directory[..at]).as_bytes());
    }
}
