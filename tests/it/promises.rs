//! Tests the checker of promises that the simulation and the survival runs share: for each promise
//! a history that breaks it, and one at the boundary that does not.

use weir_tests::promises::pace::Pace;
use weir_tests::promises::same::Same;
use weir_tests::promises::{Attempt, Broken, Cause, End, Ending, Promise, Promises, When};

/// An event and its only endpoint.
const PAIR: (u8, ()) = (1, ());
const GIVE_UP_AFTER: u64 = 1_000;
const DELAY: u64 = 100;

struct Story(Promises<u8, ()>);

impl Story {
    /// An event that was acknowledged, and has not arrived yet.
    fn new() -> Self {
        let mut promises = Promises::new(GIVE_UP_AFTER);
        promises.acknowledged(PAIR);
        Self(promises)
    }

    /// An attempt that takes one microsecond.
    fn attempt(&mut self, at: u64, ending: Ending) -> Result<Option<Cause>, Promise> {
        self.on(at, false, ending)
    }

    fn on(&mut self, at: u64, reused: bool, ending: Ending) -> Result<Option<Cause>, Promise> {
        let judged = self.0.started(PAIR, Attempt { start: When::exactly(at), reused });
        self.0.ended(PAIR, End { ending, at: at + 1, cause: None, recorded: u64::MAX });
        judged.map_err(|broken| broken.promise)
    }

    fn killed(&mut self, at: u64) {
        self.0.process_ended(When::exactly(at));
    }

    fn left(&self) -> Vec<Promise> {
        self.0.at_the_end(|_| false).iter().map(|broken| broken.promise).collect()
    }
}

const FAILED: Ending = Ending::Failed { delay: DELAY };
const CLOSED: Ending = Ending::Closed { delay: DELAY };
const LOST: &[Promise] = &[Promise::NothingLost];

fn promise<T>(judged: Result<T, Broken>) -> Option<Promise> {
    judged.err().map(|broken| broken.promise)
}

#[test]
fn what_was_acknowledged_is_lost_unless_it_is_taken_given_up_or_excused() {
    let mut story = Story::new();
    assert_eq!(story.left(), LOST);
    assert!(story.0.at_the_end(|_| true).is_empty());
    story.attempt(10, FAILED).unwrap();
    assert_eq!(story.left(), LOST);
    story.attempt(200, Ending::Taken).unwrap();
    assert_eq!(story.left(), []);
    let mut story = Story::new();
    story.attempt(10, FAILED).unwrap();
    story.0.given_up(PAIR, 1_010).unwrap();
    assert_eq!(story.left(), []);
    // Taken from a process that has since ended.
    let mut story = Story::new();
    story.0.taken(PAIR, 10);
    assert_eq!(story.left(), []);
}

#[test]
fn a_redelivery_that_was_acknowledged_is_owed_anew() {
    for (acknowledged, left) in [(false, &[][..]), (true, LOST)] {
        let mut story = Story::new();
        story.attempt(10, Ending::Taken).unwrap();
        story.0.redelivered(PAIR, 50, acknowledged);
        assert_eq!(story.left(), left);
        assert_eq!(story.attempt(60, Ending::Taken), Ok(Some(Cause::Redelivered)));
        assert_eq!(story.left(), []);
        assert_eq!(story.attempt(70, Ending::Taken), Err(Promise::TakenOnce));
    }
}

#[test]
fn what_was_refused_does_not_arrive() {
    let mut promises: Promises<u8, ()> = Promises::new(GIVE_UP_AFTER);
    promises.refused(1);
    assert_eq!(promise(promises.arrives(&1)), Some(Promise::Refused));
    assert_eq!(promise(promises.arrives(&2)), None);
}

#[test]
fn a_call_that_was_cut_off_arrives_whole_or_not_at_all() {
    for (arrive, whole) in [(0, true), (1, false), (2, true)] {
        let mut promises: Promises<u8, ()> = Promises::new(GIVE_UP_AFTER);
        promises.cut_off(vec![(1, ()), (2, ())]);
        for event in 1..=arrive {
            let attempt = Attempt { start: When::exactly(10), reused: false };
            promises.started((event, ()), attempt).unwrap();
        }
        let left = promises.at_the_end(|_| false);
        assert_eq!(left.iter().all(|one| one.promise != Promise::CutOff), whole, "{left:?}");
        // Excused: the webhook of the event that did not arrive is deleted.
        assert!(promises.at_the_end(|(event, ())| *event == 2).is_empty());
    }
}

#[test]
fn an_event_stays_the_same() {
    let mut bodies = Same::default();
    assert_eq!(promise(bodies.is(&1, &"body")), None);
    assert_eq!(promise(bodies.is(&1, &"body")), None);
    assert_eq!(promise(bodies.is(&1, &"other")), Some(Promise::Same));
    assert_eq!(promise(bodies.is(&2, &"other")), None);
}

#[test]
fn no_window_holds_more_starts_than_the_pace_allows() {
    // Two are allowed in a window of 20: the interval of each start, and whether the third is too
    // many.
    for (starts, broken) in [
        ([(0, 0), (10, 10), (19, 19)], true),
        ([(0, 0), (10, 10), (20, 20)], false),
        // The first may have started so early that the last is in another window.
        ([(0, 5), (10, 10), (15, 20)], false),
        ([(1, 5), (10, 10), (15, 20)], true),
        // The order is by `latest`, although the second may have started first.
        ([(9, 9), (1, 12), (10, 20)], true),
    ] {
        let mut pace = Pace::default();
        let judged = starts.map(|(earliest, latest)| {
            promise(pace.started(When { earliest, latest }, true, 20, 2))
        });
        let expected = broken.then_some(Promise::Pace);
        assert_eq!(judged, [None, None, expected], "{starts:?}");
    }
}

