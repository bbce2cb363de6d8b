//! Reads what the script that decides in the shared store replies. (core)
//!
//! Invariant: a reply that is not exactly as long as its checks need, or has an unknown number in
//! it, is a [`BadReply`], never a verdict.
//!
//! Not here: the arguments of a call (`shared::call`), the decision (`decide.lua`).

use arrayvec::ArrayVec;
use weir_common::limit::quota::Quota;
use weir_common::time::UnixTime;

use super::super::CHECKS_MAX;
use super::call::SharedCheck;

/// The highest time of a reply: a bucket that is full after the year 2255 is full then.
pub(super) const NUMBER_MAX: u64 = 1 << 53;

/// What the store replies to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedReply {
    /// What became of the request.
    pub outcome: SharedOutcome,
    /// The store's time.
    pub now: UnixTime,
    /// The result of each check, in their order; none of a call that is late.
    pub results: ArrayVec<SharedResult, CHECKS_MAX>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedOutcome {
    /// Every enforced check admits, and all that admit are charged unless it is a preview.
    Admitted,
    /// An enforced check refuses: nothing is charged.
    Refused,
    /// The store has lost what a check claims: nothing is charged.
    Forgot,
    /// The call arrived too late: nothing is charged.
    Late,
}

/// The result of one check, in the store's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedResult {
    /// Whether the limit alone would admit the request.
    pub decision: SharedDecision,
    /// Whether the store had less than the check claimed.
    pub forgot: bool,
    /// What is left of the allowance, after the charge if there was one.
    pub remaining: u32,
    /// When the whole allowance is back if nothing more is charged.
    pub full_at: UnixTime,
    /// What the gateway must remember; nothing if nothing was charged.
    pub receipt: Option<Receipt>,
    /// Of a bucket: the tokens that the gateway may spend without a call; they count as spent for
    /// the others. Of requests in flight: the slots that it may use without a call.
    pub lease: Option<Lease>,
    /// Of a bucket that refuses: when the first lease ends of those that are not returned. Until
    /// then one of them may be, and the request would pass earlier than `retry_at`.
    pub ask_again_at: Option<UnixTime>,
}

/// Tokens of a bucket, or slots of requests in flight, that one gateway may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How many.
    pub tokens: u32,
    /// From when on it may not: tokens count as spent then, and others may get the slots.
    pub ends: UnixTime,
}

/// One limit's decision, in the store's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedDecision {
    /// It fits.
    Admit,
    /// It does not fit now.
    Refuse {
        /// When it would, if nothing else is charged.
        retry_at: UnixTime,
    },
    /// It costs more than the whole quota.
    TooLarge,
}

/// A charge as the store has counted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Of a window: names the admission. Of a bucket: the time of the charge. Of a calendar: when
    /// the period started.
    pub stamp: UnixTime,
    /// Of a window: the admission's number. Otherwise 0.
    pub sequence: u64,
}

/// A reply that no script of this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// It has another length than its checks need.
    #[error("the reply of the shared store has {0} bytes")]
    Length(usize),
    /// An outcome or a decision has a number that has no meaning.
    #[error("the reply of the shared store has the unknown number {0}")]
    Unknown(u8),
    /// A time is not a number of microseconds.
    #[error("the reply of the shared store has an invalid time")]
    Time,
}

/// Reads the reply to a call with these checks.
pub fn decode(reply: &[u8], checks: &[SharedCheck]) -> Result<SharedReply, BadReply> {
    let mut reader = Reader { rest: reply, length: reply.len() };
    let outcome = match reader.byte()? {
        0 => SharedOutcome::Admitted,
        1 => SharedOutcome::Refused,
        2 => SharedOutcome::Forgot,
        3 => SharedOutcome::Late,
        other => return Err(BadReply::Unknown(other)),
    };
    let now = reader.time()?;
    let mut results = ArrayVec::new();
    let expected = if outcome == SharedOutcome::Late { 0 } else { checks.len() };
    for check in checks.iter().take(expected) {
        let is_leased = matches!(check.quota, Quota::Bucket(_) | Quota::Concurrency(_));
        let result = reader.result(is_leased)?;
        results.try_push(result).map_err(|_| BadReply::Length(reply.len()))?;
    }
    if !reader.rest.is_empty() {
        return Err(BadReply::Length(reply.len()));
    }
    Ok(SharedReply { outcome, now, results })
}

struct Reader<'r> {
    rest: &'r [u8],
    length: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadReply> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(BadReply::Length(self.length))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, BadReply> {
        let [byte] = self.take()?;
        Ok(byte)
    }

    /// A whole number. Up to [`NUMBER_MAX`] it is exact, and a higher one counts as that.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is in the range of the result"
    )]
    fn number(&mut self) -> Result<u64, BadReply> {
        let number = f64::from_be_bytes(self.take()?);
        let whole = number >= 0.0 && number.is_finite() && number.fract() == 0.0;
        if whole { Ok((number as u64).min(NUMBER_MAX)) } else { Err(BadReply::Time) }
    }

    fn time(&mut self) -> Result<UnixTime, BadReply> {
        self.number().map(UnixTime)
    }

    fn result(&mut self, is_leased: bool) -> Result<SharedResult, BadReply> {
        let decision = self.byte()?;
        let forgot = match self.byte()? {
            0 => false,
            1 => true,
            other => return Err(BadReply::Unknown(other)),
        };
        let retry_at = self.time()?;
        let decision = match decision {
            0 => SharedDecision::Admit,
            1 => SharedDecision::Refuse { retry_at },
            2 => SharedDecision::TooLarge,
            other => return Err(BadReply::Unknown(other)),
        };
        let remaining = u32::from_be_bytes(self.take()?);
        let full_at = self.time()?;
        let (stamp, sequence) = (self.time()?, self.number()?);
        // Nothing is stamped with 1970.
        let receipt = (stamp.0 > 0).then_some(Receipt { stamp, sequence });
        let (tokens, ends) = match is_leased {
            true => (u32::from_be_bytes(self.take()?), self.time()?),
            false => (0, UnixTime(0)),
        };
        let lease = (tokens > 0).then_some(Lease { tokens, ends });
        let is_refused = matches!(decision, SharedDecision::Refuse { .. });
        let ask_again_at = (is_refused && ends.0 > 0).then_some(ends);
        Ok(SharedResult { decision, forgot, remaining, full_at, receipt, lease, ask_again_at })
    }
}
