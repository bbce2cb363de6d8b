//! Runs the shipped script on a Redis server, beside the simplest correct version of each promise.
//!
//! The only change to the script is its clock: a test says what time it is.

mod boosts;
mod changes;
mod cost;
mod in_flight;
mod leases;
mod model;
mod promises;
mod server;
mod windows;
mod witness;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_common::limit::decision::{Decision, Usage};
use weir_common::limit::rolling::RollingQuota;

use self::server::{Connection, Value};
use super::super::reply::{
    BadReply, Lease, NUMBER_MAX, Receipt, SharedDecision, SharedOutcome, SharedReply, SharedResult,
    decode,
};
use super::*;

/// The line of the script that reads the clock, and the one that a test puts in its place.
const CLOCK: &str = "local clock = redis.call('TIME')\n";
const MANUAL: &str = "local clock = {ARGV[#KEYS + 2], ARGV[#KEYS + 3]}\n";

/// November 2026, in microseconds since 1970.
const START: u64 = 1_795_000_000_000_000;

/// A connection with the script, at a time that the test sets.
struct Store {
    connection: Connection,
    script: Vec<u8>,
    now: u64,
}

impl Store {
    fn open() -> Self {
        Self::on(server::shared().connect())
    }

    fn on(mut connection: Connection) -> Self {
        let script = connection.load(&SCRIPT.replace(CLOCK, MANUAL));
        Self { connection, script, now: START }
    }

    fn call(&mut self, checks: &[SharedCheck]) -> SharedReply {
        self.call_as(checks, CallMode::Charge, None)
    }

    fn call_as(
        &mut self,
        checks: &[SharedCheck],
        mode: CallMode,
        not_after: Option<UnixTime>,
    ) -> SharedReply {
        match self.reply(checks, mode, not_after) {
            Value::Text(reply) => decode(&reply, checks).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn reply(
        &mut self,
        checks: &[SharedCheck],
        mode: CallMode,
        not_after: Option<UnixTime>,
    ) -> Value {
        let mut parts = vec![b"EVALSHA".to_vec(), self.script.clone()];
        parts.push(checks.len().to_string().into_bytes());
        parts.extend(checks.iter().map(|check| check.key.clone()));
        parts.extend(encode(checks, mode, not_after));
        parts.push((self.now / 1_000_000).to_string().into_bytes());
        parts.push((self.now % 1_000_000).to_string().into_bytes());
        self.connection.call(&parts)
    }
}

/// What the store should reply about one check.
#[derive(Debug, PartialEq)]
struct Expected {
    decision: SharedDecision,
    remaining: u32,
    full_at: UnixTime,
}

impl Expected {
    fn of(decision: Decision, usage: Usage) -> Self {
        let decision = match decision {
            Decision::Admit => SharedDecision::Admit,
            Decision::Refuse { retry_at } => {
                SharedDecision::Refuse { retry_at: UnixTime(retry_at.0.min(NUMBER_MAX)) }
            }
            Decision::TooLarge => SharedDecision::TooLarge,
        };
        Self {
            decision,
            remaining: usage.remaining,
            full_at: UnixTime(usage.full_at.0.min(NUMBER_MAX)),
        }
    }

    fn replied(result: &SharedResult) -> Self {
        let SharedResult { decision, remaining, full_at, .. } = *result;
        Self { decision, remaining, full_at }
    }
}

/// A key that no other test uses.
fn fresh_key() -> Vec<u8> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("weir1:{{0}}{}", NEXT.fetch_add(1, Ordering::Relaxed)).into_bytes()
}

fn rolling(requests: u32, window: Duration) -> Quota {
    Quota::Rolling(RollingQuota { requests, window })
}

/// A check of a quota that its limit has always had.
fn check(key: &[u8], quota: Quota, cost: u32) -> SharedCheck {
    SharedCheck {
        key: key.to_vec(),
        quota,
        horizon: Horizon::of([quota]),
        cost,
        enforced: true,
        claim: None,
        replayed: Vec::new(),
        lease: None,
        slots: None,
    }
}

#[test]
fn the_tested_script_differs_from_the_shipped_one_in_its_clock_alone() {
    assert_eq!(SCRIPT.matches(CLOCK).count(), 1);
    assert_eq!(SCRIPT.matches("TIME").count(), 1);
    let tested = SCRIPT.replace(CLOCK, MANUAL);
    let differing = SCRIPT.lines().zip(tested.lines()).filter(|(one, other)| one != other).count();
    assert_eq!((differing, tested.lines().count()), (1, SCRIPT.lines().count()));
}

#[test]
fn the_shipped_script_reads_the_clock_of_the_server() {
    let mut store = Store::open();
    store.script = store.connection.load(SCRIPT);
    let before = weir_common::time::Clock::system().now().unix;
    let reply = store.call(&[check(&fresh_key(), rolling(1, Duration::from_secs(60)), 1)]);
    let after = weir_common::time::Clock::system().now().unix;
    assert!(before <= reply.now && reply.now <= after);
    assert_eq!(reply.results[0].receipt, Some(Receipt { stamp: reply.now, sequence: 0 }));
}
