//! Decides from a webhook's attempts whether it is healthy, failing or down. (core)
//!
//! Attempts are counted in buckets of a thirtieth of `warn_for`. The window is the current bucket
//! and the thirty before it. An *episode* begins with a failure and ends when the window has no
//! failure, or a share of failures of at most half of `warn_share`; but a window without attempts
//! ends none of which owners were warned, unless the last attempt was a 2xx. A webhook is *down*
//! from the first failure after a 2xx to the next 2xx.
//!
//! # Invariants
//!
//! 1. One warning per episode, once the episode is `warn_for` old, at least three attempts failed,
//!    and the share of failures exceeds `warn_share` both in the window and in the five buckets
//!    that end with the latest one in use.
//! 2. A pause only after `pause_after` without a 2xx, with at least three failures, the first and
//!    the last at least half of that apart: time without attempts is no evidence.
//! 3. Notices do not depend on how often and when health is checked: an episode that ended between
//!    two checks has ended.
//! 4. A clock that is set back causes no notice; attempts in the future count as now.
//!
//! Not here: which outcomes count (`outcome`), what a notice leads to (`worker`, `email`).

mod window;

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_common::time::UnixTime;

use crate::domain::health::window::Window;

/// Fewer failures cause no notice, whatever their share.
const FAILURES_MIN: u64 = 3;

/// The thresholds of warnings and pauses.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The share of failures, from 0 to 1, above which owners are warned.
    pub warn_share: f64,
    /// How long an episode lasts before a warning; 30 buckets cover it.
    pub warn_for: Duration,
    /// The time without a 2xx after which deliveries pause.
    pub pause_after: Duration,
}

/// What an attempt shows about its webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A 2xx.
    Succeeded,
    /// A 2xx to a ping: the webhook is no longer down, but the share of failures is unchanged.
    PingSucceeded,
    /// A failure of the receiver.
    Failed,
}

/// A notice to the owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Too many deliveries fail.
    Warn,
    /// Deliveries pause.
    Pause,
}

/// The health of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    #[serde(rename = "w", skip_serializing_if = "Window::is_empty")]
    window: Window,
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    episode: Option<Episode>,
    #[serde(rename = "d", skip_serializing_if = "Option::is_none")]
    down: Option<Box<Down>>,
    /// In microseconds.
    #[serde(rename = "l", skip_serializing_if = "Option::is_none")]
    last_success: Option<NonZeroU64>,
    /// Since when it was failing or down as of its first notice, until its recovery; in
    /// microseconds.
    #[serde(rename = "i", skip_serializing_if = "Option::is_none")]
    incident: Option<NonZeroU64>,
}

/// An episode that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Episode {
    /// In microseconds.
    #[serde(rename = "s")]
    since: u64,
    #[serde(rename = "x", default)]
    warned: bool,
}

/// Failures since the last 2xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Down {
    /// The first failure, in microseconds.
    #[serde(rename = "s")]
    since: u64,
    /// The last failure, in microseconds.
    #[serde(rename = "l", default)]
    last: u64,
    #[serde(rename = "n", default)]
    failures: u64,
    /// Whether it paused deliveries: attempts that were in flight then may still fail.
    #[serde(rename = "p", default)]
    paused: bool,
}

impl Health {
    /// The health after a reactivation, or at another URL: unknown, except that an incident lasts
    /// until a 2xx, and that the last one stays the last one.
    #[must_use]
    pub fn reactivated(&self) -> Self {
        let Self { incident, last_success, .. } = *self;
        Self { incident, last_success, ..Self::default() }
    }

    /// Begins an incident, unless one lasts.
    pub fn begin_incident(&mut self, since: UnixTime) {
        self.incident = self.incident.or(NonZeroU64::new(since.0));
    }

    /// Ends the incident; returns when it began, if there was one.
    pub fn end_incident(&mut self) -> Option<UnixTime> {
        self.incident.take().map(|since| UnixTime(since.get()))
    }

