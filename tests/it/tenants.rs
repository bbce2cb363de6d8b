//! How much a workspace that loads the platform up to its allowance slows another.

use weir_tests::folder::Folder;
use weir_tests::silent_dns;
use weir_tests::tenants::{Figures, Platform, Scale, WORST};

/// The greatest ratio of a figure with the other workspace to the figure without it.
const RATIO_MAX: f64 = 1.5;

/// The most that a machine busy with other tests adds to a few milliseconds. Without fair shares
/// one workspace could delay another by seconds.
const NOISE_MS: f64 = 400.0;

/// Interference by a busy machine rarely hits all rounds; a slowdown by a workspace shows in each.
const ROUNDS: usize = 3;

#[test]
fn a_workspace_that_does_its_worst_does_not_noticeably_slow_another() {
    let folder = Folder::new();
    let library = silent_dns::library(&folder);
    let scale = Scale { webhooks: 5, requests: 100, shared: 120 };
    let mut complaints = Vec::new();
    for _ in 0..ROUNDS {
        let platform = Platform::start(&library);
        let calm = platform.measure(scale);
        let beside = platform.measure_beside(&WORST, scale);
        assert_eq!((calm.failures, beside.failures), (0, 0), "answers that are not the backend's");
        let found = compared(&calm, &beside);
        if found.is_empty() {
            return;
        }
        complaints.extend(found);
    }
    panic!("in each of {ROUNDS} rounds:\n{}", complaints.join("\n"));
}

/// The figures that the other workspace worsens by more than the limits.
fn compared(calm: &Figures, beside: &Figures) -> Vec<String> {
    let pairs = calm.rows().into_iter().zip(beside.rows());
    let worse =
        pairs.filter(|((_, calm), (_, beside))| *beside > (calm * RATIO_MAX).max(calm + NOISE_MS));
    let row = |((name, calm), (_, beside)): ((&str, f64), (&str, f64))| {
        format!("{name}: {beside:.0} ms with the other, {calm:.0} without it")
    };
    worse.map(row).collect()
}
