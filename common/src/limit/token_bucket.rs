//! Decides whether a request fits a token bucket: `burst` at once, refilled at a rate. (core)
//!
//! A bucket stores what was spent at one instant, and refills at the rate. A rate is so many tokens
//! per period. A token is as many units as the period has microseconds, so that a whole number of
//! units comes back each microsecond and no rate is rounded. Periods below a second use a multiple
//! of that: a token is at least a million units.
//!
//! # Invariants
//!
//! 1. In any `d` periods at most `burst + tokens × d` tokens are admitted, and a client that keeps
//!    within that is never refused.
//! 2. A refusal changes nothing.
//! 3. `retry_at` is exact: refused one tick before it, admitted at it.
//! 4. Lowering the burst and raising it again loses no spending. What was spent above a burst, as
//!    under a boost, delays no request for longer than an empty bucket does.
//! 5. A change of the period never reduces what is spent, and adds less than a millionth of a
//!    token.
//! 6. No sum overflows: a full bucket has at most 10^6 tokens of 2.7 × 10^12 units, a seventh of
//!    what 64 bits hold; what may be more saturates.
//!
//! # Not here
//!
//! Storage and locks of buckets (the gateway's `limit::memory`), the headers of a response.

use std::fmt;
use std::time::Duration;

use crate::limit::decision::{Decision, Usage};
use crate::time::{Tick, micros};

/// The most tokens per period, and the highest burst: a higher one would limit nothing.
pub const TOKENS_MAX: u32 = 1_000_000;

/// The shortest period of a rate.
pub const PERIOD_MIN: Duration = Duration::from_millis(1);

/// The longest period of a rate: a month. Few processes run for longer than that.
pub const PERIOD_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// The fewest units of a token.
const UNITS_MIN: u64 = 1_000_000;

/// What a rate should look like, as errors say it.
const EXAMPLES: &str = "write tokens per period, such as 50/s, 5000/h, 10000/d or 10/15m";

/// The units of a period in text, in milliseconds, the longest first.
const PERIODS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// So many tokens per period, refilled evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// From 1 to [`TOKENS_MAX`].
    tokens: u32,
    /// In microseconds: whole milliseconds from [`PERIOD_MIN`] to [`PERIOD_MAX`].
    period: u64,
}

/// A token's size in units, and how many units come back each microsecond.
#[derive(Clone, Copy)]
struct Units {
    token: u64,
    refill: u64,
}

impl Rate {
    /// So many tokens per second; 0 counts as 1, and more than [`TOKENS_MAX`] as [`TOKENS_MAX`].
    #[must_use]
    pub const fn per_second(tokens: u32) -> Self {
        let tokens = if tokens == 0 { 1 } else { tokens };
        Self { tokens: if tokens > TOKENS_MAX { TOKENS_MAX } else { tokens }, period: 1_000_000 }
    }