    /// Whether the owners were warned in an episode that has not ended, as of the last update.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.episode.is_some_and(|episode| episode.warned)
    }

    /// The health after an attempt, and a notice if one is due.
    #[must_use]
    pub fn after(
        &self,
        policy: &Policy,
        observation: Observation,
        now: UnixTime,
    ) -> (Self, Option<Notice>) {
        let mut health = self.seen(policy, now);
        match observation {
            Observation::Succeeded => {
                health.window.count(true, now);
                health.record_success(now);
            }
            Observation::PingSucceeded => health.record_success(now),
            Observation::Failed => {
                health.window.count(false, now);
                health.record_failure(now);
            }
        }
        health.end_episode_if_calm(policy);
        health.judged(policy, now)
    }

    /// The health at `now`, and a notice if one is due.
    #[must_use]
    pub fn look(&self, policy: &Policy, now: UnixTime) -> (Self, Option<Notice>) {
        self.seen(policy, now).judged(policy, now)
    }

    /// When a notice becomes due without further attempts; later than `now`.
    #[must_use]
    pub fn look_at(&self, policy: &Policy, now: UnixTime) -> Option<UnixTime> {
        let health = self.seen(policy, now);
        let soonest = UnixTime(now.0.saturating_add(1));
        let pause = health.down.as_ref().filter(|down| down.would_pause(policy));
        let pause = pause.map(|down| UnixTime(down.since).plus(policy.pause_after).max(soonest));
        let warning = health.warns_at(policy, soonest);
        pause.into_iter().chain(warning).min()
    }

    /// The time of the last 2xx.
    #[must_use]
    pub fn last_success(&self) -> Option<UnixTime> {
        self.last_success.map(|at| UnixTime(at.get()))
    }

    /// The time of the first failure since then.
    #[must_use]
    pub fn down_since(&self) -> Option<UnixTime> {
        self.down.as_ref().map(|down| UnixTime(down.since))
    }

    /// When the episode that owners were warned of began.
    #[must_use]
    pub fn failing_since(&self) -> Option<UnixTime> {
        self.episode.filter(|episode| episode.warned).map(|episode| UnixTime(episode.since))
    }

    /// The start, the number of 2xx and of failures of each bucket in use, oldest first.
    pub fn counts(&self) -> impl Iterator<Item = (UnixTime, u32, u32)> {
        self.window.counts()
    }

    /// The health at `now`: without the buckets that left the window and episodes that ended.
    fn seen(&self, policy: &Policy, now: UnixTime) -> Self {
        let mut health = self.clone();
        health.window.fit(policy.warn_for);
        let set_back = health.window.set_back(now);
        if let Some(episode) = &mut health.episode {
            // After the clock was set back its duration is unknown, so it starts again.
            episode.since = if set_back { now.0 } else { episode.since.min(now.0) };
        }
        if let Some(down) = &mut health.down {
            down.since = down.since.min(now.0);
            down.last = down.last.min(now.0);
        }
        health.end_episode_if_calm(policy);
        while health.window.drop_oldest(now) {
            health.end_episode_if_calm(policy);
        }
        health
    }

    fn record_success(&mut self, now: UnixTime) {
        self.down = None;
        self.last_success = NonZeroU64::new(now.0);
    }

    fn record_failure(&mut self, now: UnixTime) {
        self.episode.get_or_insert(Episode { since: now.0, warned: false });
        let first = Down { since: now.0, last: now.0, failures: 0, paused: false };
        let down = self.down.get_or_insert_with(|| Box::new(first));
        down.last = now.0;
        down.failures = down.failures.saturating_add(1);
    }

    fn end_episode_if_calm(&mut self, policy: &Policy) {
        // Time without attempts is no recovery.
        let still_fails = self.is_failing() && self.down.is_some() && self.window.is_empty();
        if !still_fails && self.window.all().is_calm(policy.warn_share) {
            self.episode = None;
        }
    }

    /// Decides whether a notice is due, and records it.
    fn judged(mut self, policy: &Policy, now: UnixTime) -> (Self, Option<Notice>) {
        if let Some(down) = &mut self.down {
            let for_long = now.since(UnixTime(down.since)) >= policy.pause_after;
            if for_long && down.would_pause(policy) {
                down.paused = true;
                return (self, Some(Notice::Pause));
            }
        }
        if self.warns_at(policy, now) != Some(now) {
            return (self, None);
        }
        if let Some(episode) = &mut self.episode {
            episode.warned = true;
        }
        (self, Some(Notice::Warn))
    }

    /// When a warning is due without further attempts: at `earliest`, later, or never.
    fn warns_at(&self, policy: &Policy, earliest: UnixTime) -> Option<UnixTime> {
        // After a pause a warning adds nothing.
        let paused = self.down.as_ref().is_some_and(|down| down.paused);
        let episode = self.episode.filter(|episode| !episode.warned && !paused)?;
        let mut window = self.window.clone();
        let mut at = UnixTime(episode.since).plus(policy.warn_for).max(earliest);
        loop {
            let all = window.all();
            if all.failures < FAILURES_MIN || all.is_calm(policy.warn_share) {
                return None;
            }
            if window.drop_oldest(at) {
                continue;
            }
            if all.is_over(policy.warn_share) && window.latest().is_over(policy.warn_share) {
                return Some(at);
            }
            // Only a bucket that leaves the window can change this.
            at = window.drops_at()?;
        }
    }
}

