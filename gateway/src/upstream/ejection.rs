//! Ejects addresses of servers that fail requests (passive health checking). (core)
//!
//! An address with several consecutive failures is ejected. After its pause one request, a probe,
//! decides: the address returns, or is ejected again for twice as long.
//!
//! # Invariants
//!
//! 1. An address is ejected after `failures` consecutive failures and not before, and never if no
//!    other address can take over.
//! 2. After a pause one probe is sent, and no other request until the probe has a result or another
//!    pause has passed.
//! 3. Each pause is twice the one before it, up to `pause_max`; a success resets the record.
//!
//! # Not here
//!
//! What counts as a failure (`proxy`), which server is picked (`upstream`).

use std::time::Duration;

use weir_common::time::Tick;

use crate::settings::upstream::Ejection;

/// The record of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It gets requests.
    Fine {
        /// Consecutive failures so far.
        failed: u32,
    },
    /// It is ejected, and gets no requests.
    Ejected {
        /// When a probe may be sent.
        until: Tick,
        /// How long this ejection lasts.
        pause: Duration,
    },
    /// A probe is in flight.
    Probing {
        /// When another probe may be sent if this one has no result.
        until: Tick,
        /// How long the ejection lasted.
        pause: Duration,
    },
}

/// Which requests a server may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// As many requests as there are.
    Send,
    /// This request, as a probe; the caller must store the record.
    Probe(Record),
    /// No requests, unless no other server is available.
    Ejected,
}

