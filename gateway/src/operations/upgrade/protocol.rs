//! The messages of an upgrade as bytes: a frame is a length, a kind and a body.
//!
//! The two processes may be different versions of the program, so [`PROTOCOL`] is compared first.
//! Ticks are those of the machine's monotonic clock, and mean the same to both.
//!
//! Not here: the order of messages (`successor`, `predecessor`), states (`limit::snapshot`).

use std::io::{self, Read, Write};
use std::time::Duration;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};
use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::{rolling, token_bucket};
use weir_common::time::{Tick, micros};

use crate::limit::key::{Key, LimitTag};
use crate::limit::limiter::RemoteVerdict;
use crate::limit::{CHECKS_MAX, CheckResult, LimitCheck, Quota, Verdict};
use crate::rules::retention::Retention;

/// The version of the protocol.
pub const PROTOCOL: u32 = 2;

/// The largest body of a frame: ten thousand boosts take half of it.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The new process has started; the body is its [`PROTOCOL`].
    Hello = 1,
    /// Has the listening sockets as ancillary data.
    Sockets,
    /// An [`Offer`]: which sockets these are, and the seed of the keys.
    Offer,
    /// The new process is ready to accept.
    Ready,
    /// The new process cannot take over; the body has the reason.
    Failed,
    /// Some of the states.
    States,
    /// All states have been sent; the body is [`OtherStates`].
    Moved,
    /// The new process has all states, and accepts.
    Received,
    /// The checks of a request in the old process.
    Check,
    /// The verdict on a [`Kind::Check`].
    Answer,
    /// The new process is stopping, and requests the old one to stop.
    End,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Sockets,
        Self::Offer,
        Self::Ready,
        Self::Failed,
        Self::States,
        Self::Moved,
        Self::Received,
        Self::Check,
        Self::Answer,
        Self::End,
    ];

    fn of(byte: u8) -> io::Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u8 == byte);
        known.ok_or_else(|| damaged("a frame of no known kind"))
    }
}

/// What the new process needs before it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The seed of the keys of states.
    pub seed: [u8; 16],
    /// The sockets, in the order in which they are sent.
    pub sockets: Vec<NamedSocket>,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSocket {
    /// Its listener: `http`, `https` or `admin`.
    pub listener: String,
    /// Its address in the settings.
    pub address: std::net::SocketAddr,
}

/// What is sent after the states.
#[derive(Debug, Serialize, Deserialize)]
pub struct OtherStates {
    /// The tick before which no state may be dropped.
    pub keep_until: u64,
    /// How long states were kept: the new rules may need to keep them longer.
    pub memory: Retention,
    /// Boosts: the bits of the key; requests, rate and burst, those that are raised; the tick at
    /// which the boost ends.
    pub boosts: Vec<([u8; 16], [Option<u32>; 3], u64)>,
}

/// A quota as the numbers that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowance {
    /// Requests, and the window in microseconds.
    Rolling(u32, u64),
    /// Rate and burst.
    Bucket(u32, u32),
}

impl From<Quota> for Allowance {
    fn from(quota: Quota) -> Self {
        match quota {
            Quota::Rolling(quota) => Self::Rolling(quota.requests, micros(quota.window)),
            Quota::Bucket(quota) => Self::Bucket(quota.rate, quota.burst),
        }
    }
}

impl From<Allowance> for Quota {
    fn from(allowance: Allowance) -> Self {
        match allowance {
            Allowance::Rolling(requests, window) => {
                Self::Rolling(rolling::Quota { requests, window: Duration::from_micros(window) })
            }
            Allowance::Bucket(rate, burst) => {
                Self::Bucket(token_bucket::BucketQuota { rate, burst })
            }
        }
    }
}