impl Down {
    /// Whether it pauses deliveries once it is `pause_after` old.
    fn would_pause(&self, policy: &Policy) -> bool {
        let span = UnixTime(self.last).since(UnixTime(self.since));
        !self.paused && self.failures >= FAILURES_MIN && span >= policy.pause_after / 2
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);
    /// In the middle of a bucket, like most times.
    const START: UnixTime = UnixTime(1_800_000_017_345_678);

    fn policy() -> Policy {
        Policy { warn_share: 0.05, warn_for: 30 * MINUTE, pause_after: 24 * HOUR }
    }

    fn small_policy() -> Policy {
        Policy { warn_share: 0.05, warn_for: 3 * SECOND, pause_after: 20 * SECOND }
    }

    type Story = Vec<(UnixTime, Observation)>;
    type Notices = Vec<(Duration, Notice)>;

    fn stored_and_read(health: &Health) -> Health {
        serde_json::from_str(&serde_json::to_string(health).unwrap()).unwrap()
    }

    /// The notices of a caller that sets its timer to `look_at`.
    fn notices(policy: &Policy, story: &Story, until: UnixTime) -> Notices {
        let (mut health, mut notices) = (Health::default(), Notices::new());
        let mut notify = |at: UnixTime, notice: Option<Notice>| {
            notices.extend(notice.map(|notice| (at.since(START), notice)));
        };
        let mut now = START;
        let end = (until, None);
        let all = story.iter().map(|(at, sign)| (*at, Some(*sign)));
        for (at, sign) in all.chain([end]) {
            while let Some(timer) = health.look_at(policy, now).filter(|timer| *timer <= at) {
                assert!(timer > now);
                let before = UnixTime(timer.0 - 1).max(now);
                assert_eq!(health.look(policy, before).1, None, "a timer that is late");
                let (next, notice) = health.look(policy, timer);
                assert!(notice.is_some(), "a timer for nothing");
                notify(timer, notice);
                (health, now) = (stored_and_read(&next), timer);
            }
            let (next, notice) = match sign {
                Some(sign) => health.after(policy, sign, at),
                None => health.look(policy, at),
            };
            notify(at, notice);
            (health, now) = (next, at);
            assert_eq!(health.look(policy, now).1, None, "a second notice");
        }
        notices
    }

    /// `count` attempts evenly over `from..to`; `failures` in a hundred fail.
    fn traffic(from: Duration, to: Duration, count: u32, failures: u32) -> Story {
        let step = (to - from) / count;
        let sign = |n: u32| {
            if (n * 37) % 100 < failures { Observation::Failed } else { Observation::Succeeded }
        };
        (0..count).map(|n| (START.plus(from + step * n), sign(n))).collect()
    }

    fn in_minutes(minutes: u32) -> Duration {
        MINUTE * minutes
    }

    fn failing_at(minutes: &[u32]) -> Story {
        minutes.iter().map(|at| (START.plus(in_minutes(*at)), Observation::Failed)).collect()
    }

    /// Checks when owners are warned in a story.
    #[track_caller]
    fn check(story: Story, warned: &[Duration]) {
        let until = story.last().unwrap().0.plus(3 * HOUR);
        let notices = notices(&policy(), &story, until);
        let expected: Notices = warned.iter().map(|at| (*at, Notice::Warn)).collect();
        assert_eq!(notices, expected);
    }

    #[test]
    fn one_event_that_fails_without_other_traffic_warns_after_thirty_minutes() {
        check(failing_at(&[0, 1, 6]), &[30 * MINUTE]);
        check(failing_at(&[0, 6]), &[]);
    }