#[test]
fn a_start_that_never_reached_its_endpoint_does_not_count() {
    let mut pace = Pace::default();
    for (at, heard) in [(0, true), (1, false), (2, true)] {
        pace.started(When::exactly(at), heard, 20, 2).unwrap();
    }
    assert_eq!((pace.most, pace.within(19, 20), pace.within(20, 20)), (2, 3, 2));
    assert!(pace.started(When::exactly(19), true, 20, 2).is_err());
    pace.forget();
    pace.started(When::exactly(20), true, 20, 1).unwrap();
}

#[test]
fn what_was_taken_comes_again_only_if_the_process_ended_before_it_was_recorded() {
    // An attempt starts at 10 and is recorded at 30; the process ends at `ends`; another starts at
    // 50.
    for (ends, excused) in [(9, false), (10, true), (29, true), (30, false), (50, false)] {
        let mut story = Story::new();
        story.attempt(10, Ending::Taken).unwrap();
        story.0.recorded(PAIR, 30);
        story.killed(ends);
        let expected = if excused { Ok(Some(Cause::Ended)) } else { Err(Promise::TakenOnce) };
        assert_eq!(story.attempt(50, Ending::Taken), expected, "{ends}");
    }
    // A kill after the second attempt explains nothing.
    let mut story = Story::new();
    story.attempt(10, Ending::Taken).unwrap();
    story.killed(51);
    assert_eq!(story.attempt(50, Ending::Taken), Err(Promise::TakenOnce));
}

#[test]
fn what_is_not_answered_comes_again_only_for_a_cause() {
    let attempt = |at| Attempt { start: When::exactly(at), reused: false };
    let mut story = Story::new();
    story.0.started(PAIR, attempt(10)).unwrap();
    assert_eq!(promise(story.0.started(PAIR, attempt(20))), Some(Promise::TakenOnce));
    story.killed(25);
    assert_eq!(story.0.started(PAIR, attempt(30)).unwrap(), Some(Cause::Ended));
}

#[test]
fn an_answer_that_need_not_count_explains_what_follows() {
    for cause in [Cause::Late, Cause::TimedOut, Cause::Frozen] {
        let mut story = Story::new();
        story.0.started(PAIR, Attempt { start: When::exactly(10), reused: false }).unwrap();
        let (ending, cause) = (Ending::Taken, Some(cause));
        story.0.ended(PAIR, End { ending, at: 11, cause, recorded: u64::MAX });
        assert_eq!(story.attempt(12, Ending::Taken), Ok(cause));
        assert_eq!(story.attempt(13, Ending::Taken), Err(Promise::TakenOnce));
    }
}

#[test]
fn after_a_failure_the_next_attempt_waits_for_its_delay() {
    for (next, expected) in [(110, Err(Promise::RetryDelay)), (111, Ok(None))] {
        let mut story = Story::new();
        story.attempt(10, FAILED).unwrap();
        assert_eq!(story.attempt(next, Ending::Taken), expected, "{next}");
    }
    // A kill may lose the record of a failure; a reactivation cancels its delay.
    let mut story = Story::new();
    story.attempt(10, FAILED).unwrap();
    story.killed(11);
    assert_eq!(story.attempt(12, FAILED), Ok(Some(Cause::Ended)));
    story.0.needs_no_delay(PAIR);
    assert_eq!(story.attempt(14, Ending::Taken), Ok(None));
}

#[test]
fn the_last_attempt_comes_when_it_is_time_for_it() {
    for (last, expected) in [(1_009, Err(Promise::RetryDelay)), (1_010, Ok(None))] {
        let mut story = Story::new();
        story.attempt(10, FAILED).unwrap();
        story.attempt(950, FAILED).unwrap();
        assert_eq!(story.attempt(last, FAILED), expected, "{last}");
    }
}

#[test]
fn a_reused_connection_that_closes_is_followed_at_once_by_one_attempt_on_a_fresh_one() {
    let early = Err(Promise::RetryDelay);
    for (ending, first, second, expected) in [
        (CLOSED, true, false, Ok(None)),
        (CLOSED, true, true, early),
        (CLOSED, false, false, early),
        (FAILED, true, false, early),
    ] {
        let mut story = Story::new();
        story.on(10, first, ending).unwrap();
        assert_eq!(story.on(12, second, CLOSED), expected, "{ending:?} {first} {second}");
        assert_eq!(story.on(14, false, Ending::Taken), if second { Ok(None) } else { early });
    }
}

#[test]
fn nothing_is_given_up_before_its_time() {
    let mut story = Story::new();
    assert_eq!(promise(story.0.given_up(PAIR, 5_000)), Some(Promise::GiveUp));
    for (at, expected) in [(1_009, Some(Promise::GiveUp)), (1_010, None)] {
        let mut story = Story::new();
        story.attempt(10, FAILED).unwrap();
        assert_eq!(promise(story.0.given_up(PAIR, at)), expected);
    }
    // After a redelivery the whole `give_up_after` starts again.
    let mut story = Story::new();
    story.attempt(10, FAILED).unwrap();
    story.0.given_up(PAIR, 1_010).unwrap();
    story.0.redelivered(PAIR, 1_020, true);
    story.attempt(1_030, FAILED).unwrap();
    assert_eq!(promise(story.0.given_up(PAIR, 2_029)), Some(Promise::GiveUp));
    assert_eq!(promise(story.0.given_up(PAIR, 2_030)), None);
}