/// A change that the caller reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server is ejected for this time.
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
    /// Which requests may be sent at `now`.
    #[must_use]
    pub fn permission(self, policy: &Ejection, now: Tick) -> Permission {
        match self {
            _ if policy.failures == 0 => Permission::Send,
            Self::Fine { .. } => Permission::Send,
            Self::Ejected { until, .. } | Self::Probing { until, .. } if now < until => {
                Permission::Ejected
            }
            Self::Ejected { pause, .. } | Self::Probing { pause, .. } => {
                Permission::Probe(Self::Probing { until: now.plus(pause), pause })
            }
        }
    }

    /// The record after a failed request. `may_eject` is false if no other server can take over.
    #[must_use]
    pub fn failed(self, policy: &Ejection, may_eject: bool, now: Tick) -> (Self, Option<Change>) {
        let eject = |pause: Duration| {
            let pause = pause.min(policy.pause_max);
            (Self::Ejected { until: now.plus(pause), pause }, Some(Change::Ejected(pause)))
        };
        match self {
            Self::Fine { failed } => {
                let failed = failed.saturating_add(1);
                if policy.failures > 0 && failed >= policy.failures && may_eject {
                    eject(policy.pause)
                } else {
                    (Self::Fine { failed }, None)
                }
            }
            Self::Probing { pause, .. } => eject(pause.saturating_mul(2)),
            // The request started before the ejection, or no other server was available.
            Self::Ejected { .. } => (self, None),
        }
    }

    /// The record after a successful request.
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

    /// Plays steps of the form `second what`: `bad` and `good` are requests, `alone` is a bad one
    /// with no other server; `send`, `probe` and `ejected` are expected permissions.
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
                    let permission = record.permission(policy, now);
                    let word = match permission {
                        Permission::Send => "send",
                        Permission::Probe(_) => "probe",
                        Permission::Ejected => "ejected",
                    };
                    assert_eq!(word, what, "{step} in {story}");
                    if let Permission::Probe(probing) = permission {
                        record = probing;
                    }
                }
            }
        }
    }

    #[test]
    fn a_server_is_ejected_after_consecutive_failures() {
        check(&POLICY, "0 bad  0 bad  0 send  0 bad  0 ejected  4 ejected");
        check(&POLICY, "0 bad  0 bad  0 good  0 bad  0 bad  0 send  0 bad  0 ejected");
    }

    #[test]
    fn after_a_pause_one_request_decides() {
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  5 ejected  6 good  6 send  6 bad  6 send");
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  5 bad  14 ejected  15 probe  15 ejected");
    }

    #[test]
    fn an_ejection_doubles_up_to_the_maximum_and_restarts_after_a_success() {
        check(
            &POLICY,
            "0 bad  0 bad  0 bad  5 probe  5 bad  15 probe  15 bad  29 ejected  30 probe",
        );
        check(
            &POLICY,
            "0 bad  0 bad  0 bad  5 probe  5 bad  15 probe  15 good  15 bad  15 bad  15 bad  \
             19 ejected  20 probe",
        );
    }

    #[test]
    fn a_probe_without_a_result_is_followed_by_another() {
        check(&POLICY, "0 bad  0 bad  0 bad  5 probe  9 ejected  10 probe  10 ejected");
    }

    #[test]
    fn the_last_server_is_never_ejected_until_there_is_another() {
        check(&POLICY, "0 alone  0 alone  0 alone  0 alone  0 send  1 bad  1 ejected");
    }

    #[test]
    fn a_late_failure_does_not_make_an_ejection_longer() {
        check(&POLICY, "0 bad  0 bad  0 bad  4 bad  5 probe");
    }

    #[test]
    fn without_a_number_of_failures_nothing_is_ejected() {
        let never = Ejection { failures: 0, ..POLICY };
        check(&never, "0 bad  0 bad  0 bad  0 bad  0 send");
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Good,
        Bad,
        Request,
        Wait(u64),
    }

    /// The reference: stores every event, and derives each result from all of them.
    #[derive(Default)]
    struct History(Vec<(Tick, &'static str)>);

    impl History {
        /// The consecutive failures; when and for how long it was last ejected, if it has not
        /// returned since; and when the last probe was sent.
        fn read(&self) -> (u32, Option<(Tick, Duration)>, Option<Tick>) {
            let (mut row, mut ejected, mut probe) = (0, None, None);
            for (when, what) in &self.0 {
                match (*what, ejected) {
                    ("good", _) => (row, ejected, probe) = (0, None, None),
                    ("probe", _) => probe = Some(*when),
                    ("bad", None) => {
                        row += 1;
                        if row >= POLICY.failures {
                            ejected = Some((*when, POLICY.pause));
                        }
                    }
                    ("bad", Some((_, pause))) if probe.is_some() => {
                        ejected = Some((*when, (pause * 2).min(POLICY.pause_max)));
                        probe = None;
                    }
                    _ => {}
                }
            }
            (row, ejected, probe)
        }
    }

    proptest! {
        #[test]
        fn random_sequences_are_decided_as_by_the_reference(
            story in prop::collection::vec(
                prop_oneof![
                    2 => Just(Event::Good),
                    5 => Just(Event::Bad),
                    6 => Just(Event::Request),
                    3 => (1u64..12).prop_map(Event::Wait),
                ],
                1..120,
            )
        ) {
            let (mut record, mut history, mut second) = (Record::default(), History::default(), 0);
            for event in story {
                let now = at(second);
                match event {
                    Event::Wait(seconds) => second += seconds,
                    Event::Good => {
                        record = record.succeeded().0;
                        history.0.push((now, "good"));
                    }
                    Event::Bad => {
                        record = record.failed(&POLICY, true, now).0;
                        history.0.push((now, "bad"));
                    }
                    Event::Request => {
                        let expected = match history.read() {
                            (_, None, _) => "send",
                            (_, Some((from, pause)), probe) => {
                                let over = now >= probe.unwrap_or(from).plus(pause);
                                if over { "probe" } else { "ejected" }
                            }
                        };
                        match record.permission(&POLICY, now) {
                            Permission::Send => prop_assert_eq!(expected, "send"),
                            Permission::Ejected => prop_assert_eq!(expected, "ejected"),
                            Permission::Probe(probing) => {
                                prop_assert_eq!(expected, "probe");
                                record = probing;
                                history.0.push((now, "probe"));
                            }
                        }
                    }
                }
            }
        }
    }
}