    #[test]
    fn events_hours_apart_that_all_fail_warn_once_until_one_arrives() {
        let event = |at: u32| failing_at(&[at, at + 1, at + 6, at + 30]);
        let mut story: Story = [0, 200, 400].into_iter().flat_map(event).collect();
        let mut health = Health::default();
        for (nth, (at, sign)) in story.iter().enumerate() {
            health = stored_and_read(&health.after(&policy(), *sign, *at).0);
            assert_eq!(health.is_failing(), nth >= 3, "after attempt {nth}");
        }
        assert_eq!(health.failing_since(), Some(START));
        story.push((START.plus(in_minutes(600)), Observation::Succeeded));
        story.extend(event(800));
        check(story, &[30 * MINUTE, in_minutes(830)]);
    }

    #[test]
    fn a_ping_that_arrives_ends_an_episode_once_the_window_is_empty() {
        let mut story = failing_at(&[0, 1, 6, 36]);
        story.push((START.plus(in_minutes(100)), Observation::PingSucceeded));
        story.extend(failing_at(&[200, 201, 206]));
        check(story, &[30 * MINUTE, in_minutes(230)]);
    }

    #[test]
    fn one_failure_among_fifteen_and_then_none_never_warns() {
        let mut story = traffic(Duration::ZERO, MINUTE, 15, 1);
        story.extend(traffic(MINUTE, 90 * MINUTE, 1_350, 0));
        assert_eq!(story.iter().filter(|(_, sign)| *sign == Observation::Failed).count(), 1);
        check(story, &[]);
    }

    #[test]
    fn six_percent_warn_after_thirty_minutes_and_four_never() {
        check(traffic(Duration::ZERO, 3 * HOUR, 18_000, 6), &[30 * MINUTE]);
        check(traffic(Duration::ZERO, 3 * HOUR, 18_000, 4), &[]);
    }

    #[test]
    fn exactly_the_share_is_not_more_than_it() {
        for failed in 1..=10_000_u64 {
            let counted = window::Counted { successes: 10_000 - failed, failures: failed };
            assert!(!counted.is_over(failed as f64 / 10_000.0), "{failed} of 10,000");
            assert!(counted.is_over((failed as f64 - 0.001) / 10_000.0), "{failed} of 10,000");
        }
    }

    #[test]
    fn an_outage_of_twenty_minutes_that_is_over_never_warns() {
        let mut story = traffic(Duration::ZERO, 20 * MINUTE, 200, 100);
        story.extend(traffic(20 * MINUTE, 3 * HOUR, 1_600, 0));
        check(story, &[]);
    }

    #[test]
    fn ten_bad_minutes_in_thirty_are_one_episode_and_one_warning() {
        let mut story = Story::new();
        for round in 0..6 {
            let from = in_minutes(30 * round);
            story.extend(traffic(from, from + 10 * MINUTE, 100, 100));
            story.extend(traffic(from + 10 * MINUTE, from + 30 * MINUTE, 200, 0));
        }
        // The first failure of the second round is 1 of 41 in the latest five buckets.
        check(story, &[30 * MINUTE + 12 * SECOND]);
    }

    #[test]
    fn a_new_episode_warns_again() {
        let mut story = traffic(Duration::ZERO, 40 * MINUTE, 400, 50);
        story.extend(traffic(40 * MINUTE, 100 * MINUTE, 600, 0));
        story.extend(traffic(100 * MINUTE, 140 * MINUTE, 400, 50));
        // The first few failures among 300 successes are not yet an episode.
        check(story, &[30 * MINUTE, 130 * MINUTE + 72 * SECOND]);
    }

    #[test]
    fn a_clock_that_jumps_ahead_without_traffic_causes_no_notice() {
        let mut health = Health::default();
        for (at, sign) in failing_at(&[0, 1, 2]) {
            health = health.after(&policy(), sign, at).0;
        }
        let (health, notice) = health.look(&policy(), START.plus(HOUR));
        assert_eq!((notice, health.look_at(&policy(), START.plus(HOUR))), (None, None));
        let (health, notice) = health.look(&policy(), START.plus(40 * 24 * HOUR));
        assert_eq!((notice, health.down_since()), (None, Some(START)));
    }

    /// The default schedule; each attempt fails at once.
    const ATTEMPTS: [u32; 9] = [0, 1, 6, 36, 156, 516, 1_236, 2_676, 2_880];

