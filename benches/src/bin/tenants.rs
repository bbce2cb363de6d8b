//! Measures how much one workspace slows another by the worst load that its allowance permits.
//!
//! A round measures a run without other load, a run under each kind of load (`Move`), and a run
//! under all of them together. Both programs share the machine with the load; a ratio compares
//! figures of the same round.

use std::path::PathBuf;

use weir_benches::flags::Flags;
use weir_benches::report::{Series, table};
use weir_tests::folder::Folder;
use weir_tests::silent_dns;
use weir_tests::tenants::{Figures, Platform, Scale, WORST};

const USAGE: &str = "usage: tenants [--rounds 3] [--webhooks 20] [--requests 500] [--shared 300]";

/// The number of [`Figures::rows`].
const FIGURES: usize = 4;

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let rounds: usize = flags.value("--rounds", 3);
    let scale = Scale {
        webhooks: flags.value("--webhooks", 20),
        requests: flags.value("--requests", 500),
        shared: flags.value("--shared", 300),
    };
    let [] = flags.rest();
    let folder = Folder::new();
    let library: PathBuf = silent_dns::library(&folder);
    let worlds: Vec<_> = std::iter::once(("nothing", Vec::new()))
        .chain(WORST.iter().map(|one| (one.name(), vec![*one])))
        .chain(std::iter::once(("all of it", WORST.to_vec())))
        .collect();
    let mut records: Vec<[Series; FIGURES]> = vec![Default::default(); worlds.len()];
    let mut failures = vec![0; worlds.len()];
    for round in 1..=rounds {
        for ((name, moves), (record, failures)) in
            worlds.iter().zip(records.iter_mut().zip(&mut failures))
        {
            // A new platform for each run, so that no run is affected by an earlier one.
            let figures = Platform::start(&library).measure_beside(moves, scale);
            *failures += figures.failures;
            push(record, &figures);
            eprintln!("round {round} of {rounds}: {name}: {figures:?}");
        }
    }
    let calm = records.first().cloned().unwrap_or_default();
    let names = Figures::default().rows().map(|(name, _)| name);
    for (at, name) in names.into_iter().enumerate() {
        let rows: Vec<Vec<String>> = worlds
            .iter()
            .zip(&records)
            .zip(&failures)
            .filter_map(|(((name, _), record), failures)| {
                let ratio = format!("{:.2}", record.get(at)?.ratio_to(calm.get(at)?));
                let range = record.get(at)?.range(1);
                Some(vec![name.to_string(), range, ratio, failures.to_string()])
            })
            .collect();
        println!("{}", table(name, &["during", "ms", "÷ calm", "failures"], &rows));
    }
}

fn push(record: &mut [Series; FIGURES], figures: &Figures) {
    for (series, (_, value)) in record.iter_mut().zip(figures.rows()) {
        series.0.push(value);
    }
}
