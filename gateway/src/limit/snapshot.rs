//! Writes the states of limits when a process ends, and reads them when the next one starts.
//!
//! Times are written as wall-clock times, because ticks mean nothing after a restart. Windows stay
//! exact: a request admitted 50 s before the stop leaves a window of one minute 10 s after it.
//!
//! # Invariants
//!
//! 1. A file that is truncated or has another format is rejected; no part of it is used.
//! 2. A clock set back between the two processes frees no allowance: a time in the future is read
//!    as now. Where both processes count by one clock, as by the machine's in an upgrade or by that
//!    of a shared store, it is read as it is: stamps of a shared store name its admissions there.
//! 3. Requests in flight are not written: they end with the process.
//! 4. The keys that a shared store counts are written with their last checks: without these the
//!    next process could not tell the store of a key before a request of it.
//! 5. A state that must not be dropped yet is written even if it equals a fresh one, and the next
//!    process keeps it for the remaining time.
//!
//! # Not here
//!
//! Which file (`operations::persistence`), and when (`app`). The file contains the secret that keys
//! are derived from.

use std::time::Duration;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use weir_common::limit::calendar::{self, Calendar, CalendarQuota, CalendarUnit, Count};
use weir_common::limit::concurrency::{ConcurrencyQuota, InFlight};
use weir_common::limit::decision::Usage;
use weir_common::limit::rolling::{self, Log, RollingQuota};
use weir_common::limit::slots::{self, Slots};
use weir_common::limit::token_bucket::{Bucket, BucketQuota, Rate};
use weir_common::time::{Moment, Tick, UnixTime, micros};

use super::key::{Key, LimitTag, Seed};
use super::memory::MemoryStore;
use super::shard::CounterEntry;
use super::shared::sync_state::{SyncedKey, SyncedKeys};
use super::{Horizon, LimitCheck, Quota, State};

/// The first bytes of a snapshot of any layout.
pub const NAME: &[u8] = b"weir limits ";

/// The first bytes of the file: its name and the number of its layout.
const MAGIC: &[u8; 16] = b"weir limits 4\n\0\0";

/// The first bytes of a file of the layout before: it has no keys of a shared store, and no
/// checksum at its end.
const EARLIER_MAGIC: &[u8; 16] = b"weir limits 3\n\0\0";

/// A state is kept for a year at most, however wrong the clock was that wrote it.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Why a file is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It does not start with `MAGIC`.
    #[error("it is not a snapshot of weir-gateway's limits")]
    UnknownFormat,
    /// It is too short or too long, or was changed.
    #[error("it is cut short or damaged")]
    Damaged,
}

/// A snapshot that was read.
#[derive(Debug)]
pub struct Snapshot {
    /// The seed of its keys.
    pub seed: Seed,
    /// How long the rules of the process that wrote it keep states: a serialized `Retention`.
    pub memory: Vec<u8>,
    keep_until: Tick,
    kept: Vec<CounterEntry>,
    /// The keys that a shared store counts.
    pub synced: SyncedKeys,
}

/// One entry of a file, or of what an upgrade sends.
enum Entry {
    Counter(CounterEntry),
    Synced(SyncedKey),
}

impl Snapshot {
    /// Puts every state into `store`. Returns how many there are.
    pub fn restore(self, store: &MemoryStore) -> usize {
        let count = self.kept.len();
        store.keep_until(self.keep_until);
        self.kept.into_iter().for_each(|kept| store.restore(kept));
        count
    }
}

/// Writes every state of `store` that must not be dropped at `now`, and the keys that a shared
/// store counts; `memory` is how long the active rules keep states.
#[must_use]
pub fn write(
    (store, synced): (&MemoryStore, SyncedKeys<impl IntoIterator<Item = SyncedKey>>),
    seed: Seed,
    memory: &[u8],
    now: Moment,
) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&seed.bytes());
    bytes.extend_from_slice(&now.unix_of(store.kept_until()).0.to_le_bytes());
    bytes.extend_from_slice(&(memory.len() as u64).to_le_bytes());
    bytes.extend_from_slice(memory);
    bytes.extend_from_slice(&synced.resets.to_le_bytes());
    let count_at = bytes.len();
    bytes.extend_from_slice(&0_u64.to_le_bytes());
    let mut count = 0_u64;
    store.each(now.tick, |kept| {
        if !matches!(kept.state, State::InFlight(_)) {
            count += 1;
            put(&mut bytes, kept, now);
        }
    });
    for own in synced.keys {
        count += 1;
        put_synced(&mut bytes, &own, now);
    }
    if let Some(place) = bytes.get_mut(count_at..count_at + 8) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    let checksum = checksum_of(bytes.get(MAGIC.len()..).unwrap_or_default());
    bytes.extend(checksum);
    bytes
}

