//! What a decision costs the store: few commands and few bytes, however much is in the window.

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// The line of the script that names its commands, and one that counts what they transfer.
const CALL: &str = "local call, pack, unpack, sub = redis.call,";
const COUNTING: &str = "local function counting(...)
  local reply, bytes, length = redis.call(...), 0, 0
  for _, argument in ipairs({...}) do bytes = bytes + #tostring(argument) end
  if type(reply) == 'string' then length = #reply end
  redis.call('HINCRBY', 'cost', 'commands', 1)
  redis.call('HINCRBY', 'cost', 'bytes', bytes + length)
  return reply
end
local call, pack, unpack, sub = counting,";

impl Store {
    /// A store that counts, on a server of its own.
    fn counting(server: &server::Server) -> Self {
        let mut store = Self::on(server.connect());
        assert_eq!(SCRIPT.matches(CALL).count(), 1);
        let script = SCRIPT.replace(CLOCK, MANUAL).replace(CALL, COUNTING);
        store.script = store.connection.load(&script);
        store
    }

    /// The commands and the bytes of a call.
    fn cost(&mut self, checks: &[SharedCheck]) -> (SharedReply, u64, u64) {
        self.connection.call(&["DEL", "cost"]);
        let reply = self.call(checks);
        let mut counted = |field: &str| match self.connection.call(&["HGET", "cost", field]) {
            Value::Text(text) => String::from_utf8(text).unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        };
        let (commands, bytes) = (counted("commands"), counted("bytes"));
        (reply, commands, bytes)
    }

    /// Fills a window with so many admissions, this far apart.
    fn fill(&mut self, key: &[u8], quota: Quota, count: usize, apart: u64) {
        let start = self.now;
        let stamp = |nth: usize| UnixTime(start + nth as u64 * apart);
        let all: Vec<ReplayedAdmission> =
            (0..count).map(|nth| ReplayedAdmission { stamp: stamp(nth), count: 1 }).collect();
        for replayed in all.chunks(REPLAY_MAX).map(<[ReplayedAdmission]>::to_vec) {
            let replayed = SharedCheck { replayed, ..check(key, quota, 1) };
            let _ = self.call_as(&[replayed], CallMode::Preview, None);
        }
        self.now = stamp(count).0;
    }
}

#[test]
fn a_decision_reads_and_writes_a_bounded_number_of_bytes() {
    let server = server::Server::start("cost");
    let mut store = Store::counting(&server);
    let key = fresh_key();
    let quota = rolling(EXACT_MAX, HOUR);
    store.fill(&key, quota, EXACT_MAX as usize, 40_000);
    // The window is full, and an entry leaves it every 40 ms.
    let full = store.cost(&[check(&key, quota, 1)]);
    assert!(matches!(full.0.results[0].decision, SharedDecision::Refuse { .. }));
    assert!(full.1 <= 2 && full.2 < 900, "{full:?}");
    let large = store.cost(&[check(&key, quota, 9_999)]);
    assert!(large.1 <= 24 && large.2 < 1_600, "{large:?}");
    store.now = START + 3_600_000_000;
    for _ in 0..50 {
        store.now += 40_000;
        let steady = store.cost(&[check(&key, quota, 1)]);
        assert_eq!(steady.0.outcome, SharedOutcome::Admitted);
        assert!(steady.1 <= 4 && steady.2 < 1_100, "{steady:?}");
    }
    store.now += 1_000_000_000;
    let pause = store.cost(&[check(&key, quota, 1)]);
    assert!(pause.1 <= 24 && pause.2 < 2_000, "{pause:?}");
    // Another window begins elsewhere among the admissions.
    for (window, requests) in [(HOUR / 2, 60_000), (HOUR, 65_000), (HOUR, 1_000_000)] {
        let horizon = Horizon { window: 3_700_000_000, token: 0 };
        let changed = SharedCheck { horizon, ..check(&key, rolling(requests, window), 1) };
        let (reply, commands, bytes) = store.cost(&[changed]);
        assert_eq!(reply.outcome, SharedOutcome::Admitted);
        assert!(commands <= 28 && bytes < 2_000, "{commands} {bytes}");
    }
}

#[test]
fn a_window_that_is_replayed_again_costs_what_is_replayed_and_not_what_it_has() {
    let server = server::Server::start("told");
    let mut store = Store::counting(&server);
    let (key, quota) = (fresh_key(), rolling(EXACT_MAX, HOUR));
    let start = store.now;
    store.fill(&key, quota, EXACT_MAX as usize, 40_000);
    let all: Vec<ReplayedAdmission> = (0..u64::from(EXACT_MAX))
        .map(|nth| ReplayedAdmission { stamp: UnixTime(start + nth * 40_000), count: 1 })
        .collect();
    for piece in all.chunks(REPLAY_MAX).step_by(7) {
        let told = SharedCheck { replayed: piece.to_vec(), ..check(&key, quota, 1) };
        let (reply, commands, bytes) = store.cost(&[told]);
        assert_eq!(reply.outcome, SharedOutcome::Refused);
        assert!(commands <= 40 && bytes < 12_000, "{commands} {bytes}");
    }
}

