//! Windows, exact and in slots: as in memory, and as by counting.

use proptest::prelude::*;
use weir_common::limit::decision::Decision;
use weir_common::limit::state::State;
use weir_common::time::Tick;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Decides checks at `now` by states in memory, all or none, as the memory store does.
pub(super) fn in_memory(
    states: &mut [State],
    checks: &[SharedCheck],
    now: u64,
) -> (bool, Vec<Expected>) {
    let now = Tick(now);
    let decisions: Vec<Decision> = checks
        .iter()
        .zip(&mut *states)
        .map(|(check, state)| state.decide(&check.quota, check.cost, now))
        .collect();
    let admits = |(check, decision): (&SharedCheck, &Decision)| {
        !check.enforced || *decision == Decision::Admit
    };
    let admitted = checks.iter().zip(&decisions).all(admits);
    let results = checks.iter().zip(states).zip(decisions).map(|((check, state), decision)| {
        let usage = match admitted && decision == Decision::Admit {
            true => state.charge(&check.quota, check.cost, now),
            false => state.usage(&check.quota, now),
        };
        Expected::of(decision, usage)
    });
    let results = results.collect();
    (admitted, results)
}

#[derive(Clone, Debug)]
struct Step {
    wait: u64,
    cost: u32,
    quota: usize,
    enforced: bool,
}

fn steps(wait_max: u64, cost_max: u32) -> impl Strategy<Value = Vec<Step>> {
    // The clock moves on by a microsecond at least, so that each stamp is its time.
    let wait = prop_oneof![5 => 1..wait_max / 50, 3 => 1..5_u64, 1 => 1..wait_max * 2];
    let cost = prop_oneof![4 => Just(1), 2 => 1..=cost_max / 4 + 1, 1 => 1..=cost_max * 2];
    let step = (wait, cost, 0..3_usize, prop::bool::weighted(0.9))
        .prop_map(|(wait, cost, quota, enforced)| Step { wait, cost, quota, enforced });
    prop::collection::vec(step, 1..250)
}

/// The store decides two limits of each step as the states in memory do.
fn agrees(
    windows: [Duration; 2],
    limits: [[u32; 3]; 2],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut store = Store::open();
    let keys = [fresh_key(), fresh_key()];
    let quota = |limit: usize, nth: usize| rolling(limits[limit][nth], windows[limit]);
    let mut states = [0, 1].map(|limit| State::fresh(quota(limit, 0)));
    for step in steps {
        store.now += step.wait;
        let checks = [0, 1].map(|limit| SharedCheck {
            enforced: step.enforced || limit == 1,
            ..check(&keys[limit], quota(limit, step.quota), step.cost)
        });
        let preview = store.call_as(&checks, CallMode::Preview, None);
        let reply = store.call(&checks);
        let (admitted, expected) = in_memory(&mut states, &checks, store.now);
        let outcome = if admitted { SharedOutcome::Admitted } else { SharedOutcome::Refused };
        prop_assert_eq!((preview.outcome, reply.outcome), (outcome, outcome), "{:?}", step);
        for (result, expected) in reply.results.iter().zip(&expected) {
            prop_assert_eq!(&Expected::replied(result), expected, "{:?} {:?}", step, store.now);
            let charged = admitted && result.decision == SharedDecision::Admit;
            prop_assert_eq!(result.receipt.is_some(), charged);
        }
        for (result, previewed) in reply.results.iter().zip(&preview.results) {
            prop_assert_eq!(result.decision, previewed.decision);
            prop_assert_eq!(previewed.receipt, None);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_random_sequence_is_decided_as_in_memory(steps in steps(60_000_000, 60)) {
        agrees([MINUTE, MINUTE], [[60, 7, 200], [600, 90, 40]], &steps)?;
    }

    #[test]
    fn long_windows_are_decided_as_in_memory(steps in steps(4_000_000, 2)) {
        agrees([MINUTE, 10 * MINUTE], [[100, 70, 200], [600, 90, 1_000]], &steps)?;
    }

    #[test]
    fn slots_are_decided_as_in_memory(steps in steps(60_000_000, 100_000)) {
        let slots = EXACT_MAX + 1;
        agrees([MINUTE, 10 * MINUTE], [[slots; 3], [slots, 200_000, 90_000]], &steps)?;
    }
}

#[test]
fn a_horizon_has_as_many_units_as_the_script_allows() {
    let (_, rest) = SCRIPT.split_once("AGE_MAX, HORIZON_MAX = 3.75 * 2^30, ").unwrap();
    let (factor, _) = rest.split_once(" * 2^30\n").unwrap();
    let units = factor.parse::<f64>().unwrap() * f64::from(1 << 30);
    assert_eq!(units, HORIZON_UNITS_MAX as f64);
}
