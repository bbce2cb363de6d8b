//! Resets and boosts that all gateways of a store have in common.
//!
//! A number in the store grows with each, and heartbeats return it. A gateway that sees another one
//! than before reads what has changed, and forgets all refusals.
//!
//! # Invariants
//!
//! 1. A change and its number are written together, and read together: no gateway sees one without
//!    the other.
//! 2. What a gateway knows of boosts and resets it tells a store that may have lost them, which
//!    keeps what it has: another gateway's change since then counts. The end of a boost is kept
//!    there until the boost would have ended, so that no gateway brings it back. Boosts that have
//!    ended are deleted, and none that was set since they were read.
//! 3. After a reset has returned, no gateway whose heartbeats are in time replays what was
//!    admitted before it, nor remembers for longer than a heartbeat that it was refused.
//!
//! # Not here
//!
//! Heartbeats (`shared::heartbeat`), the list of resets (`shared::resets`), what a boost raises
//! (`limit::boost`).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::Level;
use serde_json::{Map, Value, json};
use weir_common::directory::values::Values;
use weir_common::log::events;
use weir_common::time::Tick;

use super::super::LimitCheck;
use super::super::boost::{Boost, Boosts};
use super::super::key::{Key, hex};
use super::super::memory::{MemoryStore, Moved};
use super::heartbeat::{CHANGES, EVERY, GATEWAYS};
use super::resets::{ADD_RESETS, KnownResets, RESETS};
use super::servers::connection::StoreConnection;
use super::servers::errors::CallError;
use super::servers::link::Script;
use super::servers::node::Over;
use super::servers::store_time::StoreTime;
use super::{SharedStore, StoreAway, is_in_flight, remote};

/// Boosts by key, and those that were ended before their time, each as JSON.
const BOOSTS: &str = "weir1:{gateways}boosts";

/// Stores a boost or its end: `KEYS` are the number of changes and the boosts, `ARGV` the key and
/// the text; none deletes it.
const CHANGE: &str = "if ARGV[2] then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return redis.call('INCR', KEYS[1])";

/// Adds boosts that are not there, each a key and a text after `ARGV[1]`, a number of changes that
/// the next one is above. `KEYS` are as those of a change.
const PUBLISH_AGAIN: &str = "local known, is_there = redis.call('HGETALL', KEYS[2]), {}
for at = 1, #known, 2 do
  is_there[known[at]] = true
end
for at = 2, #ARGV, 2 do
  if not is_there[ARGV[at]] then
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  end
end
local number = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1])) + 1
redis.call('SET', KEYS[1], number)
return number";

/// Returns the number of changes, the keys that were reset after the change `ARGV[1]`, each with
/// its number, and all boosts; nothing where the store has forgotten the gateway `ARGV[2]` since
/// its heartbeat. `KEYS` are the number, the resets, the boosts and the gateways.
const READ: &str = "local all, is_known = redis.call('HGETALL', KEYS[4]), false
for at = 1, #all, 2 do
  is_known = is_known or all[at] == ARGV[2]
end
return is_known and {redis.call('GET', KEYS[1]) or '0',
  redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf', 'WITHSCORES'),
  redis.call('HGETALL', KEYS[3])}";

/// Deletes boosts that have ended, each a key and the text that was read of it: another text is of
/// a boost that was set since. `KEYS[1]` are the boosts.
pub(super) const FORGET_ENDED: &str = "local known, texts = redis.call('HGETALL', KEYS[1]), {}
for at = 1, #known, 2 do
  texts[known[at]] = known[at + 1]
end
for at = 1, #ARGV, 2 do
  if texts[ARGV[at]] == ARGV[at + 1] then
    redis.call('HDEL', KEYS[1], ARGV[at])
  end
end";

/// Boosts or resets that one call publishes again, or boosts that it forgets: the store does
/// nothing else meanwhile.
const AGAIN_MAX: usize = 512;

/// Deletes a key.
const DELETE: &str = "return redis.call('DEL', KEYS[1])";

/// The member of a boost that was ended before its time.
const ENDED: &str = "ended";

