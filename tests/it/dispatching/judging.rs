//! The checker of `faults` and of the bench `survive`, on invented histories: what it must find,
//! and what it must not report as a violation.

use weir_tests::folder::Folder;
use weir_tests::promises::Cause;
use weir_tests::survival::cast::{REQUESTS, reached};
use weir_tests::survival::clients::GivenUp;
use weir_tests::survival::events::{Event, Mark};
use weir_tests::survival::history::{Answered, Arrival, History, Redelivered, Span, Start};
use weir_tests::survival::judge::{Verdict, judge};
use weir_tests::survival::logs::Said;

const SECOND: u64 = 1_000_000;

const TAKEN: Answered = Answered::Taken { new: true };

/// A history of one call of `count` events with this result, and the deliveries that it requires.
struct Story {
    _folder: Folder,
    history: History,
    pairs: Vec<(Mark, usize)>,
}

impl Story {
    fn of(count: u64, answered: Answered) -> Self {
        let folder = Folder::new();
        let history = History::open(folder.root(), 1);
        let call = history.call(count, false);
        let marks: Vec<Mark> = (0..count).map(|nth| Mark { call, nth }).collect();
        let ids = marks.iter().map(|mark| format!("evt_{mark}")).collect();
        history.answered(call, 0, answered, if answered == TAKEN { ids } else { Vec::new() });
        let of_mark = |mark: &Mark| {
            let event = Event::new(1, *mark);
            let mark = *mark;
            reached(event.workspace, event.kind).map(move |endpoint| (mark, endpoint))
        };
        let pairs: Vec<(Mark, usize)> = marks.iter().flat_map(of_mark).collect();
        assert!(pairs.len() > 2, "{pairs:?}");
        Self { _folder: folder, history, pairs }
    }

    /// Every delivery arrives at second 60 and is answered 200.
    fn arrived(self) -> Self {
        for nth in 0..self.pairs.len() {
            self.comes(nth, 60 * SECOND, 200);
        }
        self
    }

    fn comes(&self, pair: usize, at: u64, status: u16) {
        self.reaches(pair, at, Some(status), false);
    }

    fn reaches(&self, pair: usize, at: u64, status: Option<u16>, reused: bool) {
        let arrival = Arrival { at, signed: 0, answered: at + 1_000, status, reused };
        let mut state = self.history.state();
        state.arrivals.entry(self.pairs[pair]).or_default().push(arrival);
    }

    fn judged(&self) -> Verdict {
        judge(&self.history, &[], &Said::default(), true)
    }

    #[track_caller]
    fn check(&self, violations: usize, causes: &[Option<Cause>]) {
        let verdict = self.judged();
        assert_eq!(verdict.violations.len(), violations, "{:?}", verdict.violations);
        for cause in causes {
            assert_eq!(verdict.duplicates[cause], 1, "{verdict}");
        }
    }
}

#[test]
fn what_arrived_once_everywhere_is_well() {
    Story::of(9, TAKEN).arrived().check(0, &[]);
}

#[test]
fn a_reused_connection_that_dies_unanswered_is_followed_by_one_try_on_a_new_one() {
    // Whether the connection of each immediate attempt was reused, and the number of violations.
    for (reused, violations) in [
        (&[true, false][..], 0),
        (&[false, false], 1),
        (&[true, true], 1),
        (&[true, false, false], 1),
    ] {
        let story = Story::of(9, TAKEN).arrived();
        story.history.state().arrivals.remove(&story.pairs[0]);
        for (nth, one) in reused.iter().enumerate() {
            let status = (nth + 1 == reused.len()).then_some(200);
            story.reaches(0, 60 * SECOND + 10_000 * nth as u64, status, *one);
        }
        story.check(violations, &[]);
    }
}

#[test]
fn what_was_acknowledged_and_not_taken_everywhere_is_lost() {
    let story = Story::of(9, TAKEN).arrived();
    let pair = story.pairs[1];
    story.history.state().arrivals.remove(&pair);
    assert_eq!(story.judged().figure("lost"), 1);
    story.comes(1, 60 * SECOND, 503);
    assert_eq!(story.judged().figure("lost"), 1);
    story.comes(1, 61 * SECOND, 200);
    story.check(0, &[]);
}

