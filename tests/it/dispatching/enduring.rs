//! What was acknowledged arrives, though the process stands still, its disk is full or its clock is
//! set: the checker of the bench `survive`, for seconds.

use std::time::Duration;

use weir_tests::dispatcher::PROGRAM;
use weir_tests::folder::Folder;
use weir_tests::process::program;
use weir_tests::survival::fate::{Part, Scale};
use weir_tests::survival::judge::{Cause, Verdict};
use weir_tests::survival::{Plan, run};

/// How long blows are dealt in each test, and how many: the seed decides which.
const TIME: Duration = Duration::from_secs(5);
const BLOWS: u64 = 10;

#[track_caller]
fn check(part: Part) -> Verdict {
    let folder = Folder::new();
    let plan = Plan {
        program: program(PROGRAM),
        folder: folder.path("run"),
        part,
        time: TIME,
        blows: BLOWS,
        scale: Scale::SECONDS,
        seed: 1,
    };
    let ran = run(&plan, &|_| ()).unwrap_or_else(|skipped| panic!("{skipped:?}"));
    let verdict = ran.verdict;
    println!("{}: {}\n{verdict}", part.name(), ran.disk);
    let log = std::fs::read_to_string(folder.path("run/dispatcher.log")).unwrap();
    let faults = verdict.faults.join("\n");
    assert!(verdict.faults.is_empty(), "{faults}\n{verdict}\n{log}");
    assert_eq!(verdict.figure("lost"), 0);
    assert_eq!(verdict.duplicates[&Cause::Unexplained], 0);
    assert!(verdict.figure("events acknowledged") > 50, "{verdict}");
    verdict
}

#[test]
fn killed_at_any_time_it_loses_nothing_and_repeats_nothing_unexplained() {
    let verdict = check(Part::Kill);
    assert!(verdict.figure("kills") > 3, "{verdict}");
}

#[test]
fn standing_still_for_seconds_it_loses_nothing_and_keeps_the_pace() {
    let verdict = check(Part::Stop);
    assert!(verdict.figure("frozen") > 2, "{verdict}");
}

#[test]
fn without_room_it_acknowledges_nothing_that_is_lost_and_goes_on_with_room() {
    let verdict = check(Part::Full);
    assert!(verdict.figure("disk full") > 2, "{verdict}");
    assert!(verdict.figure("calls made while it was full, and refused") > 0, "{verdict}");
}

#[test]
fn where_the_disk_refuses_every_write_it_loses_nothing_and_goes_on_when_it_does_not() {
    let verdict = check(Part::Refuse);
    assert!(verdict.figure("disk full") > 2, "{verdict}");
    assert!(verdict.figure("calls made while it was full, and refused") > 0, "{verdict}");
    assert_eq!(verdict.figure("calls made while it was full, and taken"), 0, "{verdict}");
}

#[test]
fn whatever_the_clock_is_set_to_it_loses_nothing() {
    let verdict = check(Part::Clock);
    assert!(verdict.figure("clock set") > 2, "{verdict}");
}
