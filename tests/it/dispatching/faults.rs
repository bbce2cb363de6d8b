//! Acknowledged events arrive although the process is killed or suspended, its disk is full or
//! fails, or its clock is stepped: the checker of the bench `survive`, run for seconds.

use std::time::Duration;

use weir_tests::dispatcher::PROGRAM;
use weir_tests::folder::Folder;
use weir_tests::process::program;
use weir_tests::survival::faults::{Part, Scale};
use weir_tests::survival::judge::Verdict;
use weir_tests::survival::{Plan, run};

/// The least time of each test, and the least number of faults; the seed decides which.
const TIME: Duration = Duration::from_secs(5);
const FAULTS: u64 = 10;

#[track_caller]
fn check(part: Part) -> Verdict {
    let folder = Folder::new();
    let plan = Plan {
        program: program(PROGRAM),
        folder: folder.path("run"),
        part,
        time: TIME,
        faults: FAULTS,
        scale: Scale::SECONDS,
        seed: 1,
    };
    let ran = run(&plan, &|_| ()).unwrap_or_else(|skipped| panic!("{skipped:?}"));
    let verdict = ran.verdict;
    println!("{}: {}\n{verdict}", part.name(), ran.disk);
    let log = std::fs::read_to_string(folder.path("run/dispatcher.log")).unwrap();
    let violations = verdict.violations.join("\n");
    assert!(verdict.violations.is_empty(), "{violations}\n{verdict}\n{log}");
    assert_eq!(verdict.figure("lost"), 0);
    assert_eq!(verdict.duplicates[&None], 0);
    assert!(verdict.figure("events acknowledged") > 50, "{verdict}");
    verdict
}

#[test]
fn a_dispatcher_killed_at_any_time_loses_nothing_and_repeats_nothing_unexplained() {
    let verdict = check(Part::Kill);
    assert!(verdict.figure("kills") > 3, "{verdict}");
}

#[test]
fn a_dispatcher_suspended_for_seconds_loses_nothing_and_keeps_the_pace() {
    let verdict = check(Part::Stop);
    assert!(verdict.figure("suspended") > 2, "{verdict}");
}

#[test]
fn on_a_full_disk_no_acknowledged_event_is_lost_and_work_resumes_with_space() {
    let verdict = check(Part::Full);
    assert!(verdict.figure("disk full") > 2, "{verdict}");
    assert!(verdict.figure("calls refused while the disk was full") > 0, "{verdict}");
}

#[test]
fn while_every_write_fails_nothing_is_lost_and_work_resumes_afterwards() {
    let verdict = check(Part::Refuse);
    assert!(verdict.figure("disk full") > 2, "{verdict}");
    assert!(verdict.figure("calls refused while the disk was full") > 0, "{verdict}");
    let calls = verdict.figure("calls acknowledged while the disk was full, with new events");
    assert_eq!(calls, 0, "{verdict}");
}

#[test]
fn a_wall_clock_step_loses_nothing() {
    let verdict = check(Part::Clock);
    assert!(verdict.figure("clock set") > 2, "{verdict}");
}