    #[test]
    fn a_lone_failing_event_pauses_its_webhook_after_exactly_a_day() {
        let notices = notices(&policy(), &failing_at(&ATTEMPTS), START.plus(48 * HOUR));
        assert_eq!(notices, [(30 * MINUTE, Notice::Warn), (24 * HOUR, Notice::Pause)]);
    }

    #[test]
    fn any_2xx_ends_being_down() {
        for success in [Observation::Succeeded, Observation::PingSucceeded] {
            let mut story = failing_at(&[0, 200, 1_236, 1_440]);
            story.insert(3, (START.plus(1_439 * MINUTE), success));
            assert_eq!(notices(&policy(), &story, START.plus(72 * HOUR)), []);
        }
    }

    #[test]
    fn failures_on_one_day_without_further_attempts_never_pause() {
        let early = failing_at(&[0, 600, 719]);
        assert_eq!(notices(&policy(), &early, START.plus(72 * HOUR)), []);
        let two = failing_at(&[0, 720]);
        assert_eq!(notices(&policy(), &two, START.plus(72 * HOUR)), []);
        let enough = notices(&policy(), &failing_at(&[0, 600, 720]), START.plus(72 * HOUR));
        assert_eq!(enough, [(24 * HOUR, Notice::Pause)]);
    }

    #[test]
    fn a_suspended_dispatcher_must_see_one_more_failure() {
        let story = failing_at(&[0, 1, 6, 2_880]);
        let notices = notices(&policy(), &story, START.plus(72 * HOUR));
        assert_eq!(notices, [(30 * MINUTE, Notice::Warn), (48 * HOUR, Notice::Pause)]);
    }

    #[test]
    fn reactivated_and_still_dead_it_pauses_again_a_day_later() {
        let health = Health::default().reactivated();
        assert_eq!(health.look_at(&policy(), START), None);
        let again = notices(&policy(), &failing_at(&ATTEMPTS), START.plus(48 * HOUR));
        assert_eq!(again.last(), Some(&(24 * HOUR, Notice::Pause)));
    }

    #[test]
    fn an_incident_lasts_over_reactivations_and_restarts_until_it_is_ended() {
        let mut health = Health::default();
        assert_eq!(health.end_incident(), None);
        health.begin_incident(START);
        health.begin_incident(START.plus(HOUR));
        let mut health = stored_and_read(&health.reactivated());
        assert_eq!(health.end_incident(), Some(START));
        assert_eq!((health.end_incident(), health), (None, Health::default()));
    }

    #[test]
    fn pings_count_in_no_share() {
        let ping = (START.plus(7 * MINUTE), Observation::PingSucceeded);
        let mut story = failing_at(&[0, 1, 6]);
        story.extend(vec![ping; 1_000]);
        check(story, &[30 * MINUTE]);
    }

    #[test]
    fn the_shown_state_matches_the_attempts() {
        let mut health = Health::default();
        for (at, sign) in failing_at(&[0, 1, 6]) {
            health = health.after(&policy(), sign, at).0;
        }
        assert_eq!((health.is_failing(), health.failing_since()), (false, None));
        let health = health.look(&policy(), START.plus(30 * MINUTE)).0;
        assert_eq!((health.is_failing(), health.failing_since()), (true, Some(START)));
        assert_eq!((health.down_since(), health.last_success()), (Some(START), None));
        let counts: Vec<_> =
            health.counts().map(|(at, successes, failures)| (at.0, successes, failures)).collect();
        let minute = START.0 - START.0 % 60_000_000;
        assert_eq!(
            counts,
            [0, 1, 6].map(|n| (minute + n * 60_000_000, 0, 1)),
            "from the start of their minutes"
        );
        let now = START.plus(31 * MINUTE);
        let health = health.after(&policy(), Observation::Succeeded, now).0;
        assert_eq!((health.down_since(), health.last_success()), (None, Some(now)));
    }

    #[test]
    fn it_is_failing_until_half_the_share_is_reached() {
        let failing = after_all(&failing_at(&[0, 1, 6])).look(&policy(), START.plus(30 * MINUTE)).0;
        let successes = vec![(START.plus(30 * MINUTE), Observation::Succeeded); 117];
        let step = |health: Health, (at, sign): &(UnixTime, Observation)| {
            health.after(&policy(), *sign, *at).0
        };
        assert!(successes[..116].iter().fold(failing.clone(), step).is_failing());
        assert!(!successes.iter().fold(failing, step).is_failing());
    }