fn checksum_of(bytes: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    digest(&SHA256, bytes).as_ref().try_into().unwrap_or_default()
}

/// Writes one state, as it is at `now`.
pub fn put(bytes: &mut Vec<u8>, kept: &CounterEntry, now: Moment) {
    let mut number = |number: u64| bytes.extend_from_slice(&number.to_le_bytes());
    let time = |tick: Tick| now.unix_of(tick).0;
    let [low, high] = halves(kept.key.bits());
    number(low);
    number(high);
    number(time(kept.forgotten_at));
    let known = u64::from(kept.known);
    match &kept.state {
        State::Log(log) => {
            number(known | if log.is_wide() { WIDE_LOG } else { LOG });
            number(log.count().into());
            log.times().for_each(|tick| number(time(tick)));
        }
        State::Slots(slots) => {
            number(known | SLOTS);
            number(micros(slots.grain()));
            number(slots.counts().count() as u64);
            for (tick, count) in slots.counts() {
                number(time(tick));
                number(count.into());
            }
        }
        State::Bucket(bucket) => {
            number(known | BUCKET);
            number(bucket.spent());
            number(bucket.token());
            number(time(bucket.at()));
        }
        State::Count(count) => {
            number(known | COUNT);
            number(count.used().into());
            number(count.starts().0);
            number(time(count.at()));
        }
        State::InFlight(in_flight) => {
            number(known | IN_FLIGHT);
            number(in_flight.count().into());
        }
    }
}

/// Writes one key that a shared store counts.
pub fn put_synced(bytes: &mut Vec<u8>, SyncedKey { check, usage }: &SyncedKey, now: Moment) {
    let mut numbers = |all: &[u64]| {
        all.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    };
    numbers(&halves(check.key.bits()));
    numbers(&[now.unix_of(usage.full_at).0, u64::from(check.known) | SYNCED]);
    numbers(&halves(check.limit.bits()));
    numbers(&[check.slot, check.horizon.window, check.horizon.token]);
    numbers(&[usage.limit.into(), usage.remaining.into()]);
    let requests = check.quota.limit().into();
    match check.quota {
        Quota::Rolling(own) => numbers(&[WINDOW, requests, micros(own.window)]),
        Quota::Bucket(BucketQuota { rate, .. }) => {
            numbers(&[RATE, requests, rate.tokens().into(), micros(rate.period())]);
        }
        Quota::Calendar(CalendarQuota { calendar: Calendar { unit, zone }, .. }) => {
            let unit = if unit == CalendarUnit::Day { DAY } else { MONTH };
            numbers(&[unit, requests, zone.name().len() as u64]);
            bytes.extend_from_slice(zone.name().as_bytes());
        }
        Quota::Concurrency(_) => numbers(&[FLIGHT, requests]),
    }
}

// The kinds of entries; bit 0 is whether the key was known.
const LOG: u64 = 0;
const WIDE_LOG: u64 = 2;
const SLOTS: u64 = 4;
const BUCKET: u64 = 6;
const COUNT: u64 = 8;
const IN_FLIGHT: u64 = 10;
const SYNCED: u64 = 12;

// The kinds of quotas of the latter.
const WINDOW: u64 = 0;
const RATE: u64 = 1;
const DAY: u64 = 2;
const MONTH: u64 = 3;
const FLIGHT: u64 = 4;

fn halves(bits: u128) -> [u64; 2] {
    let bytes = bits.to_le_bytes();
    let half = |from: usize| bytes.get(from..from + 8).and_then(|half| half.try_into().ok());
    [half(0), half(8)].map(|half| u64::from_le_bytes(half.unwrap_or_default()))
}

