//! Decides from the requests themselves whether a server gets more of them. (core)
//!
//! A server that fails several in a row is ejected. When its pause is over one request decides: the
//! server returns, or is ejected again for twice as long.
//!
//! # Invariants
//!
//! 1. A server is ejected after `failures` in a row and not before, and never while it is the last.
//! 2. After a pause one request is let through, and no other until that one is over or another
//!    pause has gone by.
//! 3. A pause is twice the one before it, up to `pause_max`; a request that goes well ends it all.
//!
//! # Not here
//!
//! What counts as a failure (`proxy`), which server is taken (`upstream`).

use std::time::Duration;

use weir_common::time::Tick;

use crate::settings::upstream::Ejection;

/// What is remembered of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It gets requests.
    Fine {
        /// The last ones that failed.
        failed: u32,
    },
    /// It is ejected, and gets none.
    Ejected {
        /// When one may try again.
        until: Tick,
        /// How long this ejection lasts.
        pause: Duration,
    },
    /// One request is out to see.
    Probing {
        /// When another may, should nothing be heard of that one.
        until: Tick,
        /// How long the ejection lasted.
        pause: Duration,
    },
}

/// What a server that is asked for may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// As many requests as there are.
    Any,
    /// This one, which decides; the record is to be kept.
    Probe(Record),
    /// None, unless there is no other server.
    Rest,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server is ejected, for so long.
    Ejected(Duration),
    /// It gets requests again.
    Returned,
}

impl Default for Record {
    fn default() -> Self {
        Self::Fine { failed: 0 }
    }
}

impl Record {
    /// Whether requests may be sent.
    #[must_use]
    pub fn ask(self, policy: &Ejection, now: Tick) -> Leave {
        match self {
            _ if policy.failures == 0 => Leave::Any,
            Self::Fine { .. } => Leave::Any,
            Self::Ejected { until, .. } | Self::Probing { until, .. } if now < until => Leave::Rest,
            Self::Ejected { pause, .. } | Self::Probing { pause, .. } => {
                Leave::Probe(Self::Probing { until: now.plus(pause), pause })
            }
        }
    }

    /// After a request that failed. `may_eject` is false where no other server could take over.
    #[must_use]
    pub fn failed(self, policy: &Ejection, may_eject: bool, now: Tick) -> (Self, Option<Change>) {
        let rest = |pause: Duration| {
            let pause = pause.min(policy.pause_max);
            (Self::Ejected { until: now.plus(pause), pause }, Some(Change::Ejected(pause)))
        };
        match self {
            Self::Fine { failed } => {
                let failed = failed.saturating_add(1);
                if policy.failures > 0 && failed >= policy.failures && may_eject {
                    rest(policy.pause)
                } else {
                    (Self::Fine { failed }, None)
                }
            }
            Self::Probing { pause, .. } => rest(pause.saturating_mul(2)),
            // Of a request that began before the ejection, or for want of another server.
            Self::Ejected { .. } => (self, None),
        }
    }