    #[test]
    fn an_episode_ends_between_two_checks() {
        let mut story = failing_at(&[0; 6]);
        story.extend(vec![(START.plus(MINUTE), Observation::Succeeded); 210]);
        // From minute 31 to 32 the window has 5 failures in 215 attempts; afterwards, 5 in 5.
        story.extend(failing_at(&[10, 10, 10, 10, 10, 33]));
        check(story, &[]);
    }

    #[test]
    fn a_pause_that_is_overdue_is_due_at_once() {
        let health = after_all(&failing_at(&[0, 600, 720]));
        let now = START.plus(25 * HOUR);
        assert_eq!(health.look_at(&policy(), now), Some(UnixTime(now.0 + 1)));
    }

    #[test]
    fn an_episode_without_attempts_has_ended() {
        let health: Health = serde_json::from_str(r#"{"e":{"s":5,"x":true}}"#).unwrap();
        assert!(!health.look(&policy(), START).0.is_failing());
    }

    #[test]
    fn attempts_that_end_together_count_in_any_order() {
        let minute = UnixTime(START.0 - START.0 % 60_000_000 + 120_000_000);
        let before = UnixTime(minute.0 - 1_000);
        let story = vec![
            (START, Observation::Failed),
            (minute, Observation::Failed),
            (before, Observation::Failed),
        ];
        let due = after_all(&story).look_at(&policy(), before);
        assert_eq!(due, Some(START.plus(30 * MINUTE)));
    }

    #[test]
    fn what_is_as_old_as_the_window_is_in_it_whatever_its_length() {
        let policy = Policy { warn_for: Duration::from_millis(1), ..policy() };
        for offset in 0..100 {
            let at = UnixTime(START.0 + offset);
            let failed = |health: Health| health.after(&policy, Observation::Failed, at).0;
            let due = failed(failed(failed(Health::default()))).look_at(&policy, at);
            assert_eq!(due, Some(at.plus(policy.warn_for)), "{offset}");
        }
    }

    const DAYS: Duration = Duration::from_secs(10 * 86_400);

    #[test]
    fn a_clock_set_back_by_days_adds_no_evidence_and_no_longer_wait() {
        let back = UnixTime(START.0 - u64::try_from(DAYS.as_micros()).unwrap());
        let health = after_all(&failing_at(&[0, 1, 2]));
        let health = health.look(&policy(), back).0;
        let warned_at = back.plus(30 * MINUTE);
        assert_eq!(health.look_at(&policy(), back), Some(warned_at));
        let health = health.look(&policy(), warned_at).0;
        assert_eq!(health.look_at(&policy(), warned_at), None, "three failures are no day of them");
        let later = back.plus(13 * HOUR);
        let health = health.after(&policy(), Observation::Failed, later).0;
        assert_eq!(health.look_at(&policy(), later), Some(back.plus(24 * HOUR)));
    }

    #[test]
    fn a_clock_set_back_does_not_make_old_failures_the_latest() {
        let mut story = failing_at(&[0, 0, 0]);
        story.extend(failing_at(&[9; 30]));
        story.extend(vec![(START.plus(9 * MINUTE), Observation::Succeeded); 1_000]);
        story.extend(failing_at(&[31; 5]));
        let successes =
            (36..43).map(|minute| (START.plus(in_minutes(minute)), Observation::Succeeded));
        story.extend(successes.flat_map(|success| [success, success]));
        let health = after_all(&story);
        assert_eq!(health.look(&policy(), START.plus(42 * MINUTE)).1, None);
        assert_eq!(health.look(&policy(), START.plus(30 * MINUTE)).1, None);
    }

    #[test]
    fn it_is_stored_in_few_bytes() {
        let healthy = after_all(&traffic(Duration::ZERO, 3 * HOUR, 18_000, 0));
        let text = serde_json::to_string(&healthy).unwrap();
        assert!(text.len() < 400, "{} bytes: {text}", text.len());
        let unhealthy = after_all(&traffic(Duration::ZERO, 23 * HOUR, 1_380_000, 96));
        let text = serde_json::to_string(&unhealthy).unwrap();
        assert!(text.len() < 700, "{} bytes: {text}", text.len());
        assert_eq!(serde_json::to_string(&Health::default()).unwrap(), "{}");
    }

    fn after_all(story: &Story) -> Health {
        let step = |health: Health, (at, sign): &(UnixTime, Observation)| {
            health.after(&policy(), *sign, *at).0
        };
        story.iter().fold(Health::default(), step)
    }

    #[test]
    fn a_policy_of_another_length_keeps_what_was_counted() {
        let health = after_all(&failing_at(&[0, 1, 6]));
        let longer = Policy { warn_for: 60 * MINUTE, ..policy() };
        let (health, _) = health.look(&longer, START.plus(7 * MINUTE));
        assert_eq!(health.counts().map(|(_, _, failures)| failures).sum::<u32>(), 3);
        let due = health.look_at(&longer, START.plus(7 * MINUTE));
        assert_eq!(due, Some(START.plus(60 * MINUTE)));
    }

    /// The reference: keeps every attempt, and checks at every time at which anything can change.
    struct Memory<'s> {
        policy: &'s Policy,
        seen: Story,
        episode: Option<UnixTime>,
        warned: bool,
        paused: bool,
        notices: Notices,
    }