    /// So many tokens per period, or what is wrong with them: tokens are from 1 to [`TOKENS_MAX`],
    /// a period is whole milliseconds, from [`PERIOD_MIN`] to [`PERIOD_MAX`].
    pub fn new(tokens: u32, period: Duration) -> Result<Self, String> {
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(format!("a rate has from 1 to {TOKENS_MAX} tokens per period"));
        }
        let whole = period.subsec_nanos().is_multiple_of(1_000_000);
        if !whole || !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            return Err("the period of a rate is from 1ms to 31d, in whole milliseconds".to_owned());
        }
        Ok(Self { tokens, period: micros(period) })
    }

    /// Reads a rate: tokens, a slash, and the period: `s`, `m`, `h` or `d` with a number before it
    /// if it is not 1, or a number with `ms`. An error says what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (tokens, period) =
            text.split_once('/').ok_or_else(|| format!("`{text}` has no period: {EXAMPLES}"))?;
        let digits = |text: &str| text.chars().all(|one| one.is_ascii_digit());
        if tokens.is_empty() || !digits(tokens) {
            return Err(format!("`{tokens}` is not a number of tokens: {EXAMPLES}"));
        }
        let end = period.find(|one: char| !one.is_ascii_digit()).unwrap_or(period.len());
        let (count, unit) = period.split_at(end);
        let millis = PERIODS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis);
        let millis = millis
            .ok_or_else(|| format!("`{period}` is not a period of ms, s, m, h or d: {EXAMPLES}"))?;
        // A number that is too large for its type is outside the range, too.
        let count = if count.is_empty() { 1 } else { count.parse().unwrap_or(u64::MAX) };
        let period = Duration::from_millis(count.saturating_mul(millis));
        Self::new(tokens.parse().unwrap_or(u32::MAX), period)
    }

    /// Tokens per period.
    #[must_use]
    pub fn tokens(self) -> u32 {
        self.tokens
    }

    /// The period.
    #[must_use]
    pub fn period(self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// In how many microseconds `tokens` come back, rounded up.
    #[must_use]
    pub fn micros_of(self, tokens: u32) -> u64 {
        let per_period = u64::from(self.tokens);
        // A division of 128 bits takes several times as long, and few products need it.
        if let Some(product) = u64::from(tokens).checked_mul(self.period) {
            return product.div_ceil(per_period.max(1));
        }
        // At most 2^32 × 2.7 × 10^12, which 128 bits hold.
        let micros = (u128::from(tokens) * u128::from(self.period)).div_ceil(per_period.into());
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Whether more tokens come back per time than at `other`.
    #[must_use]
    pub fn is_faster_than(self, other: Self) -> bool {
        let scaled = |own: Self, other: Self| u128::from(own.tokens) * u128::from(other.period);
        scaled(self, other) > scaled(other, self)
    }

    /// The units of one token, in which what is spent is counted.
    #[must_use]
    pub fn token_units(self) -> u64 {
        self.units().token
    }

    /// How many units come back each microsecond.
    #[must_use]
    pub fn refill_units(self) -> u64 {
        self.units().refill
    }

    fn units(self) -> Units {
        let scale =
            if self.period >= UNITS_MIN { 1 } else { UNITS_MIN.div_ceil(self.period.max(1)) };
        Units { token: self.period * scale, refill: u64::from(self.tokens) * scale }
    }
}

impl fmt::Display for Rate {
    /// The shortest form that [`Rate::parse`] reads, such as `50/s`, `5000/h` or `7/15m`.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period / 1_000;
        let whole = PERIODS.iter().find(|(_, millis)| period.is_multiple_of(*millis));
        let (name, millis) = whole.copied().unwrap_or(("ms", 1));
        match period / millis {
            1 => write!(to, "{}/{name}", self.tokens),
            count => write!(to, "{}/{count}{name}", self.tokens),
        }
    }
}

/// `burst` tokens at most, refilled at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketQuota {
    /// How fast tokens come back.
    pub rate: Rate,
    /// Tokens of a full bucket, from 1 to [`TOKENS_MAX`].
    pub burst: u32,
}

/// What one key has spent: 24 bytes. Where that is more than a burst, the key is in debt: of that
/// burst it has the tokens that have come back since `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Units spent and not yet refilled at `at`.
    spent: u64,
    /// Units of a token: those of the rate at the last charge.
    token: u64,
    at: Tick,
}

impl Bucket {
    /// Decides whether `cost` tokens are available at `now`. Changes nothing.
    ///
    /// A `now` before the last charge counts as that charge's time.
    pub fn decide(&self, quota: BucketQuota, cost: u32, now: Tick) -> Decision {
        if cost > quota.burst {
            return Decision::TooLarge;
        }
        let now = now.max(self.at);
        let units = quota.rate.units();
        let wanted = self.counted_at(quota, now).saturating_add(units.of(cost));
        let over = wanted.saturating_sub(units.of(quota.burst));
        if over == 0 {
            return Decision::Admit;
        }
        Decision::Refuse { retry_at: units.refilled_at(now, over) }
    }