/// Reads what [`write`] wrote.
pub fn read(bytes: &[u8], now: Moment) -> Result<Snapshot, SnapshotError> {
    let (layout, rest) = bytes.split_first_chunk().ok_or(SnapshotError::UnknownFormat)?;
    let rest = match (layout, rest.split_last_chunk()) {
        (EARLIER_MAGIC, _) => rest,
        (MAGIC, Some((written, checksum))) if checksum_of(written) == *checksum => written,
        (MAGIC, _) => return Err(SnapshotError::Damaged),
        _ => return Err(SnapshotError::UnknownFormat),
    };
    let (seed, rest) = rest.split_first_chunk::<16>().ok_or(SnapshotError::Damaged)?;
    let mut reader = Reader { rest, now };
    let keep_until = reader.ahead()?;
    let memory = reader.bytes()?.to_vec();
    let resets = if layout == MAGIC { reader.number()? } else { 0 };
    let count = reader.number()?;
    let (mut kept, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..count {
        match reader.entry()? {
            Entry::Counter(entry) => kept.push(entry),
            Entry::Synced(own) => keys.push(own),
        }
    }
    if !reader.rest.is_empty() {
        return Err(SnapshotError::Damaged);
    }
    let synced = SyncedKeys { resets, keys };
    Ok(Snapshot { seed: Seed::new(*seed), memory, keep_until, kept, synced })
}

/// Reads what [`put`] and [`put_synced`] wrote, one after another: states into `store`. Returns how
/// many there are, and the keys that a shared store counts.
pub fn restore(
    bytes: &[u8],
    store: &MemoryStore,
    now: Moment,
) -> Result<(usize, Vec<SyncedKey>), SnapshotError> {
    let mut reader = Reader { rest: bytes, now };
    let (mut count, mut synced) = (0, Vec::new());
    while !reader.rest.is_empty() {
        match reader.entry()? {
            Entry::Counter(entry) => {
                store.restore(entry);
                count += 1;
            }
            Entry::Synced(own) => synced.push(own),
        }
    }
    Ok((count, synced))
}

struct Reader<'b> {
    rest: &'b [u8],
    now: Moment,
}