    impl Memory<'_> {
        fn notices(policy: &Policy, story: &Story, until: UnixTime) -> Notices {
            let mut times: BTreeSet<UnixTime> = BTreeSet::from([until]);
            for (at, _) in story {
                let bucket = at.0 / width(policy);
                let drops = UnixTime((bucket + 31) * width(policy));
                times.extend([*at, drops, at.plus(policy.warn_for), at.plus(policy.pause_after)]);
            }
            let mut memory = Memory {
                policy,
                seen: Vec::new(),
                episode: None,
                warned: false,
                paused: false,
                notices: Vec::new(),
            };
            for now in times.into_iter().filter(|at| *at <= until) {
                memory.look(now);
                for (_, sign) in story.iter().filter(|(at, _)| *at == now) {
                    memory.seen.push((now, *sign));
                    match sign {
                        Observation::Failed => drop(memory.episode.get_or_insert(now)),
                        Observation::Succeeded | Observation::PingSucceeded => {
                            memory.paused = false
                        }
                    }
                    memory.look(now);
                }
            }
            memory.notices
        }

        fn share(&self, from: u64) -> (usize, f64) {
            let counted = self.seen.iter().filter(|(at, _)| at.0 / width(self.policy) >= from);
            let (failures, successes): (Story, Story) = counted
                .filter(|(_, sign)| *sign != Observation::PingSucceeded)
                .copied()
                .partition(|(_, sign)| *sign == Observation::Failed);
            (
                failures.len(),
                failures.len() as f64 / (failures.len() + successes.len()).max(1) as f64,
            )
        }