fn damaged(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Adds a frame to `bytes`.
pub fn put(bytes: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    let length = u32::try_from(body.len() + 1).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(body);
}

/// Writes a frame.
pub fn write(to: &mut impl Write, kind: Kind, body: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(body.len() + 5);
    put(&mut bytes, kind, body);
    to.write_all(&bytes)
}

/// Reads a frame.
pub fn read(from: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [a, b, c, d, kind] = head;
    let mut body = vec![0; body_length([a, b, c, d])?];
    from.read_exact(&mut body)?;
    Ok((Kind::of(kind)?, body))
}

fn body_length(length: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    let body = length.checked_sub(1).filter(|body| *body <= FRAME_BYTES_MAX);
    body.ok_or_else(|| damaged("a frame of no possible length"))
}

/// Reads messages in a `select!`: cancelling a read loses nothing.
pub struct Messages<R> {
    from: R,
    bytes: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    /// Messages read from `from`.
    pub fn new(from: R) -> Self {
        Self { from, bytes: Vec::new() }
    }

    /// The next frame, if it has been received already.
    pub fn ready(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = body_length(*length)?;
        let Some((kind, body)) = rest.split_first() else { return Ok(None) };
        let Some(body) = body.get(..length) else { return Ok(None) };
        let frame = (Kind::of(*kind)?, body.to_vec());
        self.bytes.drain(..5 + length);
        Ok(Some(frame))
    }

    /// The next frame; none where the other end has closed the connection.
    pub async fn next(&mut self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        loop {
            if let Some(frame) = self.ready()? {
                return Ok(Some(frame));
            }
            if self.from.read_buf(&mut self.bytes).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Writes the checks of a request.
pub fn put_checks(bytes: &mut Vec<u8>, checks: &[LimitCheck]) {
    for check in checks {
        bytes.extend_from_slice(&check.key.bits().to_le_bytes());
        bytes.extend_from_slice(&check.limit.bits().to_le_bytes());
        bytes.push(u8::from(check.enforced) | u8::from(check.known) << 1);
        put_quota(bytes, check.lasting);
    }
}

/// Reads what [`put_checks`] wrote.
pub fn read_checks(bytes: &[u8]) -> io::Result<ArrayVec<LimitCheck, CHECKS_MAX>> {
    let mut reader = Reader(bytes);
    let mut checks = ArrayVec::new();
    while !reader.0.is_empty() && !checks.is_full() {
        let key = Key::from_bits(u128::from_le_bytes(reader.next_array()?));
        let limit = LimitTag::from_bits(u128::from_le_bytes(reader.next_array()?));
        let [marks] = reader.next_array()?;
        let quota = reader.quota()?;
        let (enforced, known) = (marks & 1 != 0, marks & 2 != 0);
        checks.push(LimitCheck { enforced, known, ..LimitCheck::new(key, limit, quota) });
    }
    reader.end(checks)
}

/// Writes the verdict on a request, with the allowances that were checked.
pub fn put_answer(bytes: &mut Vec<u8>, verdict: &Verdict, checks: &[LimitCheck]) {
    bytes.push(u8::from(verdict.is_admitted()));
    for (answer, check) in verdict.answers().zip(checks) {
        let (kind, tick) = match answer.decision {
            Decision::Admit => (0, Tick(0)),
            Decision::Refuse { retry_at } => (1, retry_at),
            Decision::TooLarge => (2, Tick(0)),
        };
        let Usage { limit, remaining, full_at } = answer.usage;
        bytes.push(kind);
        bytes.extend_from_slice(&tick.0.to_le_bytes());
        bytes.extend_from_slice(&limit.to_le_bytes());
        bytes.extend_from_slice(&remaining.to_le_bytes());
        bytes.extend_from_slice(&full_at.0.to_le_bytes());
        put_quota(bytes, check.quota);
    }
}

/// Reads what [`put_answer`] wrote.
pub(super) fn answer(bytes: &[u8]) -> io::Result<RemoteVerdict> {
    let mut reader = Reader(bytes);
    let [admitted] = reader.next_array()?;
    let (mut answers, mut quotas) = (ArrayVec::new(), ArrayVec::new());
    while !reader.0.is_empty() && !answers.is_full() {
        let [kind] = reader.next_array()?;
        let retry_at = Tick(u64::from_le_bytes(reader.next_array()?));
        let decision = match kind {
            0 => Decision::Admit,
            1 => Decision::Refuse { retry_at },
            _ => Decision::TooLarge,
        };
        let limit = u32::from_le_bytes(reader.next_array()?);
        let remaining = u32::from_le_bytes(reader.next_array()?);
        let full_at = Tick(u64::from_le_bytes(reader.next_array()?));
        answers.push(CheckResult { decision, usage: Usage { limit, remaining, full_at } });
        quotas.push(reader.quota()?);
    }
    reader.end(RemoteVerdict { verdict: Verdict::new(answers, admitted != 0), quotas })
}

fn put_quota(bytes: &mut Vec<u8>, quota: Quota) {
    let (kind, first, second) = match Allowance::from(quota) {
        Allowance::Rolling(requests, window) => (0, requests, window),
        Allowance::Bucket(rate, burst) => (1, rate, u64::from(burst)),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&second.to_le_bytes());
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn next_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| damaged("a short frame"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn quota(&mut self) -> io::Result<Quota> {
        let [kind] = self.next_array()?;
        let first = u32::from_le_bytes(self.next_array()?);
        let second = u64::from_le_bytes(self.next_array()?);
        let burst = || u32::try_from(second).map_err(|_| damaged("a burst beyond all"));
        Ok(match kind {
            0 => Allowance::Rolling(first, second),
            _ => Allowance::Bucket(first, burst()?),
        }
        .into())
    }

    fn end<T>(&self, made: T) -> io::Result<T> {
        if self.0.is_empty() { Ok(made) } else { Err(damaged("a frame that goes on")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> [LimitCheck; 2] {
        let window = Duration::from_secs(60);
        let rolling = Quota::Rolling(rolling::Quota { requests: 3, window });
        let bucket = Quota::Bucket(token_bucket::BucketQuota { rate: 5, burst: 7 });
        let check = |bits, quota| LimitCheck {
            enforced: bits > 1,
            known: bits == 1,
            ..LimitCheck::new(Key::from_bits(bits), LimitTag::from_bits(bits + 1), quota)
        };
        [check(1, rolling), check(u128::MAX - 1, bucket)]
    }

    #[test]
    fn a_check_arrives_as_it_was_sent() {
        let mut bytes = Vec::new();
        put_checks(&mut bytes, &checks());
        assert_eq!(format!("{:?}", read_checks(&bytes).unwrap()), format!("{:?}", checks()));
        for length in (1..bytes.len()).filter(|length| length * 2 != bytes.len()) {
            assert!(read_checks(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_verdict_arrives_as_it_was_sent() {
        let usage = Usage { limit: 3, remaining: 2, full_at: Tick(9) };
        for (decision, admitted) in [
            (Decision::Admit, true),
            (Decision::Refuse { retry_at: Tick(77) }, false),
            (Decision::TooLarge, false),
        ] {
            let answers = checks().map(|_| CheckResult { decision, usage });
            let verdict = Verdict::new(answers.into_iter().collect(), admitted);
            let mut bytes = Vec::new();
            put_answer(&mut bytes, &verdict, &checks());
            let decided = answer(&bytes).unwrap();
            assert_eq!(format!("{:?}", decided.verdict), format!("{verdict:?}"));
            assert_eq!(decided.quotas[..], checks().map(|check| check.quota));
            assert!(answer(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn a_frame_of_no_kind_or_length_is_refused() {
        let mut bytes = Vec::new();
        put(&mut bytes, Kind::Moved, b"what");
        assert_eq!(read(&mut bytes.as_slice()).unwrap(), (Kind::Moved, b"what".to_vec()));
        for (at, byte) in [(4, 0), (4, 12), (3, 255), (0, 0)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert!(read(&mut bytes.as_slice()).is_err(), "{at} {byte}");
        }
    }
}