    /// Records an admission of `cost` that [`Bucket::decide`] allowed at the same `now`.
    pub fn charge(&mut self, quota: BucketQuota, cost: u32, now: Tick) -> Usage {
        let now = now.max(self.at);
        let units = quota.rate.units();
        let counted = self.counted_at(quota, now).saturating_add(units.of(cost));
        self.owe(quota.rate, cost, now);
        if self.spent > counted {
            // What is left of the burst stays what has come back since `at`.
            let left = units.of(quota.burst).saturating_sub(counted);
            let ago = left / units.refill.max(1);
            let spent = self.spent.saturating_add(ago.saturating_mul(units.refill));
            self.spent = spent.max(units.of(quota.burst));
            self.at = Tick(now.0.saturating_sub(ago));
        }
        self.usage(quota, now)
    }

    /// Adds `cost` to what is spent at `now`, whatever the burst.
    pub fn owe(&mut self, rate: Rate, cost: u32, now: Tick) {
        let (units, now) = (rate.units(), now.max(self.at));
        let spent = self.spent_at(units, now).saturating_add(units.of(cost));
        *self = Self { spent, token: units.token, at: now };
    }

    /// The key's usage at `now`.
    #[must_use]
    pub fn usage(&self, quota: BucketQuota, now: Tick) -> Usage {
        let now = now.max(self.at);
        let units = quota.rate.units();
        units.usage(quota, self.counted_at(quota, now), now)
    }

    /// A bucket with `spent` units spent and not yet refilled at `at`, of which a token has
    /// `token`.
    #[must_use]
    pub fn of(spent: u64, token: u64, at: Tick) -> Self {
        Self { spent, token: token.max(1), at }
    }

    /// The units spent and not yet refilled at [`Bucket::at`].
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// The units of a token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The tick of the last charge, or an earlier one where the bucket was in debt.
    #[must_use]
    pub fn at(&self) -> Tick {
        self.at
    }

    /// The tokens spent and not yet refilled at [`Bucket::at`], rounded up.
    #[must_use]
    pub fn tokens_spent(&self) -> u32 {
        u32::try_from(self.spent.div_ceil(self.token.max(1))).unwrap_or(u32::MAX)
    }

    /// The units spent at `now`, in units of this size.
    fn spent_at(&self, units: Units, now: Tick) -> u64 {
        self.spent_in(units.token).saturating_sub(self.back_at(units, now))
    }

    /// The units spent at `now` that count under a quota: a bucket in debt was empty at
    /// [`Bucket::at`].
    fn counted_at(&self, quota: BucketQuota, now: Tick) -> u64 {
        let units = quota.rate.units();
        let spent = self.spent_in(units.token).min(units.of(quota.burst));
        spent.saturating_sub(self.back_at(units, now))
    }

    /// The units that come back from [`Bucket::at`] until `now`.
    fn back_at(&self, units: Units, now: Tick) -> u64 {
        now.0.saturating_sub(self.at.0).saturating_mul(units.refill)
    }

    /// What was spent and not yet refilled at [`Bucket::at`], when a token has `token` units,
    /// rounded up.
    #[must_use]
    pub fn spent_in(&self, token: u64) -> u64 {
        if token == self.token {
            return self.spent;
        }
        // Two factors of 64 bits make at most 128 bits.
        let spent = (u128::from(self.spent) * u128::from(token)).div_ceil(self.token.max(1).into());
        u64::try_from(spent).unwrap_or(u64::MAX)
    }
}

impl Units {
    fn of(self, tokens: u32) -> u64 {
        self.token.saturating_mul(tokens.into())
    }

    /// The usage of a bucket of which `spent` is spent at `now`.
    fn usage(self, quota: BucketQuota, spent: u64, now: Tick) -> Usage {
        let left = self.of(quota.burst).saturating_sub(spent) / self.token;
        Usage {
            limit: quota.burst,
            remaining: u32::try_from(left).unwrap_or(quota.burst),
            full_at: self.refilled_at(now, spent),
        }
    }