    /// After a request that went well.
    #[must_use]
    pub fn succeeded(self) -> (Self, Option<Change>) {
        let change = match self {
            Self::Fine { .. } => None,
            Self::Ejected { .. } | Self::Probing { .. } => Some(Change::Returned),
        };
        (Self::default(), change)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Ejection = Ejection {
        failures: 3,
        pause: Duration::from_secs(5),
        pause_max: Duration::from_secs(15),
        gateway_errors: true,
    };

    fn at(seconds: u64) -> Tick {
        Tick(0).plus(Duration::from_secs(seconds))
    }

    /// Plays `second what` after one another: `bad` and `good` requests, `alone` for a bad one
    /// with no other server, and what is let through then: `any`, `probe` or `rest`.
    fn check(policy: &Ejection, story: &str) {
        let mut record = Record::default();
        for step in story.split("  ").map(str::trim).filter(|step| !step.is_empty()) {
            let (second, what) = step.split_once(' ').unwrap();
            let now = at(second.parse().unwrap());
            match what {
                "bad" => record = record.failed(policy, true, now).0,
                "alone" => record = record.failed(policy, false, now).0,
                "good" => record = record.succeeded().0,
                _ => {
                    let leave = record.ask(policy, now);
                    let word = match leave {
                        Leave::Any => "any",
                        Leave::Probe(_) => "probe",
                        Leave::Rest => "rest",
                    };
                    assert_eq!(word, what, "{step} in {story}");
                    if let Leave::Probe(probing) = leave {
                        record = probing;
                    }
                }
            }
        }
    }

    #[test]
    fn a_server_is_ejected_after_consecutive_failures() {
        check(&POLICY, "0 bad  0 bad  0 any  0 bad  0 rest  4 rest");
        check(&POLICY, "0 bad  0 bad  0 good  0 bad  0 bad  0 any  0 bad  0 rest");
    }

    #[test]
    fn after_a_pause_one_request_decides() {
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  5 rest  6 good  6 any  6 bad  6 any");
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  5 bad  14 rest  15 probe  15 rest");
    }

    #[test]
    fn a_pause_doubles_up_to_the_longest_and_begins_anew_after_a_good_one() {
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  5 bad  15 probe  15 bad  29 rest  30 probe");
        check(
            &POLICY,
            "0 bad  0 bad  0 bad  5 probe  5 bad  15 probe  15 good  15 bad  15 bad  15 bad  \
             19 rest  20 probe",
        );
    }

    #[test]
    fn a_probe_that_is_never_heard_of_is_followed_by_another() {
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  9 rest  10 probe  10 rest");
    }

    #[test]
    fn the_last_server_is_never_ejected_until_there_is_another() {
        check(&POLICY, "0 alone  0 alone  0 alone  0 alone  0 any  1 bad  1 rest");
    }

    #[test]
    fn a_late_failure_does_not_make_an_ejection_longer() {
        check(&POLICY, "0 bad  0 bad  0 bad  4 bad  5 probe");
    }

    #[test]
    fn without_a_number_of_failures_nothing_is_ejected() {
        let never = Ejection { failures: 0, ..POLICY };
        check(&never, "0 bad  0 bad  0 bad  0 bad  0 any");
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Good,
        Bad,
        LimitCheck,
        Wait(u64),
    }

    /// The reference: keeps all that happened, and derives each answer from the beginning.
    #[derive(Default)]
    struct Diary(Vec<(Tick, &'static str)>);

    impl Diary {
        /// When and for how long it last began to rest, if it has not returned since, and when
        /// a probe was let through last.
        fn read(&self) -> (u32, Option<(Tick, Duration)>, Option<Tick>) {
            let (mut row, mut rest, mut probe) = (0, None, None);
            for (when, what) in &self.0 {
                match (*what, rest) {
                    ("good", _) => (row, rest, probe) = (0, None, None),
                    ("probe", _) => probe = Some(*when),
                    ("bad", None) => {
                        row += 1;
                        if row >= POLICY.failures {
                            rest = Some((*when, POLICY.pause));
                        }
                    }
                    ("bad", Some((_, pause))) if probe.is_some() => {
                        rest = Some((*when, (pause * 2).min(POLICY.pause_max)));
                        probe = None;
                    }
                    _ => {}
                }
            }
            (row, rest, probe)
        }
    }

    proptest! {
        #[test]
        fn a_random_story_is_decided_as_by_reading_a_diary(
            story in prop::collection::vec(
                prop_oneof![
                    2 => Just(Event::Good),
                    5 => Just(Event::Bad),
                    6 => Just(Event::LimitCheck),
                    3 => (1u64..12).prop_map(Event::Wait),
                ],
                1..120,
            )
        ) {
            let (mut record, mut diary, mut second) = (Record::default(), Diary::default(), 0);
            for event in story {
                let now = at(second);
                match event {
                    Event::Wait(seconds) => second += seconds,
                    Event::Good => {
                        record = record.succeeded().0;
                        diary.0.push((now, "good"));
                    }
                    Event::Bad => {
                        record = record.failed(&POLICY, true, now).0;
                        diary.0.push((now, "bad"));
                    }
                    Event::LimitCheck => {
                        let expected = match diary.read() {
                            (_, None, _) => "any",
                            (_, Some((from, pause)), probe) => {
                                let over = now >= probe.unwrap_or(from).plus(pause);
                                if over { "probe" } else { "rest" }
                            }
                        };
                        match record.ask(&POLICY, now) {
                            Leave::Any => prop_assert_eq!(expected, "any"),
                            Leave::Rest => prop_assert_eq!(expected, "rest"),
                            Leave::Probe(probing) => {
                                prop_assert_eq!(expected, "probe");
                                record = probing;
                                diary.0.push((now, "probe"));
                            }
                        }
                    }
                }
            }
        }
    }
}
