//! The messages of an upgrade as bytes: a frame is a length, a kind and a body.
//!
//! The two processes may be different versions of the program, so [`PROTOCOL`] is compared first.
//! Ticks are those of the machine's monotonic clock, and mean the same to both.
//!
//! Not here: the order of messages (`old_process`, `new_process`), states (`limit::snapshot`).

use std::io::{self, Read, Write};

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt};
use weir_common::directory::values::Values;
use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::{Moment, Tick};

use crate::limit::key::{Key, LimitTag};
use crate::limit::limiter::RemoteVerdict;
use crate::limit::{CHECKS_MAX, CheckResult, Horizon, LimitCheck, Quota, StoreFailure, Verdict};
use crate::rules::retention::Retention;

/// The version of the protocol.
pub const PROTOCOL: u32 = 4;

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
    /// Some of the states, or of the keys that a shared store counts.
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
    /// Keys of requests in flight that have ended in the old process.
    Released,
    /// There is no verdict on a [`Kind::Check`]: the shared store is away, for one.
    NoVerdict,
}

impl Kind {
    const ALL: [Self; 13] = [
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
        Self::Released,
        Self::NoVerdict,
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
    /// Whether its counters are in a shared store.
    #[serde(default)]
    pub is_shared: bool,
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
    /// Boosts: the bits of the key, the raised values, the tick at which the boost ends.
    pub boosts: Vec<([u8; 16], Map<String, Value>, u64)>,
    /// The number of the newest reset in a shared store that was applied.
    pub resets: u64,
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

/// One check of a request.
#[derive(Serialize, Deserialize)]
struct CheckFrame {
    key: [u8; 16],
    limit: [u8; 16],
    /// Without a boost.
    values: Map<String, Value>,
    /// Its window and token.
    horizon: [u64; 2],
    cost: u32,
    enforced: bool,
    known: bool,
    on_failure: StoreFailure,
    slot: u64,
}

/// One answer to a check.
#[derive(Serialize, Deserialize)]
struct AnswerFrame {
    /// Whether the limit would admit the request; else when, if it ever would.
    admits: bool,
    retry_at: Option<u64>,
    limit: u32,
    remaining: u32,
    full_at: u64,
    /// The allowance that was checked, with a boost.
    values: Map<String, Value>,
}

/// Writes the checks of a request.
pub fn put_checks(bytes: &mut Vec<u8>, checks: &[LimitCheck]) -> io::Result<()> {
    let frame = |check: &LimitCheck| CheckFrame {
        key: check.key.bits().to_le_bytes(),
        limit: check.limit.bits().to_le_bytes(),
        values: Values::of(check.lasting).to_json(),
        horizon: [check.horizon.window, check.horizon.token],
        cost: check.cost,
        enforced: check.enforced,
        known: check.known,
        on_failure: check.on_failure,
        slot: check.slot,
    };
    Ok(serde_json::to_writer(bytes, &checks.iter().map(frame).collect::<Vec<_>>())?)
}

/// Reads what [`put_checks`] wrote; calendars have the period of `now`.
pub fn read_checks(bytes: &[u8], now: Moment) -> io::Result<ArrayVec<LimitCheck, CHECKS_MAX>> {
    let frames: Vec<CheckFrame> = serde_json::from_slice(bytes)?;
    let check = |frame: CheckFrame| {
        let key = Key::from_bits(u128::from_le_bytes(frame.key));
        let limit = LimitTag::from_bits(u128::from_le_bytes(frame.limit));
        let [window, token] = frame.horizon;
        let horizon = Horizon { window, token };
        let made = LimitCheck::new(key, limit, quota(&frame.values)?.at(now));
        let CheckFrame { cost, enforced, known, on_failure, slot, .. } = frame;
        Ok(LimitCheck { horizon, cost, enforced, known, on_failure, slot, ..made })
    };
    frames.into_iter().take(CHECKS_MAX).map(check).collect()
}

/// Writes keys of requests in flight that have ended.
pub fn put_released(bytes: &mut Vec<u8>, keys: &[Key]) {
    keys.iter().for_each(|key| bytes.extend_from_slice(&key.bits().to_le_bytes()));
}

/// Reads what [`put_released`] wrote.
pub fn read_released(bytes: &[u8]) -> io::Result<Vec<Key>> {
    let (keys, rest) = bytes.as_chunks::<16>();
    let key = |bits: &[u8; 16]| Key::from_bits(u128::from_le_bytes(*bits));
    if rest.is_empty() { Ok(keys.iter().map(key).collect()) } else { Err(damaged("half a key")) }
}

/// Writes the verdict on a request, with the allowances that were checked.
pub fn put_answer(bytes: &mut Vec<u8>, verdict: &Verdict, checks: &[LimitCheck]) -> io::Result<()> {
    let frame = |(answer, check): (&CheckResult, &LimitCheck)| AnswerFrame {
        admits: answer.decision == Decision::Admit,
        retry_at: match answer.decision {
            Decision::Refuse { retry_at } => Some(retry_at.0),
            Decision::Admit | Decision::TooLarge => None,
        },
        limit: answer.usage.limit,
        remaining: answer.usage.remaining,
        full_at: answer.usage.full_at.0,
        values: Values::of(check.quota).to_json(),
    };
    let frames: Vec<AnswerFrame> = verdict.answers().zip(checks).map(frame).collect();
    Ok(serde_json::to_writer(bytes, &(verdict.is_admitted(), frames))?)
}

/// Reads what [`put_answer`] wrote; calendars have the period of `now`.
pub(super) fn answer(bytes: &[u8], now: Moment) -> io::Result<RemoteVerdict> {
    let (admitted, frames): (bool, Vec<AnswerFrame>) = serde_json::from_slice(bytes)?;
    let (mut answers, mut quotas) = (ArrayVec::new(), ArrayVec::new());
    for frame in frames.into_iter().take(CHECKS_MAX) {
        let decision = match (frame.admits, frame.retry_at) {
            (true, _) => Decision::Admit,
            (false, Some(retry_at)) => Decision::Refuse { retry_at: Tick(retry_at) },
            (false, None) => Decision::TooLarge,
        };
        let (limit, remaining, full_at) = (frame.limit, frame.remaining, Tick(frame.full_at));
        answers.push(CheckResult { decision, usage: Usage { limit, remaining, full_at } });
        quotas.push(quota(&frame.values)?.at(now));
    }
    Ok(RemoteVerdict { verdict: Verdict::new(answers, admitted), quotas })
}

fn quota(values: &Map<String, Value>) -> io::Result<Quota> {
    values_of(values)?.over(None).map_err(|_| damaged("an invalid quota"))
}

/// Reads values that [`Values::to_json`] wrote.
pub fn values_of(members: &Map<String, Value>) -> io::Result<Values> {
    let mut is_wrong = false;
    let values = Values::from_json(members, |_, _| is_wrong = true);
    if is_wrong { Err(damaged("an invalid value")) } else { Ok(values) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_common::time::UnixTime;

    use super::*;

    const NOW: Moment = Moment { tick: Tick(1 << 45), unix: UnixTime(1_795_000_000_000_000) };

    fn checks() -> [LimitCheck; 4] {
        let quota = |json: Value| quota(json.as_object().unwrap()).unwrap();
        let rolling = quota(json!({"algorithm": "rolling_window", "requests": 3, "window": "1m"}));
        let bucket = quota(json!({"algorithm": "token_bucket", "rate": "5/h", "burst": 7}));
        let day = json!({"algorithm": "calendar_day", "requests": 9, "time_zone": "Asia/Tokyo"});
        let flight = quota(json!({"algorithm": "concurrency", "requests": 3}));
        let check = |bits, quota| LimitCheck {
            enforced: bits > 1,
            known: bits == 1,
            cost: 7,
            ..LimitCheck::new(Key::from_bits(bits), LimitTag::from_bits(bits + 1), quota)
        };
        [
            check(1, rolling),
            check(u128::MAX - 1, bucket),
            check(2, quota(day).at(NOW)),
            check(3, flight),
        ]
    }

    #[test]
    fn a_check_arrives_as_it_was_sent() {
        let mut bytes = Vec::new();
        put_checks(&mut bytes, &checks()).unwrap();
        assert_eq!(format!("{:?}", read_checks(&bytes, NOW).unwrap()), format!("{:?}", checks()));
        for length in 0..bytes.len() {
            assert!(read_checks(&bytes[..length], NOW).is_err(), "{length}");
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
            put_answer(&mut bytes, &verdict, &checks()).unwrap();
            let decided = answer(&bytes, NOW).unwrap();
            assert_eq!(format!("{:?}", decided.verdict), format!("{verdict:?}"));
            assert_eq!(decided.quotas[..], checks().map(|check| check.quota));
            assert!(answer(&bytes[..bytes.len() - 1], NOW).is_err());
        }
    }

    #[test]
    fn a_frame_of_no_kind_or_length_is_refused() {
        let mut bytes = Vec::new();
        put(&mut bytes, Kind::Moved, b"what");
        assert_eq!(read(&mut bytes.as_slice()).unwrap(), (Kind::Moved, b"what".to_vec()));
        for (at, byte) in [(4, 0), (4, 14), (3, 255), (0, 0)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert!(read(&mut bytes.as_slice()).is_err(), "{at} {byte}");
        }
    }
}