/// What [`READ`] returns.
type Changes = (u64, Vec<String>, HashMap<String, String>);

/// What of the changes in the store has been applied here.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The number of the newest change whose resets were applied, and of which boosts were.
    resets: AtomicU64,
    boosts: AtomicU64,
    /// The resets that were read, applied or not.
    known: KnownResets,
    /// Resets that were applied when they were published.
    own_resets: Mutex<BTreeSet<u64>>,
    /// Whether resets were applied since this process started.
    has_followed: AtomicBool,
    /// Whether the store may lack boosts and resets that this gateway knows.
    pub(super) may_lack_changes: AtomicBool,
}

impl Applied {
    /// The number of the newest reset of other gateways that was applied; 0 if none was, by this
    /// process nor an earlier one.
    pub(super) fn resets(&self) -> u64 {
        // What was forgotten by it is seen by who reads it.
        self.resets.load(Ordering::Acquire)
    }

    /// Resets up to this number were applied by an earlier process, and none after it.
    pub(super) fn restore_resets(&self, number: u64) {
        self.resets.fetch_max(number.max(1), Ordering::Release);
    }

    /// Whether the store may be told of keys of an earlier process: those that were reset since are
    /// forgotten.
    pub(super) fn has_followed(&self) -> bool {
        self.has_followed.load(Ordering::Acquire)
    }