impl<'b> Reader<'b> {
    fn number(&mut self) -> Result<u64, SnapshotError> {
        let (number, rest) = self.rest.split_first_chunk::<8>().ok_or(SnapshotError::Damaged)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*number))
    }

    /// A time in the past. Where one clock has both times of all moments, it may be ahead of it, at
    /// most [`AHEAD_MAX`]: the stamp of an admission that follows many others.
    fn past(&mut self) -> Result<Tick, SnapshotError> {
        if self.now.tick.0 == self.now.unix.0 {
            return Ok(Tick(self.number()?).min(self.now.tick.plus(AHEAD_MAX)));
        }
        let unix = UnixTime(self.number()?);
        Ok(self.now.tick_of(unix))
    }

    /// A time in the future, or now; at most [`AHEAD_MAX`] ahead.
    fn ahead(&mut self) -> Result<Tick, SnapshotError> {
        let lasts = Duration::from_micros(self.number()?.saturating_sub(self.now.unix.0));
        Ok(self.now.tick.plus(lasts.min(AHEAD_MAX)))
    }

    fn bytes(&mut self) -> Result<&'b [u8], SnapshotError> {
        let length = usize::try_from(self.number()?).map_err(|_| SnapshotError::Damaged)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(SnapshotError::Damaged)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn duration(&mut self) -> Result<Duration, SnapshotError> {
        Ok(Duration::from_micros(self.number()?))
    }

    /// What [`halves`] made of 128 bits.
    fn bits(&mut self) -> Result<u128, SnapshotError> {
        let (low, high) = (self.number()?, self.number()?);
        Ok(u128::from(high) << 64 | u128::from(low))
    }

    fn entry(&mut self) -> Result<Entry, SnapshotError> {
        let key = Key::from_bits(self.bits()?);
        let forgotten_at = self.ahead()?;
        let marks = self.number()?;
        let state = match marks & !1 {
            LOG => self.log(false)?,
            WIDE_LOG => self.log(true)?,
            SLOTS => self.slots()?,
            BUCKET => self.bucket()?,
            COUNT => self.count()?,
            IN_FLIGHT => State::InFlight(InFlight::of(self.small()?)),
            SYNCED => return self.synced(key, forgotten_at, marks & 1 == 1),
            _ => return Err(SnapshotError::Damaged),
        };
        Ok(Entry::Counter(CounterEntry { key, forgotten_at, state, known: marks & 1 == 1 }))
    }

    fn synced(&mut self, key: Key, full_at: Tick, known: bool) -> Result<Entry, SnapshotError> {
        let (limit, slot) = (LimitTag::from_bits(self.bits()?), self.number()?);
        let horizon = Horizon { window: self.number()?, token: self.number()? };
        let (of, remaining) = (self.small()?, self.small()?);
        let made = LimitCheck::new(key, limit, self.quota()?);
        let check = LimitCheck { horizon, known, slot, ..made };
        Ok(Entry::Synced(SyncedKey { check, usage: Usage { limit: of, remaining, full_at } }))
    }

    fn quota(&mut self) -> Result<Quota, SnapshotError> {
        let (kind, requests) = (self.number()?, self.small()?);
        let unit = match kind {
            WINDOW => {
                let window = self.duration()?;
                return Ok(Quota::Rolling(RollingQuota { requests, window }));
            }
            RATE => {
                let rate = Rate::new(self.small()?, self.duration()?);
                let rate = rate.map_err(|_| SnapshotError::Damaged)?;
                return Ok(Quota::Bucket(BucketQuota { rate, burst: requests }));
            }
            FLIGHT => return Ok(Quota::Concurrency(ConcurrencyQuota { requests })),
            DAY => CalendarUnit::Day,
            MONTH => CalendarUnit::Month,
            _ => return Err(SnapshotError::Damaged),
        };
        let name = str::from_utf8(self.bytes()?).map_err(|_| SnapshotError::Damaged)?;
        let zone = calendar::parse_zone(name).map_err(|_| SnapshotError::Damaged)?;
        let quota = CalendarQuota::new(requests, Calendar { unit, zone });
        Ok(Quota::Calendar(quota.at(self.now)))
    }

    fn log(&mut self, wide: bool) -> Result<State, SnapshotError> {
        let count = self.number()?;
        if count > u64::from(rolling::EXACT_MAX) {
            return Err(SnapshotError::Damaged);
        }
        let times = (0..count).map(|_| self.past()).collect::<Result<Vec<_>, _>>()?;
        Ok(State::Log(Log::of(wide, times)))
    }

    fn slots(&mut self) -> Result<State, SnapshotError> {
        let (grain, count) = (Duration::from_micros(self.number()?), self.number()?);
        if count > slots::SLOTS_MAX as u64 {
            return Err(SnapshotError::Damaged);
        }
        let counts = (0..count).map(|_| Ok((self.past()?, self.small()?)));
        let counts = counts.collect::<Result<Vec<_>, _>>()?;
        Ok(State::Slots(Slots::of(grain, counts)))
    }

    fn bucket(&mut self) -> Result<State, SnapshotError> {
        let (spent, token) = (self.number()?, self.number()?);
        Ok(State::Bucket(Bucket::of(spent, token, self.past()?)))
    }

    fn count(&mut self) -> Result<State, SnapshotError> {
        let (used, starts) = (self.small()?, UnixTime(self.number()?));
        Ok(State::Count(Count::of(used, starts, self.past()?)))
    }

    fn small(&mut self) -> Result<u32, SnapshotError> {
        u32::try_from(self.number()?).map_err(|_| SnapshotError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Scope;
    use super::*;

    const SEED: Seed = Seed::new([5; 16]);
    const STOPPED: Moment =
        Moment { tick: Tick(90_000_000), unix: UnixTime(1_700_000_000_000_000) };
    /// Ten seconds later, in another process with another monotonic clock.
    const STARTED: Moment =
        Moment { tick: Tick(500_000_000), unix: UnixTime(1_700_000_010_000_000) };

    fn check(name: &str, quota: Quota) -> LimitCheck {
        let limit = SEED.limit("limit");
        let key = Key::new(SEED.owner(Scope::Workspace, name.as_bytes()), limit);
        LimitCheck { known: name.starts_with("known"), ..LimitCheck::new(key, limit, quota) }
    }

    fn window(requests: u32, seconds: u64) -> Quota {
        Quota::Rolling(RollingQuota { requests, window: Duration::from_secs(seconds) })
    }

    fn written(store: &MemoryStore, memory: &[u8], now: Moment) -> Vec<u8> {
        write((store, SyncedKeys::<[_; 0]>::default()), SEED, memory, now)
    }

    /// Three states, each charged fifty seconds before the stop and once more at the stop.
    fn stopped() -> (MemoryStore, Vec<LimitCheck>) {
        let store = MemoryStore::new(1_000);
        let checks = vec![
            check("minute", window(5, 60)),
            check("known hours", window(5, 7_200)),
            check("bucket", Quota::Bucket(BucketQuota { rate: Rate::per_second(1), burst: 100 })),
        ];
        for now in [Tick(40_000_000), STOPPED.tick] {
            assert!(checks.iter().all(|check| store.judge(&[*check], now).unwrap().is_admitted()));
        }
        (store, checks)
    }

    #[test]
    fn a_restored_window_continues() {
        let (store, checks) = stopped();
        let snapshot = read(&written(&store, b"", STOPPED), STARTED).unwrap();
        assert_eq!(snapshot.seed, SEED);
        let after = MemoryStore::new(1_000);
        assert_eq!(snapshot.restore(&after), 3);
        let left = |at: u64| {
            checks
                .iter()
                .map(|check| after.usage(check, Tick(at)).unwrap().remaining)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            left(STARTED.tick.0 - 1),
            [3, 3, 100 - 1 + 9].map(|n: u32| n.min(100)),
            "one microsecond before the first leaves the minute"
        );
        assert_eq!(left(STARTED.tick.0)[..2], [4, 3]);
        assert_eq!(after.fill().unknown_keys, 2);
    }

    #[test]
    fn a_long_window_is_exact_long_after_a_restart() {
        let hours = check("known hours", window(1, 7_200));
        let store = MemoryStore::new(10);
        assert!(store.judge(&[hours], STOPPED.tick).unwrap().is_admitted());
        let bytes = written(&store, b"", STOPPED);
        let unix = STOPPED.unix.plus(Duration::from_secs(6_600));
        let later = Moment { tick: Tick(10_000_000_000_000), unix };
        let after = MemoryStore::new(10);
        let _ = read(&bytes, later).unwrap().restore(&after);
        let at = |seconds: u64| later.tick.plus(Duration::from_secs(seconds));
        assert!(!after.judge(&[hours], at(599)).unwrap().is_admitted());
        assert!(after.judge(&[hours], at(600)).unwrap().is_admitted());
    }

    #[test]
    fn what_is_as_good_as_fresh_is_not_written() {
        let (store, _) = stopped();
        let later = Moment { tick: Tick(STOPPED.tick.0 + 3_600_000_000), ..STARTED };
        let snapshot = read(&written(&store, b"", later), later).unwrap();
        assert_eq!(snapshot.kept.len(), 1, "the window of hours");
    }

    #[test]
    fn what_may_not_be_dropped_yet_is_written_and_kept_after() {
        let (store, checks) = stopped();
        let stops = Moment { tick: STOPPED.tick.plus(Duration::from_secs(3_600)), ..STOPPED };
        store.keep_until(stops.tick.plus(Duration::from_secs(60)));
        let snapshot = read(&written(&store, b"windows", stops), STARTED).unwrap();
        assert_eq!(snapshot.memory, b"windows");
        let after = MemoryStore::new(1_000);
        assert_eq!(snapshot.restore(&after), 3);
        let hour = LimitCheck { quota: window(5, 7_200), ..checks[0] };
        let left_at = |seconds: u64| {
            let now = STARTED.tick.plus(Duration::from_secs(seconds));
            (0..after.shards()).for_each(|nth| after.sweep(nth, now));
            after.usage(&hour, now).map(|usage| usage.remaining).unwrap()
        };
        assert_eq!((left_at(49), left_at(50)), (3, 5), "sixty seconds from the stop, not before");
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_room() {
        let (store, checks) = stopped();
        let back = Moment { tick: STARTED.tick, unix: UnixTime(1_600_000_000_000_000) };
        let after = MemoryStore::new(1_000);
        let _ = read(&written(&store, b"", STOPPED), back).unwrap().restore(&after);
        assert_eq!(after.usage(&checks[0], back.tick).unwrap().remaining, 3);
    }

    #[test]
    fn a_stamp_ahead_of_the_one_clock_of_both_processes_stays_as_it_is() {
        let now = Moment { tick: Tick(STOPPED.unix.0), unix: STOPPED.unix };
        let check = check("known month", window(5, 31 * 86_400));
        let (store, restarted, upgraded) =
            (MemoryStore::new(10), MemoryStore::new(10), MemoryStore::new(10));
        let stamps = [now.tick.plus(Duration::from_secs(3)), now.tick.plus(Duration::from_secs(4))];
        stamps.iter().for_each(|at| store.record(&check, *at).unwrap());
        let _ = read(&written(&store, b"", now), now).unwrap().restore(&restarted);
        let mut bytes = Vec::new();
        store.each(now.tick, |kept| put(&mut bytes, kept, now));
        assert_eq!(restore(&bytes, &upgraded, now), Ok((1, Vec::new())));
        for store in [restarted, upgraded] {
            let found = store.look(check.key, |state| match state {
                State::Log(log) => log.times().collect(),
                _ => Vec::new(),
            });
            assert_eq!(found.unwrap(), stamps);
        }
    }

    /// Keys that a shared store counts, of each kind of quota.
    fn synced() -> Vec<SyncedKey> {
        let zone = calendar::parse_zone("Europe/Zurich").unwrap();
        let days = |unit| {
            let quota = CalendarQuota::new(9, Calendar { unit, zone });
            Quota::Calendar(quota.at(STOPPED))
        };
        let rate = Rate::new(50, Duration::from_secs(3_600)).unwrap();
        let quotas = [
            window(60, 600),
            Quota::Bucket(BucketQuota { rate, burst: 7 }),
            days(CalendarUnit::Day),
            days(CalendarUnit::Month),
            Quota::Concurrency(ConcurrencyQuota { requests: 3 }),
        ];
        let key = |(nth, quota): (u64, Quota)| {
            let made = check(if nth == 0 { "known" } else { "unknown" }, quota);
            let horizon = Horizon { window: 700 + nth, token: 3 };
            let full_at = STOPPED.tick.plus(Duration::from_secs(60 + nth));
            let usage = Usage { limit: 9, remaining: 4, full_at };
            SyncedKey { check: LimitCheck { horizon, slot: u64::MAX - nth, ..made }, usage }
        };
        (0..).zip(quotas).map(key).collect()
    }

    #[test]
    fn a_key_of_a_shared_store_is_read_as_it_was_written() {
        let store = MemoryStore::new(10);
        let keys = SyncedKeys { resets: 7, keys: synced().into_iter() };
        let bytes = write((&store, keys), SEED, b"", STOPPED);
        let snapshot = read(&bytes, STOPPED).unwrap();
        let SyncedKeys { resets, keys } = snapshot.synced;
        assert_eq!((resets, keys, snapshot.kept.len()), (7, synced(), 0));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length], STOPPED).is_err(), "{length}");
        }
        let mut sent = Vec::new();
        synced().iter().for_each(|own| put_synced(&mut sent, own, STOPPED));
        assert_eq!(restore(&sent, &store, STOPPED), Ok((0, synced())));
    }

    #[test]
    fn a_file_of_the_layout_before_is_read() {
        let (store, _) = stopped();
        let mut bytes = written(&store, b"", STOPPED);
        bytes[..MAGIC.len()].copy_from_slice(EARLIER_MAGIC);
        // It has no number of resets, before which are the seed, a time and no memory.
        bytes.drain(48..56);
        bytes.truncate(bytes.len() - SHA256_OUTPUT_LEN);
        assert_eq!(read(&bytes, STARTED).unwrap().restore(&MemoryStore::new(10)), 3);
    }

    #[test]
    fn a_damaged_file_is_refused_whole() {
        let (store, _) = stopped();
        let bytes = written(&store, b"", STOPPED);
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length], STARTED).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read(&changed, STARTED).is_err(), "{at}");
        }
        let longer = [bytes.as_slice(), b"x"].concat();
        assert_eq!(read(&longer, STARTED).unwrap_err(), SnapshotError::Damaged);
        assert_eq!(read(b"something else", STARTED).unwrap_err(), SnapshotError::UnknownFormat);
    }
}