#[test]
fn what_was_refused_must_not_arrive_and_what_was_cut_off_arrives_whole_or_not() {
    Story::of(9, Answered::Refused(503)).check(0, &[]);
    let story = Story::of(9, Answered::Refused(503)).arrived();
    story.check(story.pairs.len(), &[]);
    Story::of(9, Answered::CutOff).check(0, &[]);
    let story = Story::of(9, Answered::CutOff).arrived();
    story.check(0, &[]);
    let pair = story.pairs[1];
    story.history.state().arrivals.remove(&pair);
    story.check(1, &[]);
}

#[test]
fn what_comes_again_needs_a_reason_that_fits() {
    let again = || {
        let story = Story::of(9, TAKEN).arrived();
        story.comes(0, 70 * SECOND, 200);
        story
    };
    again().check(1, &[None]);
    let span = |from, to| Span { from: from * SECOND / 10, to: to * SECOND / 10 };
    let killed = |from, to| {
        let story = again();
        story.history.state().ends.push(span(from, to));
        story
    };
    killed(605, 606).check(0, &[Some(Cause::Ended)]);
    // A kill long before, and one so late that the result was on disk.
    killed(590, 591).check(1, &[None]);
    killed(630, 631).check(1, &[None]);
    // The disk was full, or the process suspended, from before the result was on disk.
    let story = killed(680, 681);
    story.history.state().fulls.push(span(595, 679));
    story.check(0, &[Some(Cause::Ended)]);
    let story = again();
    story.history.state().stops.push(span(600, 650));
    story.check(0, &[Some(Cause::Frozen)]);
    let story = again();
    story.history.state().stops.push(span(600, 603));
    story.check(1, &[None]);
    let story = again();
    let pair = story.pairs[0];
    let asked = Redelivered { at: 65 * SECOND, taken: true };
    story.history.state().redelivered.insert(pair, vec![asked]);
    story.check(0, &[Some(Cause::Redelivered)]);
}

#[test]
fn a_try_after_a_failure_waits_for_its_delay() {
    let story = Story::of(9, TAKEN).arrived();
    let pair = story.pairs[0];
    story.history.state().arrivals.remove(&pair);
    story.comes(0, 60 * SECOND, 503);
    story.comes(0, 60 * SECOND + SECOND / 3, 200);
    story.check(1, &[]);
    story.history.state().ends.push(Span { from: 60 * SECOND, to: 60 * SECOND });
    story.check(0, &[]);
}

#[test]
fn what_was_asked_for_anew_must_come_anew() {
    let story = Story::of(9, TAKEN).arrived();
    let pair = story.pairs[0];
    let asked = Redelivered { at: 65 * SECOND, taken: true };
    story.history.state().redelivered.insert(pair, vec![asked]);
    story.check(1, &[]);
}

#[test]
fn more_starts_than_may_be_are_found_where_the_second_leaves_no_doubt() {
    let surplus = |apart: u64| {
        let story = Story::of(9, TAKEN).arrived();
        let second = story.history.unix_began / SECOND + 10;
        let at = |signed: u64| signed * SECOND - story.history.unix_began + SECOND / 2;
        let start = |signed| Start { at: at(signed), signed, reused: false };
        let starts = (0..=u64::from(REQUESTS)).map(|nth| start(second + nth % 2 * apart));
        story.history.state().starts[0].extend(starts);
        story
    };
    surplus(19).check(1, &[]);
    // The first may have started at the end of its second, the last at the start of its second.
    surplus(20).check(0, &[]);
}

#[test]
fn what_is_given_up_was_tried_until_its_end() {
    for (seconds, violations) in [(57, 1), (59, 0)] {
        let story = Story::of(9, TAKEN).arrived();
        let (mark, endpoint) = story.pairs[0];
        story.history.state().arrivals.remove(&(mark, endpoint));
        story.comes(0, 10 * SECOND, 422);
        story.comes(0, (10 + seconds) * SECOND, 422);
        story.comes(0, 200 * SECOND, 200);
        let given_up = GivenUp { event: format!("evt_{mark}"), endpoint, is_ping: false };
        let verdict = judge(&story.history, &[given_up], &Said::default(), true);
        assert_eq!(verdict.violations.len(), violations, "{:?}", verdict.violations);
    }
}
