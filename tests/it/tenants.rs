//! A workspace that does its worst within its allowance, and what another one notices of it.

use weir_tests::folder::Folder;
use weir_tests::silent_names;
use weir_tests::tenants::{Platform, Scale, WORST};

/// Beside the other workspace, a figure may be so many times what it is without it.
const RATIO_MAX: f64 = 1.5;

/// What a machine that is busy with other tests adds to a figure of a few milliseconds. What one
/// workspace could do to another before it was held to its share took seconds.
const NOISE_MS: f64 = 400.0;

#[test]
fn a_workspace_that_does_its_worst_costs_another_nothing_that_it_would_notice() {
    let folder = Folder::new();
    let platform = Platform::start(&silent_names::library(&folder));
    let scale = Scale { webhooks: 5, requests: 100, shared: 120 };
    let calm = platform.measure(scale);
    let beside = platform.measure_beside(&WORST, scale);
    for ((name, calm), (_, beside)) in calm.rows().into_iter().zip(beside.rows()) {
        let most = (calm * RATIO_MAX).max(calm + NOISE_MS);
        assert!(beside <= most, "{name}: {beside:.0} ms beside the other, {calm:.0} without it");
    }
    assert_eq!((calm.failures, beside.failures), (0, 0), "answers that were not the backend's");
}