    fn own_resets(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.own_resets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// After this every gateway that runs has had two heartbeats.
const HEARD_BY_ALL: Duration = Duration::from_millis(2 * 250 + 200);

impl SharedStore {
    /// Deletes the state of the keys of these checks in the store and in all gateways. Until it
    /// returns, what they had used still counts.
    pub async fn reset(
        &self,
        store: &MemoryStore,
        checks: &[&LimitCheck],
    ) -> Result<(), StoreAway> {
        // What is in flight stays counted: its end is what releases it.
        let checks = checks.iter().copied().filter(|check| !is_in_flight(check));
        let checks: Vec<&LimitCheck> = checks.collect();
        if checks.is_empty() {
            return Ok(());
        }
        // First no gateway replays any more what it was given before, then the store forgets it.
        self.publish_resets(&checks).await?;
        self.forget_all(store, &checks);
        tokio::time::sleep(HEARD_BY_ALL).await;
        let (mut deleted, mut failed) = (Vec::new(), Ok(()));
        for check in checks {
            match self.delete(check).await {
                Ok(()) => deleted.push(check),
                Err(why) => failed = Err(why),
            }
        }
        // What was admitted, refused and leased meanwhile is of what was deleted. What is admitted
        // here from now on is not: a store that forgets it is told.
        self.forget_all(store, &deleted);
        let own = self.publish_resets(&deleted).await?;
        self.changes.own_resets().extend(own);
        failed
    }

    /// Publishes that these keys were reset. Returns the numbers of the changes.
    async fn publish_resets(&self, checks: &[&LimitCheck]) -> Result<Vec<u64>, StoreAway> {
        let registry = self.registry().ok_or(StoreAway)?;
        let (script, mut numbers) = (Script::new(ADD_RESETS), Vec::new());
        for check in checks {
            let own = [b"0".to_vec(), digits(check.key).into_bytes()];
            let call = script.call(&names([CHANGES, RESETS]), &own);
            let number = registry.evaluate(&script, &call).await.map_err(unchanged)?;
            numbers.extend(redis::from_redis_value::<u64>(number));
        }
        Ok(numbers)
    }

    fn forget_all(&self, store: &MemoryStore, checks: &[&LimitCheck]) {
        for check in checks {
            // Where another process has the counters, it hears of this as well.
            let _ = self.forget(store, check.key);
        }
    }

    async fn delete(&self, check: &LimitCheck) -> Result<(), StoreAway> {
        let known = self.nodes.known();
        let node = known.of_slot(check.slot).ok_or(StoreAway)?;
        let connection = node.connection().ok_or(StoreAway)?;
        let (script, keys) = (Script::new(DELETE), [remote::name(check)]);
        let call = script.call(&keys, &[]);
        let over = Over { node, connection: &connection };
        let deleted = self.nodes.evaluate(over, &script, &call).await;
        deleted.map(drop).map_err(unchanged)
    }

    /// Publishes a boost to all gateways.
    pub async fn publish(&self, key: Key, boost: Boost) -> Result<(), StoreAway> {
        self.publish_text(key, |time| Some(Self::boost_text(time, boost))).await
    }

    /// Publishes that a boost has been ended; `ended` is what this gateway knew of it.
    pub async fn publish_end(&self, key: Key, ended: Option<Boost>) -> Result<(), StoreAway> {
        self.publish_text(key, |time| ended.map(|boost| Self::end_text(time, boost))).await
    }

    async fn publish_text(
        &self,
        key: Key,
        text: impl FnOnce(&StoreTime) -> Option<String>,
    ) -> Result<(), StoreAway> {
        let registry = self.registry().ok_or(StoreAway)?;
        let own = [Some(digits(key)), text(&registry.time)];
        let own: Vec<Vec<u8>> = own.into_iter().flatten().map(String::into_bytes).collect();
        let script = Script::new(CHANGE);
        let call = script.call(&names([CHANGES, BOOSTS]), &own);
        registry.evaluate(&script, &call).await.map(drop).map_err(unchanged)
    }

    /// Tells a store that may have lost them all boosts and resets that this gateway knows. Its
    /// number of changes is above `known` then, so that all gateways read them.
    async fn publish_again(
        &self,
        connection: &StoreConnection,
        boosts: &Boosts,
        (known, newest): (u64, u64),
    ) -> Result<(), CallError> {
        // Where resets could not be applied, there are later ones.
        let (known, script) = (known.max(self.changes.known.newest()), Script::new(ADD_RESETS));
        for some in self.changes.known.after(0).chunks(AGAIN_MAX) {
            let pairs = some.iter().flat_map(|(number, own)| [own.clone(), number.to_string()]);
            let own = std::iter::once(known.to_string()).chain(pairs).map(String::into_bytes);
            let call = script.call(&names([CHANGES, RESETS]), &own.collect::<Vec<_>>());
            connection.evaluate(&script, &call).await?;
        }
        let now = self.clock.now().tick;
        let all = boosts.all().into_iter().filter(|(_, boost)| now < boost.until);
        let texts =
            all.map(|(key, boost)| [digits(key), Self::boost_text(&connection.time, boost)]);
        let texts: Vec<[String; 2]> = texts.collect();
        let script = Script::new(PUBLISH_AGAIN);
        // Without boosts the number alone is raised, where it was lost.
        let rounds = texts.len().div_ceil(AGAIN_MAX).max(usize::from(newest < known));
        for some in (0..rounds).map(|nth| texts.iter().skip(nth * AGAIN_MAX).take(AGAIN_MAX)) {
            let mut own = vec![known.to_string().into_bytes()];
            own.extend(some.flatten().map(|text| text.clone().into_bytes()));
            let call = script.call(&names([CHANGES, BOOSTS]), &own);
            connection.evaluate(&script, &call).await?;
        }
        Ok(())
    }

    /// Applies what has changed in the store up to the number `newest`.
    pub(super) async fn follow(
        &self,
        connection: &StoreConnection,
        (store, boosts): (&MemoryStore, &Boosts),
        newest: u64,
    ) -> Result<(), CallError> {
        // Resets may be further than boosts, which changes made here can delay.
        let known = self.changes.resets();
        let may_lack_changes = self.changes.may_lack_changes.load(Ordering::Relaxed);
        if newest == self.changes.boosts.load(Ordering::Relaxed) && !may_lack_changes {
            return Ok(());
        }
        self.sync_states.forget_refusals();
        let own_changes = boosts.own_changes();
        if newest < known || may_lack_changes {
            self.publish_again(connection, boosts, (known, newest)).await?;
            self.changes.may_lack_changes.store(false, Ordering::Relaxed);
        }
        let (script, id) = (Script::new(READ), self.config.id.clone().into_bytes());
        let own = [self.changes.known.newest().to_string().into_bytes(), id];
        let call = script.call(&names([CHANGES, RESETS, BOOSTS, GATEWAYS]), &own);
        let read = connection.evaluate(&script, &call).await?;
        let read = redis::from_redis_value(read);
        let read: Option<Changes> = read.map_err(|why| CallError::Refused(why.to_string()))?;
        // Where it has forgotten all meanwhile, the next heartbeat finds that.
        let Some((number, reset, found)) = read else { return Ok(()) };
        self.changes.known.add(reset.as_chunks().0);
        let applied = match known {
            // Those of before this process started concern nothing that it has.
            0 => connection.time.range(self.started_at)[0].0 / 1_000,
            known => known,
        };
        let (own, later) = (self.changes.own_resets().clone(), self.changes.known.after(applied));
        let others = later.iter().filter(|(number, _)| !own.contains(number));
        let forgotten = others.filter_map(|(_, digits)| key_of(digits));
        let forgotten = forgotten.map(|key| self.forget(store, key));
        if forgotten.filter(Result::is_err).count() == 0 {
            self.changes.resets.store(number, Ordering::Release);
            self.changes.own_resets().retain(|nth| *nth > number);
            self.changes.has_followed.store(true, Ordering::Release);
        }
        let (mut active, mut ended, now) = (Vec::new(), Vec::new(), self.clock.now().tick);
        for (field, text) in &found {
            match key_of(field).zip(Self::published(&connection.time, text)) {
                Some((key, (boost, is_on))) if now < boost.until => {
                    active.extend(is_on.then_some((key, boost)));
                }
                _ => ended.push([field, text]),
            }
        }
        let script = Script::new(FORGET_ENDED);
        for some in ended.chunks(AGAIN_MAX) {
            let own = some.iter().flatten().map(|text| text.as_bytes().to_vec());
            let call = script.call(&names([BOOSTS]), &own.collect::<Vec<_>>());
            connection.evaluate(&script, &call).await?;
        }
        // Where a boost was set here meanwhile, the next heartbeat reads once more.
        if boosts.replace(active, own_changes) {
            self.changes.boosts.store(number, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Deletes what this gateway knows of a key; an error where another process has its counters.
    fn forget(&self, store: &MemoryStore, key: Key) -> Result<(), Moved> {
        self.sync_states.forget(key);
        self.forget_lease(key);
        store.reset(key)
    }

    /// A boost as JSON, whose end is in the store's time.
    fn boost_text(time: &StoreTime, boost: Boost) -> String {
        let [_, until] = time.range(boost.until);
        let mut members = boost.raised.to_json();
        members.insert("until".to_owned(), until.0.into());
        Value::from(members).to_string()
    }

    /// The end of a boost as JSON: it is of use until the boost would have ended.
    fn end_text(time: &StoreTime, ended: Boost) -> String {
        let [_, until] = time.range(ended.until);
        json!({ENDED: true, "until": until.0}).to_string()
    }

    /// A boost, or one that was ended, and which of both.
    fn published(time: &StoreTime, text: &str) -> Option<(Boost, bool)> {
        let mut members: Map<String, Value> = serde_json::from_str(text).ok()?;
        let until = members.remove("until")?.as_u64()?;
        let (is_on, mut is_wrong) = (members.remove(ENDED).is_none(), false);
        let raised = Values::from_json(&members, |_, _| is_wrong = true);
        let boost = Boost { raised, until: time.local(Tick(until)) };
        (!is_wrong).then_some((boost, is_on))
    }
}

/// Logs why the store did not take a change.
fn unchanged(why: CallError) -> StoreAway {
    let fields = [("error", json!(why.to_string()))];
    events::event(Level::Error, "shared store did not take a change", &fields);
    StoreAway
}

/// The keys of a script.
fn names<const N: usize>(keys: [&str; N]) -> [Vec<u8>; N] {
    keys.map(|key| key.as_bytes().to_vec())
}

fn digits(key: Key) -> String {
    hex(key.bits(), 32).to_string()
}

fn key_of(digits: &str) -> Option<Key> {
    u128::from_str_radix(digits, 16).ok().map(Key::from_bits)
}

const _: () = assert!(HEARD_BY_ALL.as_millis() > 2 * EVERY.as_millis());