#[test]
fn a_longer_window_is_not_written_anew_while_its_stamps_fit() {
    let server = server::Server::start("longer");
    let mut store = Store::counting(&server);
    let (key, start) = (fresh_key(), store.now);
    let long = rolling(60_000, 2 * HOUR);
    store.fill(&key, rolling(60_000, HOUR / 2), 20_000, 64_000);
    let (reply, commands, bytes) = store.cost(&[check(&key, long, 1)]);
    assert_eq!(reply.results[0].remaining, 60_000 - 20_001);
    assert!(commands <= 4 && bytes < 1_100, "{commands} {bytes}");
    // Its units are those of half an hour: 2^32 of them pass twice.
    let mut stamps: Vec<u64> = (0..20_000).map(|nth| start + nth * 64_000).collect();
    stamps.push(reply.results[0].receipt.unwrap().stamp.0);
    for nth in 0..250 {
        store.now += 60_000_000 + 100_000_000 * (nth % 2);
        let result = store.call(&[check(&key, long, 1)]).results.remove(0);
        stamps.push(result.receipt.unwrap().stamp.0);
        let within = stamps.iter().filter(|stamp| **stamp + 7_200_000_000 > store.now).count();
        assert_eq!(result.remaining as usize, 60_000 - within, "{nth}");
    }
    let end = store.connection.call(&[b"GETRANGE".as_slice(), &key, b"-6", b"-1"]);
    assert_eq!(end, Value::Text(b"\0\0\0\x02w1".to_vec()));
}

#[test]
fn two_short_windows_take_a_read_and_a_write_each() {
    let server = server::Server::start("short");
    let mut store = Store::counting(&server);
    let keys = [fresh_key(), fresh_key()];
    let minute = Duration::from_secs(60);
    let mut most = (0, 0);
    for nth in 0..300 {
        let quotas = [rolling(60, minute), rolling(600, minute)];
        let checks = [0, 1].map(|nth| check(&keys[nth], quotas[nth], 1));
        store.now += 1_000_000;
        let (reply, commands, bytes) = store.cost(&checks);
        assert_eq!(reply.outcome, SharedOutcome::Admitted);
        assert!(nth < 2 || commands == 4 || commands == 6, "{commands} at {nth}");
        most = (most.0 + u64::from(commands > 4), most.1.max(bytes));
    }
    // The lifetimes of the keys are extended, or their entries cut, a few times each.
    assert!(most.0 < 16 && most.1 < 4_000, "{most:?}");
}

#[test]
fn a_window_is_cut_once_in_a_horizon_and_keeps_what_matters() {
    let mut store = Store::open();
    let key = fresh_key();
    let quota = rolling(50_000, HOUR);
    let (mut length_max, mut sequence) = (0, 0);
    for _ in 0..20 {
        for _ in 0..400 {
            store.now += 3_000_000;
            let reply = store.call(&[check(&key, quota, 1)]);
            assert!(reply.results[0].remaining >= 50_000 - 1_200);
            assert_eq!(reply.results[0].receipt.unwrap().sequence, sequence);
            sequence += 1;
            let Value::Number(length) = store.connection.call(&[b"STRLEN", &key[..]]) else {
                panic!()
            };
            length_max = length_max.max(length);
        }
        let reply = store.call_as(&[check(&key, quota, 1)], CallMode::Preview, None);
        let within = ((store.now - START) / 3_000_000).min(1_200);
        assert_eq!(u64::from(50_000 - reply.results[0].remaining), within);
    }
    assert!(length_max <= 2_402 * 8 + 58, "{length_max}");
}

#[test]
fn what_leaves_a_long_window_leaves_it_at_its_microsecond() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = rolling(EXACT_MAX, HOUR);
    store.fill(&key, quota, 5_000, 1_000);
    for left in [1_u64, 2, 15, 16, 17, 18, 40, 999, 4_000, 4_998, 5_000] {
        // The last of them leaves now, and the next in a millisecond.
        for (early, within) in [(4, 5_000 - left + 1), (0, 5_000 - left)] {
            store.now = START + 3_600_000_000 + (left - 1) * 1_000 - early;
            let reply = store.call_as(&[check(&key, quota, 1)], CallMode::Preview, None);
            assert_eq!(u64::from(EXACT_MAX - reply.results[0].remaining), within, "{left}");
        }
    }
}

#[test]
fn a_window_that_another_plan_would_keep_for_long_has_a_bounded_number_of_entries() {
    let (mut store, key) = (Store::open(), fresh_key());
    let quota = rolling(60_000, Duration::from_secs(1));
    let horizon = Horizon { window: 3_600_000_000, token: 0 };
    store.fill(&key, rolling(EXACT_MAX, HOUR), 131_072, 20);
    store.now += 100_000;
    let charged = SharedCheck { horizon, ..check(&key, quota, 1) };
    let reply = store.call(&[charged]);
    assert_eq!(reply.outcome, SharedOutcome::Admitted);
    let length = store.connection.call(&[b"STRLEN", &key[..]]);
    let within = u64::from(60_000 - reply.results[0].remaining);
    assert_eq!(length, Value::Number(i64::try_from(within * 8 + 58).unwrap()));
}
