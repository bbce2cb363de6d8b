//! Resets and boosts that all gateways of a store have in common.
//!
//! A number in the store counts them; each heartbeat returns it, and a gateway that sees another
//! number than before reads what has changed.
//!
//! # Invariants
//!
//! 1. A change is in the store before its number is: no gateway sees one without the other.
//! 2. After a reset has returned, no gateway whose heartbeats are in time testifies what was
//!    admitted before it.
//!
//! # Not here
//!
//! Heartbeats (`shared::heartbeat`), what a boost raises (`limit::boost`).

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value};
use weir_common::directory::values::Values;
use weir_common::time::Tick;

use super::super::LimitCheck;
use super::super::boost::{Boost, Boosts};
use super::super::key::Key;
use super::super::memory::Store;
use super::connection::{Script, StoreConnection};
use super::errors::CallError;
use super::heartbeat::{CHANGES, EVERY};
use super::store_time::StoreTime;
use super::{SharedStore, StoreAway, is_in_flight, remote};

/// Boosts by key, each as JSON.
const BOOSTS: &str = "weir1:{gateways}boosts";

/// Keys that were reset, by the number of the change.
const RESETS: &str = "weir1:{gateways}resets";

/// Adds a reset: `KEYS` are the number of changes and the resets, `ARGV[1]` is the key. Resets of
/// more than a day ago matter to no window that a running gateway still testifies.
const ADD_RESET: &str = "local number = redis.call('INCR', KEYS[1])
redis.call('ZADD', KEYS[2], number, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -10001)
redis.call('PEXPIRE', KEYS[2], 86400000)
return number";

/// Deletes a key.
const DELETE: &str = "return redis.call('DEL', KEYS[1])";

/// After this every gateway that runs has had two heartbeats.
const HEARD_BY_ALL: Duration = Duration::from_millis(2 * 250 + 200);

impl SharedStore {
    /// Deletes the state of a check's key in the store and in all gateways. Waits until they have
    /// heard of it.
    pub async fn reset(&self, store: &Store, check: &LimitCheck) -> Result<(), StoreAway> {
        let registry = self.registry().ok_or(StoreAway)?;
        if is_in_flight(check) {
            // What is in flight stays counted: its end is what releases it.
            return Ok(());
        }
        let delete = async || {
            let known = self.nodes.known();
            let node = known.of_slot(check.slot).ok_or(StoreAway)?;
            let connection = node.connection().ok_or(StoreAway)?;
            let (script, keys) = (Script::new(DELETE), [remote::name(check)]);
            let deleted = self.nodes.evaluate((node, &connection), &script, (&keys, &[])).await;
            deleted.map_err(|_| StoreAway)
        };
        self.forget(store, check.key);
        delete().await?;
        let keys = [CHANGES, RESETS].map(|key| key.as_bytes().to_vec());
        let (script, own) = (Script::new(ADD_RESET), hex(check.key).into_bytes());
        let added = registry.evaluate(&script, &script.call(&keys, &[own])).await;
        added.map_err(|_| StoreAway)?;
        tokio::time::sleep(HEARD_BY_ALL).await;
        // Until then another gateway may have testified what it was given before.
        self.standings.forget(check.key);
        self.forget_lease(check.key);
        delete().await?;
        Ok(())
    }

    /// Publishes a boost, or its end, to all gateways.
    pub async fn publish(&self, key: Key, boost: Option<Boost>) -> Result<(), StoreAway> {
        let registry = self.registry().ok_or(StoreAway)?;
        let published = self.publish_over(&registry, key, boost).await;
        published.map_err(|_| StoreAway)
    }

    async fn publish_over(
        &self,
        connection: &StoreConnection,
        key: Key,
        boost: Option<Boost>,
    ) -> Result<(), CallError> {
        let field = hex(key);
        match boost {
            Some(boost) => {
                let text = Self::boost_text(&connection.time, boost);
                let set: [&[u8]; 4] =
                    [b"HSET", BOOSTS.as_bytes(), field.as_bytes(), text.as_bytes()];
                connection.command::<()>(&set).await?;
            }
            None => {
                let remove: [&[u8]; 3] = [b"HDEL", BOOSTS.as_bytes(), field.as_bytes()];
                connection.command::<()>(&remove).await?;
            }
        }
        connection.command::<()>(&[b"INCR", CHANGES.as_bytes()]).await
    }

    /// Applies what has changed in the store up to the number `newest`.
    pub(super) async fn follow(
        &self,
        connection: &StoreConnection,
        (store, boosts): (&Store, &Boosts),
        newest: u64,
    ) -> Result<(), CallError> {
        let known = self.changes.load(Ordering::Relaxed);
        if newest == known {
            return Ok(());
        }
        self.standings.forget_refusals();
        if newest < known {
            // The store has lost them: each gateway knows the boosts, and tells them again.
            for (key, boost) in boosts.all() {
                self.publish_over(connection, key, Some(boost)).await?;
            }
            let lost = (known - newest).to_string();
            let raise: [&[u8]; 3] = [b"INCRBY", CHANGES.as_bytes(), lost.as_bytes()];
            return connection.command::<()>(&raise).await;
        }
        let from = format!("({known}");
        let range: [&[u8]; 4] = [b"ZRANGEBYSCORE", RESETS.as_bytes(), from.as_bytes(), b"+inf"];
        let reset: Vec<String> = connection.command(&range).await?;
        reset.iter().filter_map(|digits| key_of(digits)).for_each(|key| self.forget(store, key));
        let found: HashMap<String, String> =
            connection.command(&[b"HGETALL", BOOSTS.as_bytes()]).await?;
        let (mut active, now) = (Vec::new(), self.clock.now().tick);
        for (field, text) in &found {
            match key_of(field).zip(Self::boost_of(&connection.time, text)) {
                Some((key, boost)) if now < boost.until => active.push((key, boost)),
                _ => {
                    let remove: [&[u8]; 3] = [b"HDEL", BOOSTS.as_bytes(), field.as_bytes()];
                    connection.command::<()>(&remove).await?;
                }
            }
        }
        boosts.replace(active);
        self.changes.store(newest, Ordering::Relaxed);
        Ok(())
    }

    fn forget(&self, store: &Store, key: Key) {
        // Where another process has the counters, it hears of this as well.
        let _ = store.reset(key);
        self.standings.forget(key);
        self.forget_lease(key);
    }

    /// A boost as JSON, whose end is in the store's time.
    fn boost_text(time: &StoreTime, boost: Boost) -> String {
        let [_, until] = time.range(boost.until);
        let mut members = boost.raised.to_json();
        members.insert("until".to_owned(), until.0.into());
        Value::from(members).to_string()
    }

    fn boost_of(time: &StoreTime, text: &str) -> Option<Boost> {
        let mut members: Map<String, Value> = serde_json::from_str(text).ok()?;
        let until = members.remove("until")?.as_u64()?;
        let mut is_wrong = false;
        let raised = Values::from_json(&members, |_, _| is_wrong = true);
        (!is_wrong).then(|| Boost { raised, until: time.local(Tick(until)) })
    }
}

fn hex(key: Key) -> String {
    format!("{:032x}", key.bits())
}

fn key_of(digits: &str) -> Option<Key> {
    u128::from_str_radix(digits, 16).ok().map(Key::from_bits)
}

const _: () = assert!(HEARD_BY_ALL.as_millis() > 2 * EVERY.as_millis());