    /// When `spent` at `from` is refilled, rounded up to a whole tick.
    fn refilled_at(self, from: Tick, spent: u64) -> Tick {
        Tick(from.0.saturating_add(spent.div_ceil(self.refill.max(1))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The simplest correct version: the available tokens since the last admission, in a unit that
    /// divides every rate of the tests, in an integer wide enough never to overflow.
    struct Model {
        tokens: u128,
        at: u64,
    }

    /// Units of a token of the model: each period of [`any_rate`] in microseconds divides it.
    const UNIT: u128 = 2_678_400_000_000 * 77;

    impl Model {
        fn tokens_at(&self, quota: BucketQuota, now: u64) -> u128 {
            let unit = UNIT / quota.rate.period().as_micros();
            let new = u128::from(now - self.at) * u128::from(quota.rate.tokens()) * unit;
            (self.tokens + new).min(u128::from(quota.burst) * UNIT)
        }

        fn fits(&self, quota: BucketQuota, cost: u32, now: u64) -> bool {
            self.tokens_at(quota, now) >= u128::from(cost) * UNIT
        }
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        let millis = prop::sample::select(vec![
            1,
            7,
            77,
            1_000,
            30_000,
            60_000,
            900_000,
            3_600_000,
            86_400_000,
            2_678_400_000,
        ]);
        let tokens = prop_oneof![1..50_u32, 1..=TOKENS_MAX];
        (tokens, millis)
            .prop_map(|(tokens, millis)| Rate::new(tokens, Duration::from_millis(millis)).unwrap())
    }

    fn any_burst() -> impl Strategy<Value = u32> {
        prop_oneof![1..300_u32, 1..=TOKENS_MAX]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_random_sequence_is_decided_as_by_counting_tokens(
            rate in any_rate(),
            burst in any_burst(),
            steps in prop::collection::vec((0..400_u32, any_burst()), 1..300),
        ) {
            let quota = BucketQuota { rate, burst };
            prop_assert_eq!(UNIT % rate.period().as_micros(), 0);
            let mut bucket = Bucket::default();
            let mut model = Model { tokens: u128::from(burst) * UNIT, at: 0 };
            let mut now = 0;
            for (wait, cost) in steps {
                // Some requests cost too much, and waits are about as long as the refill.
                let cost = if cost > 2 * burst { 1 + cost % burst } else { cost };
                let refill = rate.micros_of(burst).min(1 << 50);
                now += refill * u64::from(wait) / 1_000 + u64::from(wait % 3);
                let fits = model.fits(quota, cost, now);
                match bucket.decide(quota, cost, Tick(now)) {
                    Decision::Admit => {
                        prop_assert!(fits);
                        let usage = bucket.charge(quota, cost, Tick(now));
                        model.tokens = model.tokens_at(quota, now) - u128::from(cost) * UNIT;
                        model.at = now;
                        prop_assert_eq!(u128::from(usage.remaining), model.tokens / UNIT);
                        let full = u128::from(burst) * UNIT;
                        prop_assert_eq!(model.tokens_at(quota, usage.full_at.0), full);
                        if usage.full_at > Tick(now) {
                            prop_assert!(model.tokens_at(quota, usage.full_at.0 - 1) < full);
                        }
                    }
                    Decision::Refuse { retry_at } => {
                        prop_assert!(!fits);
                        prop_assert!(!model.fits(quota, cost, retry_at.0 - 1));
                        prop_assert!(model.fits(quota, cost, retry_at.0));
                    }
                    Decision::TooLarge => prop_assert!(cost > burst),
                }
            }
        }

        #[test]
        fn a_bucket_in_debt_counts_as_an_empty_one_and_stays_in_debt(
            rate in any_rate(),
            burst in 1..300_u32,
            debt in 1..10_000_u32,
            steps in prop::collection::vec((0..400_u32, 1..20_u32), 1..200),
        ) {
            let (wide, tight) =
                (BucketQuota { rate, burst: burst + debt }, BucketQuota { rate, burst });
            let mut bucket = Bucket::default();
            let _ = bucket.charge(wide, wide.burst, Tick(0));
            let spent = |bucket: &Bucket, now| bucket.spent_at(rate.units(), Tick(now));
            let (mut model, mut now, mut lost) = (Model { tokens: 0, at: 0 }, 0, 0);
            for (wait, cost) in steps {
                let cost = cost.min(burst);
                now += rate.micros_of(cost).min(1 << 50) * u64::from(wait) / 200;
                let before = spent(&bucket, now);
                match bucket.decide(tight, cost, Tick(now)) {
                    Decision::Admit => {
                        prop_assert!(model.fits(tight, cost, now));
                        model.tokens = model.tokens_at(tight, now) - u128::from(cost) * UNIT;
                        model.at = now;
                        let usage = bucket.charge(tight, cost, Tick(now));
                        prop_assert!(u128::from(usage.remaining) <= model.tokens / UNIT);
                        let after = before + rate.units().of(cost);
                        let added = spent(&bucket, now) - after;
                        prop_assert!(added < rate.refill_units());
                        // What a bucket in debt has came back in whole microseconds.
                        lost += 1;
                    }
                    Decision::Refuse { retry_at } => {
                        let back = u128::from(rate.tokens()) * (UNIT / rate.period().as_micros());
                        let wanted = u128::from(cost) * UNIT + lost * back;
                        prop_assert!(model.tokens_at(tight, now) < wanted);
                        prop_assert!(model.fits(tight, cost, retry_at.0));
                    }
                    Decision::TooLarge => prop_assert!(false),
                }
            }
        }

        #[test]
        fn no_stretch_admits_more_than_the_burst_and_the_flow(
            rate in 1..100_u32,
            burst in 1..50_u32,
            waits in prop::collection::vec(0..300_000_u64, 1..300),
        ) {
            let quota = BucketQuota { rate: Rate::per_second(rate), burst };
            let (mut bucket, mut admitted, mut now) = (Bucket::default(), Vec::new(), 0);
            for wait in waits {
                now += wait;
                if bucket.decide(quota, 1, Tick(now)) == Decision::Admit {
                    let _ = bucket.charge(quota, 1, Tick(now));
                    admitted.push(now);
                }
            }
            for (first, start) in admitted.iter().enumerate() {
                for (last, end) in admitted.iter().enumerate().skip(first) {
                    let allowed = u64::from(burst) * 1_000_000 + (end - start) * u64::from(rate);
                    prop_assert!((last - first + 1) as u64 * 1_000_000 <= allowed);
                }
            }
        }

        #[test]
        fn a_change_of_the_period_frees_nothing_and_adds_less_than_a_millionth_of_a_token(
            first in any_rate(),
            others in prop::collection::vec(any_rate(), 1..20),
            spent in any_burst(),
            wait in 0..1_000_000_u64,
        ) {
            let burst = TOKENS_MAX;
            let mut bucket = Bucket::default();
            let _ = bucket.charge(BucketQuota { rate: first, burst }, spent, Tick(0));
            let _ = bucket.charge(BucketQuota { rate: first, burst }, 0, Tick(wait));
            for rate in others {
                let before = bucket;
                let _ = bucket.charge(BucketQuota { rate, burst }, 0, Tick(wait));
                let (old, new) = (
                    u128::from(before.spent) * u128::from(bucket.token),
                    u128::from(bucket.spent) * u128::from(before.token),
                );
                prop_assert!(new >= old, "a change of the period freed something");
                // One token is token × token of these units.
                let token = u128::from(before.token) * u128::from(bucket.token);
                prop_assert!((new - old) * 1_000_000 < token || new == old);
            }
        }

        #[test]
        fn no_rate_and_no_state_overflows(
            first in any_rate(), second in any_rate(), spent in any::<u64>(), token in any::<u64>(),
            at in any::<u64>(), now in any::<u64>(), cost in any_burst(),
        ) {
            for burst in [1, TOKENS_MAX] {
                let mut bucket = Bucket::of(spent, token, Tick(at));
                for rate in [first, second, first] {
                    let quota = BucketQuota { rate, burst };
                    let _ = bucket.decide(quota, cost, Tick(now));
                    let _ = bucket.charge(quota, cost, Tick(now));
                    let usage = bucket.usage(quota, Tick(now));
                    prop_assert!(usage.remaining < burst && usage.full_at >= Tick(now));
                }
            }
        }

        #[test]
        fn a_rate_is_read_as_it_is_printed(rate in any_rate(), millis in 1..2_678_400_000_u64) {
            let other = Rate::new(rate.tokens(), Duration::from_millis(millis)).unwrap();
            for rate in [rate, other] {
                prop_assert_eq!(Rate::parse(&rate.to_string()), Ok(rate));
            }
        }
    }

    #[test]
    fn a_rate_is_printed_in_its_shortest_form() {
        for text in ["50/s", "5000/h", "10000/d", "7/15m", "1/31d", "3/250ms", "60/m", "9/90s"] {
            assert_eq!(Rate::parse(text).unwrap().to_string(), text);
        }
        for (long, short) in [("7/60s", "7/m"), ("7/24h", "7/d"), ("7/1000ms", "7/s")] {
            assert_eq!(Rate::parse(long).unwrap().to_string(), short);
        }
        assert_eq!(Rate::parse("50/s"), Ok(Rate::per_second(50)));
    }

    #[test]
    fn an_error_of_a_rate_shows_what_to_write() {
        let errors = [
            ("50", "has no period: write tokens per period, such as 50/s, 5000/h"),
            ("/s", "`` is not a number of tokens"),
            ("-1/s", "`-1` is not a number of tokens"),
            ("1.5/s", "`1.5` is not a number of tokens"),
            ("+5/s", "`+5` is not a number of tokens"),
            ("5 /s", "`5 ` is not a number of tokens"),
            ("5/w", "`w` is not a period of ms, s, m, h or d: write tokens per period"),
            ("5/", "`` is not a period"),
            ("5/15", "`15` is not a period"),
            ("5/minute", "`minute` is not a period"),
            ("0/s", "from 1 to 1000000 tokens"),
            ("1000001/s", "from 1 to 1000000 tokens"),
            ("99999999999999999999/s", "from 1 to 1000000 tokens"),
            ("5/0s", "from 1ms to 31d"),
            ("5/32d", "from 1ms to 31d"),
            ("5/99999999999999999999d", "from 1ms to 31d"),
        ];
        for (text, part) in errors {
            let error = Rate::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Rate::new(1, Duration::from_micros(1_500)).is_err());
    }

    #[test]
    fn the_time_of_any_number_of_tokens_is_rounded_up() {
        assert_eq!(Rate::parse("7/31d").unwrap().micros_of(1), 382_628_571_429);
        // Their product needs more than 64 bits.
        let rate = Rate::parse("1000/31d").unwrap();
        assert_eq!(rate.micros_of(u32::MAX), 11_503_640_402_928_000_000);
    }

    #[test]
    fn tokens_per_hour_come_back_one_at_a_time() {
        let quota = BucketQuota { rate: Rate::parse("5000/h").unwrap(), burst: 10 };
        let mut bucket = Bucket::default();
        assert_eq!(bucket.charge(quota, 10, Tick(7)).full_at, Tick(7_200_007));
        let retry_at = Tick(720_007);
        assert_eq!(bucket.decide(quota, 1, Tick(7)), Decision::Refuse { retry_at });
        assert_eq!(bucket.decide(quota, 1, retry_at), Decision::Admit);
    }

    #[test]
    fn the_burst_is_there_at_once_and_then_one_token_every_twentieth_of_a_second() {
        let quota = BucketQuota { rate: Rate::per_second(50), burst: 200 };
        let mut bucket = Bucket::default();
        for left in (0..200).rev() {
            assert_eq!(bucket.decide(quota, 1, Tick(7)), Decision::Admit);
            assert_eq!(bucket.charge(quota, 1, Tick(7)).remaining, left);
        }
        assert_eq!(bucket.decide(quota, 1, Tick(7)), Decision::Refuse { retry_at: Tick(20_007) });
    }

    #[test]
    fn a_burst_lowered_and_raised_again_forgets_nothing() {
        let rate = Rate::per_second(1);
        let (wide, tight) = (BucketQuota { rate, burst: 10 }, BucketQuota { rate, burst: 2 });
        let mut bucket = Bucket::default();
        let _ = bucket.charge(wide, 6, Tick(0));
        assert_eq!(bucket.usage(tight, Tick(0)).remaining, 0);
        assert_eq!(bucket.usage(wide, Tick(0)).remaining, 4);
    }

    #[test]
    fn after_a_boost_a_request_waits_no_longer_than_for_an_empty_bucket() {
        let quota = BucketQuota { rate: Rate::per_second(1), burst: 10 };
        let boosted = BucketQuota { rate: Rate::per_second(500), burst: 500 };
        let mut bucket = Bucket::default();
        let _ = bucket.charge(boosted, 500, Tick(0));
        let retry_at = |bucket: &Bucket, now| match bucket.decide(quota, 1, Tick(now)) {
            Decision::Refuse { retry_at } => Some(retry_at.0),
            _ => None,
        };
        assert_eq!(retry_at(&bucket, 0), Some(1_000_000));
        assert_eq!(bucket.usage(quota, Tick(0)).full_at, Tick(10_000_000));
        assert_eq!(retry_at(&bucket, 1_000_000), None);
        let usage = bucket.charge(quota, 1, Tick(1_000_000));
        assert_eq!((usage.remaining, usage.full_at), (0, Tick(11_000_000)));
        assert_eq!(retry_at(&bucket, 1_500_000), Some(2_000_000));
        // At rest it saves up the burst, and no more.
        for left in (0..10).rev() {
            assert_eq!(retry_at(&bucket, 60_000_000), None);
            assert_eq!(bucket.charge(quota, 1, Tick(60_000_000)).remaining, left);
        }
        assert_eq!(retry_at(&bucket, 60_000_000), Some(61_000_000));
        // Another boost finds what the first one has spent, and what came back since.
        let wide = BucketQuota { rate: Rate::per_second(1), burst: 500 };
        assert_eq!(bucket.usage(wide, Tick(60_000_000)).remaining, 60 - 11);
    }

    #[test]
    fn a_bucket_is_its_units_and_its_tick() {
        let quota = BucketQuota { rate: Rate::parse("7/15m").unwrap(), burst: 9 };
        let mut bucket = Bucket::default();
        let _ = bucket.charge(quota, 5, Tick(0));
        let _ = bucket.charge(quota, 1, Tick(1_000_000));
        assert_eq!(bucket.tokens_spent(), 6);
        let copy = Bucket::of(bucket.spent(), bucket.token(), bucket.at());
        assert_eq!(copy, bucket);
    }

    #[test]
    fn a_clock_read_before_the_last_charge_counts_as_that_charge() {
        let quota = BucketQuota { rate: Rate::per_second(1), burst: 1 };
        let mut bucket = Bucket::default();
        let _ = bucket.charge(quota, 1, Tick(100));
        let retry_at = Tick(1_000_100);
        assert_eq!(bucket.decide(quota, 1, Tick(90)), Decision::Refuse { retry_at });
    }

    #[test]
    fn an_hour_of_rest_saves_up_no_more_than_the_burst() {
        let quota = BucketQuota { rate: Rate::per_second(50), burst: 200 };
        let mut bucket = Bucket::default();
        let _ = bucket.charge(quota, 200, Tick(0));
        assert_eq!(bucket.usage(quota, Tick(3_600_000_000)).remaining, 200);
    }
}