        fn look(&mut self, now: UnixTime) {
            let oldest = (now.0 / width(self.policy)).saturating_sub(30);
            let (failures, share) = self.share(oldest);
            let in_window = |(at, sign): &(UnixTime, Observation)| {
                at.0 / width(self.policy) >= oldest && *sign != Observation::PingSucceeded
            };
            let fails = self.seen.last().is_some_and(|(_, sign)| *sign == Observation::Failed);
            let still_fails = self.warned && fails && !self.seen.iter().any(in_window);
            if !still_fails && (failures == 0 || share <= self.policy.warn_share / 2.0) {
                (self.episode, self.warned) = (None, false);
            }
            let success = self.seen.iter().rposition(|(_, sign)| *sign != Observation::Failed);
            let down = &self.seen[success.map_or(0, |at| at + 1)..];
            if let (Some(first), Some(last)) = (down.first(), down.last()) {
                let long = now.since(first.0) >= self.policy.pause_after;
                let spread = last.0.since(first.0) >= self.policy.pause_after / 2;
                if long && spread && down.len() >= 3 && !self.paused {
                    self.paused = true;
                    self.notices.push((now.since(START), Notice::Pause));
                }
            }
            let real = self.seen.iter().rfind(|(_, sign)| *sign != Observation::PingSucceeded);
            let latest = real.map_or(0, |(at, _)| at.0 / width(self.policy) - 4).max(oldest);
            let long = self.episode.is_some_and(|at| now.since(at) >= self.policy.warn_for);
            let over = |share: f64| share > self.policy.warn_share;
            let over = failures >= 3 && over(share) && over(self.share(latest).1);
            if long && over && !self.warned && !self.paused {
                self.warned = true;
                self.notices.push((now.since(START), Notice::Warn));
            }
        }
    }

    fn width(policy: &Policy) -> u64 {
        u64::try_from(policy.warn_for.as_micros()).unwrap() / 30
    }

    /// A few phases of some length, rate and share of failures.
    fn random_story(seed: u64) -> Story {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut roll = |sides: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 8) % sides
        };
        let (mut at, mut story) = (START, Story::new());
        for _ in 0..1 + roll(5) {
            let gap = [20_000, 100_000, 400_000, 3_000_000][roll(4) as usize];
            let failures = [0, 2, 4, 8, 30, 100][roll(6) as usize];
            for _ in 0..roll(60) {
                at = at.plus(Duration::from_micros(roll(2 * gap)));
                let sign = match roll(100) {
                    number if number < failures => Observation::Failed,
                    99 => Observation::PingSucceeded,
                    _ => Observation::Succeeded,
                };
                story.push((at, sign));
            }
        }
        story
    }

    #[test]
    fn notices_are_those_of_the_reference() {
        let (mut warned, mut paused) = (0, 0);
        for seed in 0..400 {
            let story = random_story(seed);
            let end = story.last().map_or(START, |last| last.0).plus(30 * SECOND);
            let notices = notices(&small_policy(), &story, end);
            let expected = Memory::notices(&small_policy(), &story, end);
            assert_eq!(notices, expected, "seed {seed}");
            warned += notices.iter().filter(|(_, notice)| *notice == Notice::Warn).count();
            paused += notices.iter().filter(|(_, notice)| *notice == Notice::Pause).count();
        }
        assert!(warned > 50 && paused > 20, "{warned} warnings and {paused} pauses are few");
    }

    #[test]
    fn checks_in_between_change_nothing() {
        for seed in 0..200 {
            let story = random_story(seed);
            let (mut looked, mut left) = (Health::default(), Health::default());
            let mut before = START;
            for (at, sign) in story {
                for part in 1..4 {
                    let between = before.plus(at.since(before) * part / 4);
                    let (next, notice) = looked.look(&small_policy(), between);
                    // A notice changes the state on purpose.
                    looked = if notice.is_none() { next } else { looked };
                }
                looked = looked.after(&small_policy(), sign, at).0;
                left = left.after(&small_policy(), sign, at).0;
                assert_eq!(looked, left, "seed {seed}");
                looked = stored_and_read(&looked);
                before = at;
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_causes_no_notice() {
        for seed in 0..200 {
            let mut health = Health::default();
            for (at, sign) in random_story(seed) {
                health = health.after(&small_policy(), sign, at).0;
                for back in [1, 90_000, 250_000, 700_000, 4_000_000, 3_600_000_000, at.0] {
                    let earlier = UnixTime(at.0 - back);
                    let (then, notice) = health.look(&small_policy(), earlier);
                    assert_eq!(notice, None, "seed {seed}, back by {back}");
                    let timer = then.look_at(&small_policy(), earlier);
                    assert!(timer.is_none_or(|timer| timer > earlier));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_was_stored_is_read_without_panic(
            width in any::<u64>(),
            number in any::<u64>(),
            counts in prop::collection::vec(any::<u64>(), 0..200),
            times in any::<[u64; 5]>(),
        ) {
            let [episode, since, last, now, pause_after] = times;
            let text = format!(
                r#"{{"w":{{"w":{width},"n":{number},"c":{counts:?}}},"e":{{"s":{episode}}},
                    "d":{{"s":{since},"l":{last},"n":{now}}},"l":{last},"other":[]}}"#
            );
            let health: Health = serde_json::from_str(&text).unwrap();
            let policy =
                Policy { pause_after: Duration::from_micros(pause_after), ..small_policy() };
            for sign in [Observation::Failed, Observation::Succeeded, Observation::PingSucceeded] {
                let (health, _) = health.after(&policy, sign, UnixTime(now));
                let _ = health.look_at(&policy, UnixTime(now));
                let _ = health.look(&policy, UnixTime(now.saturating_add(last)));
                prop_assert!(health.counts().count() <= 31);
            }
        }
    }
}
