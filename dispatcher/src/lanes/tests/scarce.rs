//! Who starts when there are fewer places than would be taken.

use super::*;

/// Lanes of which each has one webhook of the same number with this many deliveries that wait, and
/// what is known of it.
fn known(total: usize, lanes: impl IntoIterator<Item = (i64, Option<Answered>)>) -> Lanes {
    let mut all = Lanes::new(pace(100, 1_000, 16, total));
    for (id, last) in lanes {
        all.open(WebhookId(id), LaneId(id), Gate::Open, None, at(0).tick);
        last.into_iter().for_each(|last| all.remember(WebhookId(id), last));
        for nth in 0..16 {
            all.arrived(WebhookId(id), ready(id * 100 + nth, 0), at(0));
        }
    }
    all
}

/// How many of the lanes in this range have what starts now.
fn started(lanes: &mut Lanes, of: std::ops::Range<i64>) -> usize {
    let mut count = 0;
    while let Step::Start { lane, .. } = lanes.next(at(0)) {
        count += usize::from(of.contains(&lane.0));
    }
    count
}

#[test]
fn however_many_lanes_time_out_one_that_answers_and_a_stranger_start_at_once() {
    let dark = (0..100).map(|id| (id, Some(Answered::No)));
    let mut lanes = known(40, dark);
    assert_eq!(started(&mut lanes, 0..100), 20, "half of the places");
    for (id, last) in [(100, Some(Answered::Yes)), (101, None)] {
        lanes.open(WebhookId(id), LaneId(id), Gate::Open, None, at(0).tick);
        last.into_iter().for_each(|last| lanes.remember(WebhookId(id), last));
        lanes.arrived(WebhookId(id), ready(id * 100, 0), at(0));
        assert_eq!(started(&mut lanes, id..id + 1), 1, "lane {id}");
    }
}

#[test]
fn lanes_that_time_out_take_turns_at_the_places_that_they_share() {
    let mut lanes = known(8, (0..6).map(|id| (id, Some(Answered::No))));
    let mut times = [0; 6];
    let mut under_way = Vec::new();
    for _ in 0..30 {
        while let Step::Start { webhook, ready, .. } = lanes.next(at(0)) {
            times[webhook.0 as usize] += 1;
            under_way.push((webhook, ready.id));
        }
        assert_eq!(under_way.len(), 4);
        let (webhook, id) = under_way.remove(0);
        lanes.recorded(webhook, id, None, Answered::No, at(0));
    }
    assert!(times.iter().all(|times| (4..=7).contains(times)), "{times:?}");
}

#[test]
fn what_is_known_of_a_lane_here_is_newer_than_what_was_read() {
    let mut lanes = known(8, (0..6).map(|id| (id, Some(Answered::No))));
    for id in 0..6 {
        lanes.remember(WebhookId(id), Answered::Yes);
    }
    assert_eq!(started(&mut lanes, 0..6), 4);
}
