//! Made-up records: the checks of a replay find what breaks a promise, and nothing else.

use std::collections::BTreeMap;

use weir_tests::admissions::{Admissions, Outcome, Sent};

/// Requests with one limit, each with when it was sent and answered.
fn made_up(requests: &[(u64, u64, Outcome)]) -> Admissions {
    let request = |(sent, answered, outcome): &(u64, u64, Outcome)| Sent {
        gateway: 0,
        process: 0,
        limits: vec![0],
        refused_by: if *outcome == Outcome::Refused { vec![0] } else { Vec::new() },
        cost: 1,
        outcome: *outcome,
        sent: *sent,
        answered: *answered,
        ended: u64::MAX,
    };
    Admissions { sent: requests.iter().map(request).collect(), ..Admissions::default() }
}

#[test]
fn a_made_up_record_that_breaks_a_promise_is_found_and_its_neighbour_is_not() {
    use Outcome::{Admitted, Nothing, Refused, Unavailable};
    let full = [(0, 10, Admitted), (20, 30, Admitted)];
    let with = |more: (u64, u64, Outcome)| made_up(&[full[0], full[1], more]);
    let over = |end| with((40, end, Admitted)).check_windows(0, 100, 2);
    assert!(over(99).is_err() && over(100).is_ok(), "it may have been in the next window");
    let bucket = |end| with((40, end, Admitted)).check_bucket(0, (1, 10.0));
    assert!(bucket(99_999).is_err() && bucket(100_000).is_ok());
    let refused = |sent| with((sent, sent + 10, Refused)).check_refused(0, 100, (2, 1));
    assert!(refused(1_109).is_ok() && refused(1_110).is_err(), "the first has left the window");
    let unknown = |what| made_up(&[full[0], (20, 30, what), (40, 50, Refused)]);
    let fits = |what| unknown(what).check_refused(0, 100, (2, 1)).is_err();
    assert_eq!([Refused, Unavailable, Nothing].map(fits), [true, false, false]);
}

#[test]
fn what_the_upstream_did_not_see_once_is_found() {
    use Outcome::{Admitted, Nothing, Refused, Unavailable};
    let found = |outcome, seen: &[u64]| {
        let mut admissions = made_up(&[(0, 50, outcome)]);
        let seen = BTreeMap::from([(0, seen.to_vec())]);
        let matched = admissions.match_seen(&seen);
        matched.ok().map(|()| (admissions.sent[0].outcome, admissions.sent[0].answered))
    };
    assert_eq!(found(Admitted, &[]), None, "it is missing");
    assert_eq!(found(Admitted, &[9, 9]), None, "it is there twice");
    assert_eq!(found(Refused, &[9]).or(found(Unavailable, &[9])), None, "it was refused");
    assert_eq!(found(Admitted, &[9]), Some((Admitted, 9)));
    assert_eq!(found(Nothing, &[9]), Some((Admitted, 9)));
    assert_eq!(found(Nothing, &[]), Some((Nothing, 50)));
}
